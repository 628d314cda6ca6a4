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
from buddy.compiler.ops.precision import refuse_precision
from buddy.compiler.ops.recurrent import insert_parts, into_buffers, own_buffers
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import SymbolTable, argument, value_of

ops_registry = Registry()


@dataclass(frozen=True)
class _Kind:
    """A kind of layer: its numbers of states, of parts of each tensor that the steps saved, of gates, and
    of lists of sums.

    `cell` maps what a step saved, and the gradients of the states after it, to lists of the gradients of the sums that
    enter the gates, and to the parts of the gradients of the last `skips` states before it that skip the product with
    the weights. Of two lists of sums, the first is that of the inputs.
    """

    states: int
    saved: tuple[int, ...]
    gates: int
    sums: int
    skips: int
    cell: Callable[[Sequence[Scalar], Sequence[Scalar]], tuple[list[Scalar], list[Scalar]]]


def _of_sigmoid(y: Scalar) -> Scalar:
    return y * (1 - y)


def _of_tanh(y: Scalar) -> Scalar:
    return 1 - y * y


def _lstm(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    enter, forget, new, leave, cell, before = saved
    tanh = s.tanh(cell)
    of_cell = states[1] + states[0] * leave * _of_tanh(tanh)
    sums = [
        of_cell * new * _of_sigmoid(enter), of_cell * before * _of_sigmoid(forget), of_cell * enter * _of_tanh(new),
        states[0] * tanh * _of_sigmoid(leave),
    ]  # fmt: skip
    return sums, [of_cell * forget]


def _gru(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    reset, update, new, multiplied, before = saved
    of_new = states[0] * (1 - update) * _of_tanh(new)
    both = [of_new * multiplied * _of_sigmoid(reset), states[0] * (before - new) * _of_sigmoid(update)]
    return [*both, of_new, *both, of_new * reset], [states[0] * update]


def _rnn(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    return [states[0] * _of_tanh(saved[0])], []


def _relu(saved: Sequence[Scalar], states: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    return [s.select(saved[0] > 0, states[0], 0)], []


def _kind_of(node: Op) -> _Kind:
    kinds = {
        "buddy.lstm_layer_backward.default": _Kind(2, (4, 1, 1), 4, 1, 1, _lstm),
        "buddy.gru_layer_backward.default": _Kind(1, (4, 1), 3, 2, 1, _gru),
        "buddy.rnn_layer_backward.default": _Kind(1, (1,), 1, 1, 0, _rnn),
    }
    if argument(node, 4, "nonlinearity") == "relu":
        return replace(kinds[node.target], cell=_relu)
    return kinds[node.target]


@ops_registry.lowering("RecurrentBackwardOp")
def loop_backwards(node: Op, table: SymbolTable) -> list[ir.Value]:
    """Emits the loop. Returns the gradients of the sums [time, batch, gates * width], and of the first states."""
    kind, dtype = _kind_of(node), node.tensor_meta.dtype
    wide = accumulator_type(dtype)
    values = [value_of(value, table) for value in node.args[: kind.states + len(kind.saved) + 2]]
    output, weight, saved = values[0], values[kind.states + 1], values[kind.states + 2 :]
    count, batch, width = st.shape_of(output)
    reverse = argument(node, len(values) + (kind.gates == 1), "reverse", False)
    refuse_precision("rounding errors of its products would add up from step to step")
    carried = [cast_tensor(value, dtype, wide) for value in values[1 : kind.states + 1]]
    sums = [st.empty([count, batch, kind.gates * width], dtype) for _ in range(kind.sums)]
    state = LoopState([*own_buffers(carried), *sums])

    def step(i: ir.Value) -> None:
        index = i if reverse else minus(minus(count, 1), i)
        states, sums = state.tensors[: kind.states], state.tensors[kind.states :]
        rows = [
            part
            for value, parts in zip((output, *saved), (1, *kind.saved), strict=True)
            for part in _parts(value, parts, index, dtype)
        ]
        skipping, parts = _gradients_of_step(kind, rows, states, dtype)
        of_gates = [parts[j * kind.gates : (j + 1) * kind.gates] for j in range(kind.sums)]
        sums = [insert_parts(part, into, index) for part, into in zip(of_gates, sums, strict=True)]
        columns = kind.gates * width
        row = st.slice_of(sums[-1], [index, 0, 0], [1, batch, columns], [1, 1, 1], [batch, columns], dtype)
        # A GRU's state also skips the product.
        start = skipping[0] if kind.skips == kind.states else None
        product = st.contract(row, weight, "mk", "kn", "mn", wide, start)
        after = [product, *skipping] if start is None else [product]
        state.tensors = [*into_buffers(after, states), *sums]

    state.each(0, count, step)
    first = [cast_tensor(value, wide, dtype) for value in state.tensors[: kind.states]]
    return [*state.tensors[kind.states :], *first]


def _parts(value: ir.Value, count: int, index: ir.Value, dtype: TensorDType) -> list[ir.Value]:
    """The parts [batch, width] of one step of `value` [time, batch, count * width]."""
    _, batch, columns = st.shape_of(value)
    width = columns // count
    return [
        st.slice_of(value, [index, 0, j * width], [1, batch, width], [1, 1, 1], [batch, width], dtype)
        for j in range(count)
    ]


def _gradients_of_step(
    kind: _Kind, rows: Sequence[ir.Value], states: Sequence[ir.Value], dtype: TensorDType
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Emits one op that computes the results of the cell: what skips the product, in the memory of its state, and the
    gradients of the sums [batch, width].
    """
    wide, read = accumulator_type(dtype), len(states) - kind.skips
    shape = st.shape_of(rows[0])
    operands = [*((row, dtype) for row in rows), *((state, wide) for state in states[:read])]
    outs = [*states[read:], *[st.empty(shape, dtype) for _ in range(kind.gates * kind.sums)]]

    def body(*values: ir.Value) -> list[ir.Value]:
        types = [*(t for _, t in operands), *[wide] * kind.skips]
        output, *scalars = (cast(Scalar(value, t), wide) for value, t in zip(values, types, strict=False))
        saved, after = scalars[: len(rows) - 1], scalars[len(rows) - 1 :]
        sums, skipping = kind.cell(saved, [after[0] + output, *after[1:]])
        return [*(x.value for x in skipping), *(cast(x, dtype).value for x in sums)]

    results = st.generic(
        [value for value, _ in operands], [[0, 1]] * len(operands), outs, [[0, 1]] * len(outs), [st.PARALLEL] * 2, body
    )
    return results[: kind.skips], results[kind.skips :]
