"""Lowers the gradients of recurrent layers: a loop over the steps, in the order opposite to that of the layer.

Each iteration computes the gradients of the sums that enter the gates of its step by one fused op, and multiplies them
by the weights of the states, for the gradients of the states before the step. These are carried in the type of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loops import LoopState, minus
from buddy.compiler.ops.precision import reject_precision
from buddy.compiler.ops.recurrent import copy_into_buffers, copy_to_own_buffers, insert_parts
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import Registry, SymbolTable, argument, value_of

ops_registry = Registry()


@dataclass(frozen=True)
class _LayerKind:
    """A kind of recurrent layer: LSTM, GRU or RNN, with `states` states and `gates` gates.

    `saved` has the number of parts [batch, width] of each tensor that the forward steps saved. `sums` is the number of
    lists of sums that enter the gates: 1 if the sums over inputs and states are added first, as in an LSTM; 2 in a GRU,
    first those over the inputs, then those over the states.

    `cell` maps what a step saved, and the gradients of the states after the step, to two lists: the gradients of the
    sums, and terms of the gradients of the last `skips` states before the step that skip the product with the weights.
    """

    states: int
    saved: tuple[int, ...]
    gates: int
    sums: int
    skips: int
    cell: Callable[[Sequence[Scalar], Sequence[Scalar]], tuple[list[Scalar], list[Scalar]]]


def _sigmoid_slope(y: Scalar) -> Scalar:
    """Returns the derivative of the sigmoid whose result is `y`."""
    return y * (1 - y)


def _tanh_slope(y: Scalar) -> Scalar:
    """Returns the derivative of the tanh whose result is `y`."""
    return 1 - y * y


def _lstm(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the `cell` of an LSTM; `states` are the gradients of the hidden and the cell state."""
    input_gate, forget_gate, new, output_gate, cell, previous = saved
    tanh = s.tanh(cell)
    cell_gradient = states[1] + states[0] * output_gate * _tanh_slope(tanh)
    sums = [
        cell_gradient * new * _sigmoid_slope(input_gate),
        cell_gradient * previous * _sigmoid_slope(forget_gate),
        cell_gradient * input_gate * _tanh_slope(new),
        states[0] * tanh * _sigmoid_slope(output_gate),
    ]
    return sums, [cell_gradient * forget_gate]


def _gru(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the `cell` of a GRU; `reset_sum` is the sum over the state that the reset gate multiplies."""
    reset, update, new, reset_sum, before = saved
    new_gradient = states[0] * (1 - update) * _tanh_slope(new)
    # Both lists of sums enter the gates reset and update in the same way.
    common = [new_gradient * reset_sum * _sigmoid_slope(reset), states[0] * (before - new) * _sigmoid_slope(update)]
    return [*common, new_gradient, *common, new_gradient * reset], [states[0] * update]


def _rnn(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the `cell` of an RNN with tanh; the step saved its state."""
    return [states[0] * _tanh_slope(saved[0])], []


def _relu_rnn(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the `cell` of an RNN with relu."""
    return [s.select(saved[0] > 0, states[0], 0)], []


def _layer_kind(node: Op) -> _LayerKind:
    """Returns the kind of the layer whose gradients `node` computes."""
    kinds = {
        "buddy.lstm_layer_backward.default": _LayerKind(
            states=2, saved=(4, 1, 1), gates=4, sums=1, skips=1, cell=_lstm
        ),
        "buddy.gru_layer_backward.default": _LayerKind(states=1, saved=(4, 1), gates=3, sums=2, skips=1, cell=_gru),
        "buddy.rnn_layer_backward.default": _LayerKind(states=1, saved=(1,), gates=1, sums=1, skips=0, cell=_rnn),
    }
    if argument(node, 4, "nonlinearity") == "relu":
        return replace(kinds[node.target], cell=_relu_rnn)
    return kinds[node.target]


@ops_registry.lowering("RecurrentBackwardOp")
def loop_backwards(node: Op, table: SymbolTable) -> list[ir.Value]:
    """Emits the loop over the steps.

    Returns the gradients of the sums [time, batch, gates * width], and of the initial states [batch, width].
    """
    kind, dtype = _layer_kind(node), node.tensor_meta.dtype
    wide = accumulator_type(dtype)
    values = [value_of(value, table) for value in node.args[: kind.states + len(kind.saved) + 2]]
    output_gradient, weight, saved = values[0], values[kind.states + 1], values[kind.states + 2 :]
    count, batch, width = st.shape_of(output_gradient)
    # An RNN, the only layer with one gate, has the argument `nonlinearity` before `reverse`.
    reverse = argument(node, len(values) + 1 if kind.gates == 1 else len(values), "reverse", False)
    reject_precision("rounding errors of its products would add up from step to step")
    carried = [cast_tensor(value, dtype, wide) for value in values[1 : kind.states + 1]]
    sums = [st.empty([count, batch, kind.gates * width], dtype) for _ in range(kind.sums)]
    state = LoopState([*copy_to_own_buffers(carried), *sums])

    def step(i: ir.Value) -> None:
        index = i if reverse else minus(minus(count, 1), i)
        states, sums = state.tensors[: kind.states], state.tensors[kind.states :]
        rows = [
            part
            for value, parts in zip((output_gradient, *saved), (1, *kind.saved), strict=True)
            for part in _slice_parts(value, parts, index, dtype)
        ]
        skipping, sum_gradients = _emit_step(kind, rows, states, dtype)
        gate_gradients = [sum_gradients[j * kind.gates : (j + 1) * kind.gates] for j in range(kind.sums)]
        sums = [insert_parts(part, into, index) for part, into in zip(gate_gradients, sums, strict=True)]
        columns = kind.gates * width
        row = st.slice_of(sums[-1], [index, 0, 0], [1, batch, columns], [1, 1, 1], [batch, columns], dtype)
        # The gradient of a GRU's state has a term that is not multiplied by the weights; the product is added to it.
        start = skipping[0] if kind.skips == kind.states else None
        product = st.contract(row, weight, "mk", "kn", "mn", wide, start)
        states_before = [product, *skipping] if start is None else [product]
        state.tensors = [*copy_into_buffers(states_before, states), *sums]

    state.each(0, count, step)
    first = [cast_tensor(value, wide, dtype) for value in state.tensors[: kind.states]]
    return [*state.tensors[kind.states :], *first]


def _slice_parts(value: ir.Value, count: int, index: ir.Value, dtype: TensorDType) -> list[ir.Value]:
    """Returns the `count` parts [batch, width] of step `index` of `value` [time, batch, count * width]."""
    _, batch, columns = st.shape_of(value)
    width = columns // count
    return [
        st.slice_of(value, [index, 0, j * width], [1, batch, width], [1, 1, 1], [batch, width], dtype)
        for j in range(count)
    ]


def _emit_step(
    kind: _LayerKind, rows: Sequence[ir.Value], states: Sequence[ir.Value], dtype: TensorDType
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Emits the cell as one op; `rows` are the gradient of the step's output, and what the step saved.

    Returns the terms that are not multiplied by the weights, in the memory of their states, and the gradients of the
    sums [batch, width].
    """
    # The op writes the terms that skip the weights to the memory of their states, which are its output operands.
    wide, input_count = accumulator_type(dtype), len(states) - kind.skips
    shape = st.shape_of(rows[0])
    operands = [*((row, dtype) for row in rows), *((state, wide) for state in states[:input_count])]
    outs = [*states[input_count:], *[st.empty(shape, dtype) for _ in range(kind.gates * kind.sums)]]

    def body(*values: ir.Value) -> list[ir.Value]:
        types = [*(type_ for _, type_ in operands), *[wide] * kind.skips]
        output, *scalars = (cast(Scalar(value, type_), wide) for value, type_ in zip(values, types, strict=False))
        saved, after = scalars[: len(rows) - 1], scalars[len(rows) - 1 :]
        sums, skipping = kind.cell(saved, [after[0] + output, *after[1:]])
        return [*(x.value for x in skipping), *(cast(x, dtype).value for x in sums)]

    results = st.generic(
        [value for value, _ in operands], [[0, 1]] * len(operands), outs, [[0, 1]] * len(outs), [st.PARALLEL] * 2, body
    )
    return results[: kind.skips], results[kind.skips :]
