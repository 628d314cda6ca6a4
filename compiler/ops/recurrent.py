"""Lowers layers of recurrent networks: one product for the inputs of all steps, then a loop over the steps.

Each iteration multiplies the hidden state by the weights of the states, and computes the next states by one fused op.
The arguments of the layers are defined in `runtime/recurrent_ops.py`: the steps [time, batch, inputs], one or two
initial states [batch, outputs], four weights, one more argument of some ops, the batch sizes of packed sequences, and
whether the order of steps is reversed.

The registry `unrolled_registry` has the same lowerings with a copy of the loop's body for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import product as size_product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, bufferization, ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.elementwise.arithmetic import sigmoid
from buddy.compiler.ops.indexing import fall_back_if_outside
from buddy.compiler.ops.loops import LoopState, compare, element, minus, plus, position, scalar_to_index
from buddy.compiler.ops.precision import reject_precision
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, value_of

ops_registry = Registry()
unrolled_registry = Registry()
_OPS = ("LstmLayerOp", "GruLayerOp", "RnnLayerOp")

# Computes one element of a step: `cell(input sums, state sums, states)` returns the next states, of which the first is
# the output, and the values that the overload `saving` also returns. The sums have one scalar per gate, with the bias.
Cell = Callable[[Sequence[Scalar], Sequence[Scalar], Sequence[Scalar]], tuple[list[Scalar], list[Scalar]]]


def _lstm(
    input_sums: Sequence[Scalar], state_sums: Sequence[Scalar], states: Sequence[Scalar]
) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the cell of an LSTM, whose states are the hidden and the cell state."""
    sums = [x + y for x, y in zip(input_sums, state_sums, strict=True)]
    gates = [sigmoid(sums[0]), sigmoid(sums[1]), s.tanh(sums[2]), sigmoid(sums[3])]
    input_gate, forget_gate, new, output_gate = gates
    cell = forget_gate * states[1] + input_gate * new
    return [output_gate * s.tanh(cell), cell], gates


def _gru(
    input_sums: Sequence[Scalar], state_sums: Sequence[Scalar], states: Sequence[Scalar]
) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the cell of a GRU. As in PyTorch, the reset gate multiplies the sum over the state, not the state."""
    reset, update = (sigmoid(x + y) for x, y in zip(input_sums[:2], state_sums[:2], strict=True))
    new = s.tanh(input_sums[2] + reset * state_sums[2])
    return [(states[0] - new) * update + new], [reset, update, new, state_sums[2]]


def _rnn(
    function: Callable[[Scalar], Scalar],
    input_sums: Sequence[Scalar],
    state_sums: Sequence[Scalar],
    _: Sequence[Scalar],
) -> tuple[list[Scalar], list[Scalar]]:
    """Computes the cell of an RNN with the activation `function`. Its state, the output, is not saved again."""
    return [function(input_sums[0] + state_sums[0])], []


class _CellKind(NamedTuple):
    """The number of gates, of states and of saved parts of a cell, and how it computes one element."""

    gates: int
    states: int
    saves: int
    cell: Cell


_KINDS: dict[str, _CellKind] = {
    "LstmLayerOp": _CellKind(gates=4, states=2, saves=4, cell=_lstm),
    "GruLayerOp": _CellKind(gates=3, states=1, saves=4, cell=_gru),
    "RnnLayerOp": _CellKind(gates=1, states=1, saves=0, cell=partial(_rnn, s.tanh)),
}


class _Weights(NamedTuple):
    """The weights [gates * width, …] of inputs and hidden state, and their biases [gates * width], or `None`."""

    inputs: Any
    hidden: Any
    input_bias: Any
    hidden_bias: Any


@dataclass
class _Layer:
    """The operands of a layer. `states` are the initial hidden state [batch, outputs], and an LSTM's cell state.

    `projection` is that of an LSTM whose hidden state is narrower than its cell, or `None`. `batch_sizes` is the node
    with the number of sequences in each step of packed sequences, or `None`.

    A layer returns the first `returned_states` states of each step; for gradients, also `saves` parts of its cell.
    """

    node: Op
    gates: int
    returned_states: int
    saves: int
    cell: Cell
    states: list[Any]
    weights: _Weights
    projection: Any
    batch_sizes: Any
    reverse: bool

    @property
    def dtype(self) -> TensorDType:
        return self.node.tensor_meta.dtype


def _operand(node: Op, table: SymbolTable, index: int, name: str) -> Any:
    """Returns the MLIR value of a tensor argument, or `None` if the argument is `None` or omitted."""
    value = argument(node, index, name)
    return None if value is None else value_of(value, table)


def _layer_of(node: Op, table: SymbolTable) -> _Layer:
    """Reads the arguments of a node, except the steps."""
    kind = type(node).__name__
    gates, state_count, saves, cell = _KINDS[kind]
    is_saving = node.target.endswith(".saving")
    # The positions of the arguments: the weights follow the steps and the states.
    first_weight = 1 + state_count
    after_weights = first_weight + 4
    batch_sizes = after_weights if kind == "GruLayerOp" else after_weights + 1
    names = ("input_weight", "hidden_weight", "input_bias", "hidden_bias")
    if kind == "RnnLayerOp" and argument(node, after_weights, "nonlinearity", "tanh") == "relu":
        cell = partial(_rnn, lambda x: s.maximum(x, 0))
    return _Layer(
        node, gates, returned_states=state_count if is_saving else 1, saves=saves if is_saving else 0, cell=cell,
        states=[value_of(value, table) for value in node.args[1:first_weight]],
        weights=_Weights(*(_operand(node, table, first_weight + i, name) for i, name in enumerate(names))),
        projection=_operand(node, table, after_weights, "projection") if kind == "LstmLayerOp" else None,
        batch_sizes=argument(node, batch_sizes, "batch_sizes"),
        reverse=bool(argument(node, batch_sizes + 1, "reverse", False)),
    )  # fmt: skip


def _input_sums(layer: _Layer, steps: ir.Value) -> ir.Value:
    """Multiplies all steps [..., inputs] by the weights of the inputs, and adds their bias: [..., gates * width]."""
    (*outer, depth), dtype = st.shape_of(steps), layer.dtype
    wide = accumulator_type(dtype)
    rows = st.reshape(steps, [size_product(outer), depth], dtype)
    sums = st.contract(rows, layer.weights.inputs, "mk", "nk", "mn", wide)
    if layer.weights.input_bias is not None:
        operands = [(sums, wide), (layer.weights.input_bias, dtype)]
        sums = st.pointwise(operands, st.shape_of(sums), wide, lambda x, y: x + cast(y, wide))
    return st.reshape(sums, [*outer, st.shape_of(sums)[-1]], wide)


def _next_states(layer: _Layer, inputs: Any, states: Sequence[Any], active: Any = None) -> tuple[list[Any], list[Any]]:
    """Returns the states after a step, and the parts [batch, width] that the layer saves.

    `inputs` [batch, gates * width] are the sums over the inputs of the step. If `active` is given, only the first
    `active` sequences have this step; the others keep their states.
    """
    dtype, wide = layer.dtype, accumulator_type(layer.dtype)
    sums = st.contract(states[0], layer.weights.hidden, "mk", "nk", "mn", wide)
    batch, columns = st.shape_of(sums)
    shape, bias = [batch, columns // layer.gates], layer.weights.hidden_bias
    operands = [(part, wide) for value in (inputs, sums) for part in _split_gates(value, layer.gates, wide)]
    if bias is not None:
        operands += [(part, dtype) for part in _split_gates(bias, layer.gates, dtype)]
    # The new states replace the old ones, which no other op reads after this one. A projected state has another width,
    # and the cell does not read it.
    outs = [st.empty(shape, dtype) if layer.projection is not None else states[0], *states[1:]]
    outs += [st.empty(shape, dtype) for _ in range(layer.saves)]

    def body(*values: ir.Value) -> list[ir.Value]:
        types = [*(t for _, t in operands), *[dtype] * len(outs)]
        scalars = [cast(Scalar(value, t), wide) for value, t in zip(values, types, strict=True)]
        input_sums, state_sums = scalars[: layer.gates], scalars[layer.gates : 2 * layer.gates]
        if bias is not None:
            state_sums = [x + y for x, y in zip(state_sums, scalars[2 * layer.gates :], strict=False)]
        old_states = scalars[len(operands) : len(operands) + len(states)]
        new_states, saved = layer.cell(input_sums, state_sums, old_states)
        results = [cast(x, dtype).value for x in (*new_states, *saved[: layer.saves])]
        if active is None:
            return results
        is_active = compare("slt", st.loop_index(0), active).value
        return [arith.select(is_active, x, y) for x, y in zip(results, values[len(operands) :], strict=True)]

    dims = [st.broadcast_dims(st.shape_of(value), shape) for value, _ in operands]
    values = [value for value, _ in operands]
    results = st.generic(values, dims, outs, [[0, 1]] * len(outs), [st.PARALLEL] * 2, body)
    if layer.projection is not None:
        projected = st.contract(results[0], layer.projection, "mk", "nk", "mn", wide)
        row_count = st.shape_of(projected)[0] if active is None else active
        results[0] = _replace_first_rows(states[0], cast_tensor(projected, wide, dtype), row_count)
    # A loop carries each state in one buffer. Passes may give the op another destination, which it does not read.
    return copy_into_buffers(results[: len(states)], states), results[len(states) :]


def _split_gates(value: ir.Value, gates: int, dtype: TensorDType) -> list[ir.Value]:
    """Splits the last dim of sums [batch, gates * width] or of a bias [gates * width] into one part per gate."""
    *batch, columns = st.shape_of(value)
    width = columns // gates
    sizes, leading = [*batch, width], [0] * len(batch)
    return [
        st.slice_of(value, [*leading, gate * width], sizes, [1] * len(sizes), sizes, dtype) for gate in range(gates)
    ]


def copy_into_buffers(values: Sequence[ir.Value], buffers: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns `values` in the memory of `buffers`, tensors that a loop carries."""
    return [
        bufferization.materialize_in_destination(old.type, new, old) for new, old in zip(values, buffers, strict=True)
    ]


def copy_to_own_buffers(states: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns copies of the states before the first step: the loop writes into them."""
    return [bufferization.alloc_tensor(state.type, [], copy=state) for state in states]


def _run(layer: _Layer, steps: ir.Value, unroll: bool) -> list[ir.Value]:
    """Emits a layer over sequences of one length. Returns the output, the last states, and the saved values."""
    count, batch, _ = st.shape_of(steps)
    inputs, dtype, wide = _input_sums(layer, steps), layer.dtype, accumulator_type(layer.dtype)
    columns, width, state_count = st.shape_of(inputs)[-1], st.shape_of(layer.states[0])[-1], len(layer.states)
    widths = [width] * layer.returned_states + ([layer.saves * width] if layer.saves else [])
    step_tensors = [st.empty([count, batch, size], dtype) for size in widths]
    state = LoopState([*copy_to_own_buffers(layer.states), *step_tensors])

    def step(i: ir.Value) -> None:
        index = minus(minus(count, 1), i) if layer.reverse else i
        states, outputs = state.tensors[:state_count], state.tensors[state_count:]
        row = st.slice_of(inputs, [index, 0, 0], [1, batch, columns], [1, 1, 1], [batch, columns], wide)
        states, saved = _next_states(layer, row, states)
        values = [*([value] for value in states[: layer.returned_states]), *([saved] if saved else [])]
        step_tensors = [insert_parts(value, into, index) for value, into in zip(values, outputs, strict=True)]
        state.tensors = [*states, *step_tensors]

    if not unroll:
        state.each(0, count, step)
    elif isinstance(count, int):
        for i in range(count):
            step(position(i))
    else:
        raise LoweringError("the number of steps is dynamic, so they cannot be unrolled")
    states, (out, *saved) = state.tensors[:state_count], state.tensors[state_count:]
    # An LSTM has saved cells, then gates; its results have them in the other order.
    return [out, *states, *reversed(saved)]


def insert_parts(parts: Sequence[ir.Value], into: ir.Value, index: ir.Value) -> ir.Value:
    """Returns `into` [time, batch, columns] with `parts` [batch, width] side by side in the columns of a step."""
    batch, width = st.shape_of(parts[0])
    for number, part in enumerate(parts):
        into = st.insert_slice(part, into, [index, 0, number * width], [1, batch, width], [1, 1, 1])
    return into


def _run_packed(layer: _Layer, steps: ir.Value, sizes: ir.Value) -> list[ir.Value]:
    """Emits a layer over packed sequences, whose rows [rows, inputs] are sorted by step: those of a step are adjacent.

    Each step computes a row for every sequence; sequences that lack the step keep their states. So that the rows of all
    steps are blocks of one size, which may extend beyond the rows of the step, the ends of tensors are padded.
    """
    dtype, wide, size_dtype = layer.dtype, accumulator_type(layer.dtype), layer.batch_sizes.tensor_meta.dtype
    (rows, depth), (count,), (batch, width) = map(st.shape_of, (steps, sizes, layer.states[0]))
    padded = st.insert_slice(steps, st.filled(0, [rows + batch, depth], dtype), [0, 0], [rows, depth], [1, 1])
    inputs, columns = _input_sums(layer, padded), st.shape_of(layer.weights[0])[0]
    # Carries the row that separates the rows of the steps so far from the others: forwards the row after them,
    # backwards their first row.
    initial_bound = position(rows if layer.reverse else 0)
    state = LoopState([*copy_to_own_buffers(layer.states), st.filled(0, [rows + batch, width], dtype), initial_bound])

    def step(i: ir.Value) -> None:
        index = minus(minus(count, 1), i) if layer.reverse else i
        *states, out, bound = state.tensors
        active = scalar_to_index(element(sizes, [index], size_dtype))
        # Sizes whose sum is not the number of rows are an error in PyTorch; here they must not leave the tensors.
        row = arith.minsi(arith.maxsi(minus(bound, active) if layer.reverse else bound, position(0)), position(rows))
        block = st.slice_of(inputs, [row, 0], [batch, columns], [1, 1], [batch, columns], wide)
        states, _ = _next_states(layer, block, states, active)
        old_rows = st.slice_of(out, [row, 0], [batch, width], [1, 1], [batch, width], dtype)
        merged = _replace_first_rows(old_rows, states[0], active)
        out = st.insert_slice(merged, out, [row, 0], [batch, width], [1, 1])
        state.tensors = [*states, out, row if layer.reverse else plus(bound, active)]

    state.each(0, count, step)
    *states, out, _ = state.tensors
    return [st.slice_of(out, [0, 0], [rows, width], [1, 1], [rows, width], dtype), *states]


def _replace_first_rows(old: ir.Value, new: ir.Value, count: ir.Value) -> ir.Value:
    """Returns `old` with its first `count` rows replaced by those of `new`, in the memory of `old`."""

    def body(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        return [arith.select(compare("slt", st.loop_index(0), count).value, x, y)]

    return st.generic([new], [[0, 1]], [old], [[0, 1]], [st.PARALLEL] * 2, body)[0]


def _lower(node: Op, table: SymbolTable, unroll: bool) -> list[Any]:
    """Lowers a layer to a loop or, with `unroll`, to a copy of the loop's body for each step.

    Raises `LoweringError` for the cases that the messages name.
    """
    layer, steps = _layer_of(node, table), value_of(node.args[0], table)
    if any(0 in st.shape_of(value) for value in (steps, *layer.states)):
        raise LoweringError("a layer without steps, sequences or outputs is an error in PyTorch")
    reject_precision("rounding errors of its products would add up from step to step")
    if layer.saves and (layer.batch_sizes is not None or layer.projection is not None):
        raise LoweringError("gates are not saved for packed sequences and projections")
    if layer.batch_sizes is None:
        return _run(layer, steps, unroll)
    if unroll:
        raise LoweringError("the lengths of packed sequences are data, so their steps cannot be unrolled")
    # More sequences than there are states would be read and written outside of the states.
    fall_back_if_outside(node, table, [(layer.batch_sizes, st.shape_of(layer.states[0])[0] + 1)])
    return _run_packed(layer, steps, value_of(layer.batch_sizes, table))


@ops_registry.lowering(*_OPS)
def loop_over_steps(node: Op, table: SymbolTable) -> list[ir.Value]:
    return _lower(node, table, unroll=False)


@unrolled_registry.lowering(*_OPS)
def unroll_steps(node: Op, table: SymbolTable) -> list[ir.Value]:
    return _lower(node, table, unroll=True)
