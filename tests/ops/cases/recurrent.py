"""Layers of recurrent networks: cells, weights and orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from buddy.compiler.runtime import torch_ops  # noqa: F401  (defines the ops)
from tests.ops.cases.base import Group, normal

# Outputs, inputs and sequences; the first number is not a multiple of a vector.
WIDTH, DEPTH, BATCH = 37, 6, 5
# The number of sequences that have each of seven steps, and their sum: the rows of packed sequences.
SIZES = torch.tensor([5, 4, 4, 2, 1, 1, 1])
ROWS = 18


def _layer(kind: str, gates: int, packed: bool = False, reverse: bool = False, **options: Any) -> Callable[..., Any]:
    """One direction of a layer; the result has its output and its last states, in one tensor.

    `options` may omit the biases, or choose a nonlinearity or a projection.
    """
    op = getattr(torch.ops.buddy, f"{kind}_layer")
    has_biases, is_projected = options.pop("biases", True), options.pop("projected", False)

    def run(steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        enter, recur, first, second, projection, sizes = weights
        rows, width = gates * WIDTH, WIDTH
        if is_projected:
            options["projection"], width = projection, len(projection)
        states = (hidden[:, :width], cell) if kind == "lstm" else (hidden,)
        biases = (first[:rows], second[:rows]) if has_biases else (None, None)
        steps = steps.flatten(0, 1)[:ROWS] if packed else steps
        order = {"batch_sizes": sizes if packed else None, "reverse": reverse}
        results = op(steps, *states, enter[:rows], recur[:rows, :width], *biases, **options, **order)
        return torch.cat([result.flatten() for result in results])

    return run


RECURRENT: dict[str, Callable[..., Any]] = {
    f"{name}{', packed' * packed}{', reversed' * reverse}": _layer(kind, gates, packed, reverse, **options)
    for name, kind, gates, options in (
        ("LSTM", "lstm", 4, {}),
        ("LSTM with a projection", "lstm", 4, {"projected": True}),
        ("GRU", "gru", 3, {}),
        ("RNN", "rnn", 1, {}),
        ("RNN with ReLU", "rnn", 1, {"nonlinearity": "relu"}),
        ("LSTM without biases", "lstm", 4, {"biases": False}),
        ("GRU without biases", "gru", 3, {"biases": False}),
    )
    for packed in (False, True)
    for reverse in (False, True)
    if "without" not in name or not (packed or reverse)
}


def _gradients(kind: str, gates: int, reverse: bool = False, **options: Any) -> Callable[..., Any]:
    """The gradients of one direction of a layer, of what the overload `saving` saved."""
    op, backward = getattr(torch.ops.buddy, f"{kind}_layer").saving, getattr(torch.ops.buddy, f"{kind}_layer_backward")

    def run(steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        enter, recur, first, second, *_ = weights
        rows = gates * WIDTH
        states = (hidden, cell) if kind == "lstm" else (hidden,)
        layer = (enter[:rows], recur[:rows], first[:rows], second[:rows])
        output, *results = op(steps, *states, *layer, **options, reverse=reverse)
        saved = results[len(states) :] or [output]
        if kind != "rnn":
            before = saved[-1] if kind == "lstm" else output
            initial = states[-1][None]
            saved.append(torch.cat([before[1:], initial] if reverse else [initial, before[:-1]]))
        found = backward(
            output.cos(), *(state.sin() for state in states), recur[:rows], *saved, **options, reverse=reverse
        )
        return torch.cat([result.flatten() for result in (output, *results, *found)])

    return run


GRADIENTS = {
    f"gradients of {name}{', reversed' * reverse}": _gradients(kind, gates, reverse, **options)
    for name, kind, gates, options in (
        ("LSTM", "lstm", 4, {}),
        ("GRU", "gru", 3, {}),
        ("RNN", "rnn", 1, {}),
        ("RNN with ReLU", "rnn", 1, {"nonlinearity": "relu"}),
    )
    for reverse in (False, True)
}


def _group(dtype: torch.dtype, functions: dict[str, Callable[..., Any]]) -> Group:
    scale = WIDTH**-0.5
    weights = [normal(4 * WIDTH, size) * scale for size in (DEPTH, WIDTH)]
    biases, projection = [normal(4 * WIDTH) * scale for _ in range(2)], normal(9, WIDTH) * scale
    floats = [normal(7, BATCH, DEPTH), normal(BATCH, WIDTH), normal(BATCH, WIDTH), *weights, *biases, projection]
    return Group((*(value.to(dtype) for value in floats), SIZES), functions)


_PLAIN = {name: function for name, function in RECURRENT.items() if "," not in name and "without" not in name}
GROUPS = {
    "recurrent layers": _group(torch.float32, RECURRENT),
    "recurrent layers of float64": _group(torch.float64, _PLAIN),
    "gradients of recurrent layers": _group(torch.float32, GRADIENTS),
    "gradients of recurrent layers of float64": _group(torch.float64, GRADIENTS),
}
