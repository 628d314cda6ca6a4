"""The time of one call of a small model: eager, TorchDynamo alone, Inductor, and this compiler, interleaved.

    python benchmarks/calls.py [--repeats N] [--tiny]

A block makes 50 calls without gradients. TorchDynamo alone checks its guards and calls a function that returns a tensor
made before. The cost of a call is its time less that of TorchDynamo alone in the same round; it includes the model's
arithmetic. All sides run on one thread, in one process, and time is that of the thread, because the other processes of
a machine would otherwise be timed too. Prints one JSON object; the exit code is 1 if a result differs from eager's.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from support import printing
from support.timing import median_and_quartiles

from buddy.compiler.runtime.native_calls import native_call_problem

CALLS = 50
ROWS, WIDTH = 4, 8
# By name: the widths of the layers, and whether each has a bias.
MODELS: dict[str, tuple[tuple[int, ...], bool]] = {
    "Linear(8, 8) + ReLU": ((WIDTH, WIDTH), True),
    "one parameter": ((WIDTH, WIDTH), False),
    "MLP of 3 layers": ((WIDTH, 32, 32, WIDTH), True),
    "20 parameters": ((WIDTH,) * 11, True),
}
# Compiled code is found by code object: each side has a function of its own, so that none searches past another's.
_SOURCE = """
def model(x, weights, biases):
    for weight, bias in zip(weights, biases):
        x = torch.relu(torch.nn.functional.linear(x, weight, bias))
    return x
"""
Model = Callable[..., torch.Tensor]


def _model() -> Model:
    namespace: dict[str, Any] = {"torch": torch}
    exec(_SOURCE, namespace)
    model: Model = namespace["model"]
    return model


def _dynamo_alone(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    results: list[torch.Tensor] = []

    def call(*values: torch.Tensor) -> list[torch.Tensor]:
        if not results:
            results.extend(module(*values))
        return results

    return call


SIDES: dict[str, Any] = {"eager": None, "dynamo": _dynamo_alone, "inductor": "inductor", "ours": "buddy"}


def measure(widths: tuple[int, ...], has_bias: bool, repeats: int) -> dict[str, Any]:
    """Seconds of a call by side, and the cost by side: seconds beyond TorchDynamo alone."""
    torch.manual_seed(0)
    weights = [torch.randn(after, before) for before, after in itertools.pairwise(widths)]
    biases = [torch.randn(len(weight)) if has_bias else None for weight in weights]
    inputs = (torch.randn(ROWS, WIDTH), weights, biases)
    models = {
        side: _model() if backend is None else torch.compile(_model(), backend=backend, dynamic=False)
        for side, backend in SIDES.items()
    }
    expected = models["eager"](*inputs)
    same = all(torch.allclose(model(*inputs), expected, rtol=1e-4, atol=1e-4) for model in models.values())
    names, seconds = list(models), {side: list[float]() for side in models}
    for number in range(repeats + 1):
        turn = number % len(names)
        for side in names[turn:] + names[:turn]:
            taken = _seconds(models[side], inputs)
            if number:  # the first round warms up
                seconds[side].append(taken)
    costs = {
        side: median_and_quartiles([a - b for a, b in zip(seconds[side], seconds["dynamo"], strict=True)])
        for side in ("inductor", "ours")
    }
    return {
        "seconds": {side: median_and_quartiles(found) for side, found in seconds.items()},
        "cost": costs,
        "same": same,
    }


def _seconds(model: Model, inputs: tuple[Any, ...]) -> float:
    """Returns the seconds of one call, on average over a block."""
    start = time.thread_time()
    for _ in range(CALLS):
        model(*inputs)
    return (time.thread_time() - start) / CALLS


def main() -> None:
    options = printing.parser(__doc__, 300, "rounds of 50 calls per side").parse_args()
    torch.set_num_threads(1)
    models = dict(list(MODELS.items())[:1]) if options.tiny else MODELS
    with torch.no_grad():
        results = {name: measure(*model, options.repeats) for name, model in models.items()}
    rows = [
        [name, *(f"{1e6 * found['seconds'][side]['median']:.3g}" for side in SIDES),
         *(printing.between(found["cost"][side], scale=1e6) for side in ("inductor", "ours"))]
        for name, found in results.items()
    ]  # fmt: skip
    heading = ["model", *(f"{side} µs" for side in SIDES), "cost of inductor µs", "cost of ours µs"]
    found = {"machine": printing.machine(), "through_python": native_call_problem(), "models": results}
    printing.tell(found, heading, rows)
    sys.exit(not all(found["same"] for found in results.values()))


if __name__ == "__main__":
    main()
