"""Captures recurrent layers (`nn.LSTM`, `nn.GRU`, `nn.RNN`) as one node per layer and direction.

PyTorch's own decompositions unroll the steps, so that graphs grow with the sequence, and ignore dropout between layers.
The Python dispatcher gives them priority over any table of decompositions; `eager_dispatch.dispatch_like_eager`
overrides them. Graphs that record gradients call the overload `saving` of these ops, which also returns the values of
each step that the backward pass needs. That overload supports neither packed sequences nor LSTMs with projections,
which are therefore unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._decomp import decompositions as unrolled

from buddy.compiler.runtime import recurrent_ops  # noqa: F401  (defines the ops)

aten, layers = torch.ops.aten, torch.ops.buddy
Tensors = tuple[torch.Tensor, ...]
# One direction of one layer: takes (steps, states, weights, has_biases, batch sizes or None, reverse), and returns the
# output and the last states.
Layer = Callable[[torch.Tensor, Tensors, Tensors, bool, torch.Tensor | None, bool], tuple[torch.Tensor, Tensors]]

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _cell_arguments(weights: Tensors, has_biases: bool) -> tuple[torch.Tensor | None, ...]:
    """Returns the weights of inputs and states, the two biases (or None twice), and the projection if there is one."""
    projection = weights[4 if has_biases else 2 :]
    return (*weights[:2], *(weights[2:4] if has_biases else (None, None)), *projection)


def _lstm_layer(
    op: Callable[..., Tensors], steps: torch.Tensor, states: Tensors, weights: Tensors, has_biases: bool,
    batch_sizes: torch.Tensor | None, reverse: bool,
) -> tuple[torch.Tensor, Tensors]:  # fmt: skip
    """Runs one direction of an LSTM layer by `op`, which is the op `lstm_layer` or its overload `saving`.

    With `op` bound by `partial`, this is a `Layer`.
    """
    # The op takes five weights; the last one, the projection, is None without one.
    arguments = (*_cell_arguments(weights, has_biases), None)[:5]
    output, hidden, cell, *_ = op(steps, *states, *arguments, batch_sizes, reverse)
    return output, (hidden, cell)


def _gru_layer(
    op: Callable[..., Tensors], steps: torch.Tensor, states: Tensors, weights: Tensors, has_biases: bool,
    batch_sizes: torch.Tensor | None, reverse: bool,
) -> tuple[torch.Tensor, Tensors]:  # fmt: skip
    """Like `_lstm_layer`, for a GRU."""
    output, hidden, *_ = op(steps, *states, *_cell_arguments(weights, has_biases), batch_sizes, reverse)
    return output, (hidden,)


def _rnn_layer(
    nonlinearity: str, op: Callable[..., Tensors], steps: torch.Tensor, states: Tensors, weights: Tensors,
    has_biases: bool, batch_sizes: torch.Tensor | None, reverse: bool,
) -> tuple[torch.Tensor, Tensors]:  # fmt: skip
    """Like `_lstm_layer`, for an RNN with the `nonlinearity` "tanh" or "relu"."""
    arguments = _cell_arguments(weights, has_biases)
    output, hidden = op(steps, *states, *arguments, nonlinearity, batch_sizes, reverse)
    return output, (hidden,)


def _unrolled_layer(
    of_steps: Callable[..., Any], of_packed: Callable[..., Any], steps: torch.Tensor, states: Tensors,
    weights: Tensors, has_biases: bool, batch_sizes: torch.Tensor | None, reverse: bool,
) -> tuple[torch.Tensor, Tensors]:  # fmt: skip
    """Runs one direction of one layer by PyTorch's decompositions, which make one set of nodes per step.

    `of_steps` is the decomposition for sequences of equal length, `of_packed` the one for packed sequences.
    """
    hidden = states if len(states) > 1 else states[0]
    if batch_sizes is None:
        output, last = of_steps(steps, hidden, weights, has_biases, reverse=reverse)
    else:
        output, last = of_packed(steps, hidden, weights, has_biases, batch_sizes=batch_sizes, reverse=reverse)
    return output, last if len(states) > 1 else (last,)


def _unrolled_rnn(cell: Callable[..., Any], cell_of_packed: Callable[..., Any]) -> Layer:
    """Returns an unrolled GRU or RNN.

    `cell` computes one step of sequences of equal length, `cell_of_packed` one of packed sequences.
    """
    return partial(
        _unrolled_layer, partial(unrolled.one_layer_rnn, hidden_fn=cell),
        partial(unrolled.one_layer_rnn_data, hidden_fn=cell_of_packed),
    )  # fmt: skip


@dataclass(frozen=True)
class _LayerImplementations:
    """Three implementations of an LSTM, GRU or RNN: the op without gradients, its overload `saving`, and unrolled."""

    plain: Layer
    saving: Layer
    unrolled: Layer

    def select(self, records_gradients: bool, is_packed: bool, has_projection: bool) -> Layer:
        """Returns the implementation for a call."""
        if not records_gradients:
            return self.plain
        return self.unrolled if is_packed or has_projection else self.saving


def _make_implementations(layer: Callable[..., Any], packet: Any, unrolled_layer: Layer) -> _LayerImplementations:
    return _LayerImplementations(partial(layer, packet.default), partial(layer, packet.saving), unrolled_layer)


_UNROLLED_LSTM: Layer = partial(_unrolled_layer, unrolled.one_layer_lstm, unrolled.one_layer_lstm_data)
_UNROLLED_GRU = _unrolled_rnn(unrolled.gru_cell, unrolled.gru_cell_data)
_UNROLLED_TANH, _UNROLLED_RELU = (
    _unrolled_rnn(unrolled.rnn_cell(function), unrolled.rnn_cell_data(function))
    for function in (torch.tanh, torch.relu)
)


def _run_layers(
    implementations: _LayerImplementations, steps: torch.Tensor, batch_sizes: torch.Tensor | None, states: Tensors,
    weights: Sequence[torch.Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool,
) -> Any:  # fmt: skip
    """Runs all layers over `steps` [time, batch, inputs], or [rows, inputs] of packed sequences.

    Each tensor of `states` stacks the states of all layers and directions. Returns the output, and the last states in
    the same form. A call that mixes types, or runs under autocast, stays unchanged.
    """
    tensors = [steps, *states, *weights]
    is_plain = all(t.dtype == steps.dtype and t.device.type == "cpu" for t in tensors) and steps.dtype in _FLOATS
    if not is_plain or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    records_gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    directions, last_states = 2 if bidirectional else 1, []
    n_weights = len(weights) // (num_layers * directions)  # of one direction of one layer
    has_projection = n_weights % 2 == 1  # one more weight than the two or four others
    run = implementations.select(records_gradients, batch_sizes is not None, has_projection)
    for layer in range(num_layers):
        outputs = []
        for number in range(layer * directions, (layer + 1) * directions):
            layer_weights = tuple(weights[number * n_weights : (number + 1) * n_weights])
            first_states = tuple(state[number] for state in states)
            reverse = number % directions == 1
            output, last = run(steps, first_states, layer_weights, has_biases, batch_sizes, reverse)
            outputs.append(output)
            last_states.append(last)
        steps = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < num_layers - 1:
            steps = torch.dropout(steps, dropout, train=True)
    return (steps, *(torch.stack(state) for state in zip(*last_states, strict=True)))


def _rule_for_steps(implementations: _LayerImplementations) -> Callable[..., Any]:
    """Returns the rule of an overload `input`, whose sequences have equal lengths."""

    def rule(
        steps: torch.Tensor, hx: Any, weights: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        ordered = steps.transpose(0, 1) if batch_first else steps
        results = _run_layers(
            implementations, ordered, None, states, weights, has_biases, num_layers, dropout, train, bidirectional
        )
        if results is NotImplemented or not batch_first:
            return results
        return results[0].transpose(0, 1), *results[1:]

    return rule


def _rule_for_packed(implementations: _LayerImplementations) -> Callable[..., Any]:
    """Returns the rule of an overload `data`, of packed sequences."""

    def rule(data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, *options: Any) -> Any:
        states = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
        return _run_layers(implementations, data, batch_sizes, states, *options)

    return rule


_IMPLEMENTATIONS: tuple[tuple[Any, _LayerImplementations], ...] = (
    (aten.lstm, _make_implementations(_lstm_layer, layers.lstm_layer, _UNROLLED_LSTM)),
    (aten.gru, _make_implementations(_gru_layer, layers.gru_layer, _UNROLLED_GRU)),
    (aten.rnn_tanh, _make_implementations(partial(_rnn_layer, "tanh"), layers.rnn_layer, _UNROLLED_TANH)),
    (aten.rnn_relu, _make_implementations(partial(_rnn_layer, "relu"), layers.rnn_layer, _UNROLLED_RELU)),
)
# For `eager_dispatch.dispatch_like_eager`.
DISPATCHER_RULES = {
    overload: (rule(implementations),)
    for op, implementations in _IMPLEMENTATIONS
    for overload, rule in ((op.input, _rule_for_steps), (op.data, _rule_for_packed))
}


def mkldnn_rnn_layer(
    steps: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, hidden: torch.Tensor,
    cell: torch.Tensor, reverse: bool, batch_sizes: Any, mode: int, hidden_size: int, num_layers: int,
    has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> Any:  # fmt: skip
    """Runs one direction of one LSTM layer over `steps` [time, batch, inputs], as exported programs may call it.

    Mode 2 is LSTM in oneDNN's numbering, and the only mode that PyTorch uses; calls with other modes stay unchanged.
    """
    if mode != 2 or num_layers != 1 or bidirectional or batch_first or train:
        return NotImplemented
    weights = (w0, w1, w2, w3) if has_biases else (w0, w1)
    output, (last, state) = _lstm_layer(
        layers.lstm_layer.default, steps, (hidden[0], cell[0]), weights, has_biases, None, reverse
    )
    return output, last.unsqueeze(0), state.unsqueeze(0), steps.new_empty(0, dtype=torch.uint8)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.mkldnn_rnn_layer.default: mkldnn_rnn_layer,
    **{overload: rule for overload, (rule,) in DISPATCHER_RULES.items()},
}
