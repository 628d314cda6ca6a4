"""Lowers scans and reductions of consecutive segments of a dim, in the order of the elements.

Scans are cumulative sums, products, maxima, minima and log-sum-exps. Embedding bags are segments of rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.graph.sizes import Dim, product
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.data_movement import compute_tensor
from buddy.compiler.ops.indexing import clamp_index, depends_on_inputs, fall_back_if, fall_back_if_outside
from buddy.compiler.ops.loops import (
    compare,
    element,
    for_each,
    index_to_scalar,
    insert,
    minus,
    number,
    pick,
    plus,
    position,
    scalar_to_index,
)
from buddy.compiler.ops.matrices.stack import results_or_eager
from buddy.compiler.ops.scalar import Combine, Scalar, cast
from buddy.compiler.ops.structured import accumulator_type, empty, filled, pointwise, reshape, shape_of
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, normalize_dim, value_of

# ---- scans along a dim -----------------------------------------------------------------------------------------------


ops_registry = Registry()
lowering = ops_registry.lowering

# The types in which PyTorch accumulates scans on the CPU (`at::acc_type`).
_ACCUMULATOR_TYPES = {
    TensorDType.Float16: TensorDType.Float32,
    TensorDType.BFloat16: TensorDType.Float32,
    TensorDType.Float32: TensorDType.Float64,
    TensorDType.Complex64: TensorDType.Complex128,
}
# Maps `(element, position of the element along the dim, *states)` to the next states.
Step = Callable[..., Sequence[Scalar]]


def scan(
    node: Op, symbol_table: SymbolTable, states: Sequence[tuple[int | float, TensorDType]], step: Step
) -> list[ir.Value]:
    """Scans along the node's dim. For each of `states`, returns a tensor with the state after each element.

    Each of `states` is (initial value, type), and belongs to the result of the node with the same number. The loop
    visits elements in memory order for any dim; a tensor holds the current state of each line along the dim. Complex
    tensors have both parts along an additional last dim.
    """
    dtype = node.args[0].tensor_meta.dtype
    value = value_of(node.args[0], symbol_table)
    shape = shape_of(value)[: len(node.args[0].tensor_meta.shape)]
    if not shape:
        shape = (1,)
        value = reshape(value, TensorMeta(shape, dtype).stored.shape, dtype.part)
    axis = normalize_dim(node.args[1], len(shape))
    metas = [meta for meta in node.metas if meta is not None]
    lines = tuple(size for i, size in enumerate(shape) if i != axis)
    current = [_filled(initial, lines, type_) for initial, type_ in states]
    outs = [empty(stored.shape, stored.dtype) for stored in (TensorMeta(shape, meta.dtype).stored for meta in metas)]

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        line, current, outs = [p for i, p in enumerate(indices) if i != axis], carried[:count], carried[count:]
        old_states = [element(tensor, line, type_) for tensor, (_, type_) in zip(current, states, strict=True)]
        new_states = step(element(value, indices, dtype), index_to_scalar(indices[axis]), *old_states)
        current = [insert(x, line, tensor) for x, tensor in zip(new_states, current, strict=True)]
        results = zip(new_states, metas, outs, strict=True)
        return current + [insert(cast(x, meta.dtype), indices, tensor) for x, meta, tensor in results]

    count = len(states)
    results = for_each(shape, [*current, *outs], visit)[count:]
    stored_metas = [meta.stored for meta in metas]
    return [reshape(result, meta.shape, meta.dtype) for result, meta in zip(results, stored_metas, strict=True)]


def _filled(value: float, shape: tuple[Dim, ...], dtype: TensorDType) -> ir.Value:
    """Returns a tensor of `shape` whose elements are all the real number `value`, also for a complex type."""
    if not dtype.is_complex:
        return filled(value, shape, dtype)
    parts = TensorMeta(shape, dtype).stored.shape

    def body(*indices: Scalar) -> Scalar:
        zero = number(0, dtype.part)
        return s.select(indices[-1].compare("eq", 0), zero.like(value), zero)

    return compute_tensor(parts, dtype.part, body)


def _fold(
    node: Op, symbol_table: SymbolTable, initial: float, combine: Callable[[Scalar, Scalar], Scalar]
) -> list[ir.Value]:
    """Scans with one number as the state, in PyTorch's accumulator type; first casts elements to the result's type."""
    result = node.tensor_meta.dtype
    wide = _ACCUMULATOR_TYPES.get(result, result)

    def step(x: Scalar, _position: Scalar, accumulated: Scalar) -> list[Scalar]:
        return [combine(accumulated, cast(cast(x, result), wide))]

    return scan(node, symbol_table, [(initial, wide)], step)


@lowering("CumsumOp")
def cumsum(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _fold(node, symbol_table, 0, lambda total, x: total + x)


@lowering("CumprodOp")
def cumprod(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _fold(node, symbol_table, 1, lambda product, x: product * x)


@lowering("LogcumsumexpOp")
def logcumsumexp(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _fold(node, symbol_table, float("-inf"), _log_add_exp)


def _log_add_exp(x: Scalar, y: Scalar) -> Scalar:
    """Returns `log(exp(x) + exp(y))`. Two equal infinities yield that infinity; a NaN yields NaN."""
    low, high = s.minimum(x, y), s.maximum(x, y)
    infinite = low.compare("eq", high) & s.absolute(low).compare("eq", float("inf"))
    return s.select(infinite, high, s.log1p(s.exp(low - high)) + high)


@lowering("CummaxOp")
def cummax(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _running_extreme(node, symbol_table, largest=True)


@lowering("CumminOp")
def cummin(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _running_extreme(node, symbol_table, largest=False)


def _running_extreme(node: Op, symbol_table: SymbolTable, largest: bool) -> list[ir.Value]:
    """Returns the running extremes and their positions.

    Among equal elements, the position is that of the last one. After a NaN, the extreme is NaN, at the last NaN.
    """
    dtype = node.args[0].tensor_meta.dtype
    low, high = s.limits(dtype)

    def step(x: Scalar, position: Scalar, best: Scalar, best_position: Scalar) -> list[Scalar]:
        replaces = x.compare("ge" if largest else "le", best)
        if dtype.is_float:
            # Comparisons with NaN are false: once the extreme is NaN, only another NaN replaces it.
            replaces = replaces | x.compare("ne", x)
        return [s.select(replaces, x, best), s.select(replaces, position, best_position)]

    states = [(low if largest else high, dtype), (0, TensorDType.Int64)]
    return scan(node, symbol_table, states, step)


# ---- segments and embedding bags -------------------------------------------------------------------------------------


# The values of `mode` in `embedding_bag`.
_SUM, _MEAN, _MAX = range(3)


@lowering("EmbeddingBagOp")
def embedding_bag(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns only the first result, of shape [bags, width]; the other results are for the backward pass.

    The arguments are the table, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
    include_last_offset, padding_idx. Raises `LoweringError` if a node reads another result.
    """
    if any(user.args[1] for user in node._children if isinstance(user, GetItemOp)):
        raise LoweringError("results for the backward pass of embedding_bag are not computed")
    meta, mode = node.tensor_meta, argument(node, 4, "mode", _SUM)
    wide = accumulator_type(meta.dtype)
    bags, width = meta.shape
    row_count, index_count = (arg.tensor_meta.shape[0] for arg in node.args[:2])
    # An offset may be equal to the number of indices, whereas an index must be less than the number of rows.
    fall_back_if_outside(node, symbol_table, [(node.args[1], row_count), (node.args[2], index_count + 1)])
    _check_offsets(node, symbol_table)
    initial = [filled(0, meta.shape, wide), filled(0, [bags, 1], TensorDType.Int64)]
    read_row = _reader(node, symbol_table, wide)
    padding = argument(node, 8, "padding_idx", -1)

    def reduce_bag(bag_indices: list[ir.Value], sums_and_counts: list[ir.Value]) -> list[ir.Value]:
        (bag,) = bag_indices
        count_indices = [bag, position(0)]
        start, end = _bag_range(node, symbol_table, bag)

        def add_row(offset: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
            all_sums, counts = carried
            index, read_element = read_row(plus(start, offset[0]))
            is_counted, count = index.compare("ne", padding), element(counts, count_indices, TensorDType.Int64)

            def add_element(column: list[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
                target = [bag, column[0]]
                x, old = read_element(column[0]), element(sums[0], target, wide)
                larger = s.select(count.compare("eq", 0) | (x > old), x, old)
                return [insert(s.select(is_counted, larger if mode == _MAX else old + x, old), target, sums[0])]

            (all_sums,) = for_each([width], [all_sums], add_element)
            return [all_sums, insert(count + cast(is_counted, TensorDType.Int64), count_indices, counts)]

        return for_each([minus(end, start)], sums_and_counts, add_row)

    sums, counts = for_each([bags], initial, reduce_bag)

    def divide_if_mean(x: Scalar, count: Scalar) -> Scalar:
        return cast(x / cast(s.maximum(count, 1), wide) if mode == _MEAN else x, meta.dtype)

    return [pointwise([(sums, wide), (counts, TensorDType.Int64)], meta.shape, meta.dtype, divide_if_mean)]


def _check_offsets(node: Op, symbol_table: SymbolTable) -> None:
    """Emits a check that falls back to eager if the offsets do not start at 0, or decrease.

    With `include_last_offset`, the last offset must also be the number of indices.
    """
    if 0 in node.args[2].tensor_meta.shape or not depends_on_inputs(node.args[2], symbol_table):
        return
    offsets, offset_type = value_of(node.args[2], symbol_table), node.args[2].tensor_meta.dtype
    count, length = shape_of(offsets)[0], shape_of(value_of(node.args[1], symbol_table))[0]

    def offset(bag: ir.Value) -> Scalar:
        return cast(element(offsets, [bag], offset_type), TensorDType.Int64)

    def count_decreases(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        (bag,) = indices
        previous = pick(compare("eq", bag, 0), position(0), minus(bag, 1))
        decreases = offset(previous) > offset(bag)
        return [(Scalar(carried[0], TensorDType.Int64) + cast(decreases, TensorDType.Int64)).value]

    (decreases,) = for_each([count], [number(0, TensorDType.Int64).value], count_decreases)
    invalid = Scalar(decreases, TensorDType.Int64).compare("ne", 0) | offset(position(0)).compare("ne", 0)
    if argument(node, 7, "include_last_offset", False):
        invalid = invalid | offset(minus(position(count), 1)).compare("ne", index_to_scalar(position(length)))
    fall_back_if(node, symbol_table, invalid, "the offsets do not start at 0, decrease, or do not end at the length")


# Maps a column to the element of a row.
RowReader = Callable[[ir.Value], Scalar]


def _reader(node: Op, symbol_table: SymbolTable, wide: TensorDType) -> Callable[[ir.Value], tuple[Scalar, RowReader]]:
    """Returns a function that maps a position among the indices to the index, and to a reader of that row of the table.

    The reader maps a column to the element, multiplied by the weight of the position.
    """
    table, indices = (value_of(arg, symbol_table) for arg in node.args[:2])
    dtype, index_type = (arg.tensor_meta.dtype for arg in node.args[:2])
    weights = argument(node, 6, "per_sample_weights")

    def read_row(index_position: ir.Value) -> tuple[Scalar, RowReader]:
        index = element(indices, [index_position], index_type)
        clamped = clamp_index(index, shape_of(table)[0])

        def read_element(column: ir.Value) -> Scalar:
            x = cast(element(table, [clamped, column], dtype), wide)
            return x if weights is None else x * element(value_of(weights, symbol_table), [index_position], dtype)

        return index, read_element

    return read_row


def _bag_range(node: Op, symbol_table: SymbolTable, bag: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns the start and end of a bag among the indices; the last bag extends to the last index."""
    offsets, offset_type = value_of(node.args[2], symbol_table), node.args[2].tensor_meta.dtype
    count, length = shape_of(offsets)[0], shape_of(value_of(node.args[1], symbol_table))[0]

    def offset(bag: ir.Value) -> ir.Value:
        value = scalar_to_index(element(offsets, [bag], offset_type))
        return arith.minsi(arith.maxsi(value, position(0)), position(length))

    next_bag = plus(bag, 1)
    has_next = compare("slt", next_bag, count)
    return offset(bag), pick(has_next, offset(pick(has_next, next_bag, bag)), length)


# For each mode: the function that adds an element to the result so far, and the initial value of a segment.
_MODES: dict[str, tuple[Combine, float]] = {
    "sum": (lambda old, new: old + new, 0),
    "mean": (lambda old, new: old + new, 0),
    "prod": (lambda old, new: old * new, 1),
    "max": (s.maximum, -math.inf),
    "min": (s.minimum, math.inf),
}
_FLAG_TYPE = TensorDType.Int32


@ops_registry.lowering("SegmentReduceOp")
def segment_reduce(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Reduces the segments of the dim `axis` that the keyword `lengths` or `offsets` defines.

    Falls back to eager if lengths are negative, or do not add up to the size of the dim.
    """
    data, meta, axis = node.args[0], node.tensor_meta, node.kwargs.get("axis", 0)
    shape, lengths, offsets = data.tensor_meta.shape, node.kwargs.get("lengths"), node.kwargs.get("offsets")
    if (lengths is None and offsets is None) or 0 in (*shape, *meta.shape):
        raise LoweringError("the tensor is empty, or the segments are defined by indices")
    outer, inner = product(shape[:axis]), product(shape[axis + 1 :])
    segment_count, dtype = meta.shape[axis], meta.dtype
    flat = reshape(value_of(data, symbol_table), [outer, shape[axis], inner], dtype)
    size, is_by_length = shape[axis], offsets is None
    # The lengths [outer, segments], or the offsets [outer, segments + 1].
    limits: Any = lengths if is_by_length else offsets
    limit_type = limits.tensor_meta.dtype
    limit_rows = reshape(value_of(limits, symbol_table), [outer, limits.tensor_meta.shape[-1]], limit_type)

    def segment_range(segment: list[ir.Value], previous_end: ir.Value) -> tuple[ir.Value, ir.Value, Scalar]:
        """Returns start and end of a segment, and whether its length is invalid."""
        if not is_by_length:
            start, end = (element(limit_rows, [segment[0], plus(segment[1], i)], limit_type) for i in (0, 1))
            return _clamp(start, size), _clamp(end, size), number(False, TensorDType.Bool)
        length = element(limit_rows, segment, limit_type)
        first = pick(compare("eq", segment[1], 0), 0, previous_end)
        return first, plus(first, _clamp(length, size + 1)), length.compare("lt", 0)

    def visit(segment: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        result, previous_end, error = carried
        start, end, invalid = segment_range(segment, previous_end)
        if is_by_length:
            invalid |= compare("eq", segment[1], segment_count - 1) & compare("ne", end, size)
        clamped_end = pick(compare("slt", end, size), end, size)
        result = _reduce_segment(node, result, flat, segment, (start, clamped_end))
        return [result, end, (Scalar(error, _FLAG_TYPE) | cast(invalid, _FLAG_TYPE)).value]

    initial = [empty([outer, segment_count, inner], dtype), position(0), number(0, _FLAG_TYPE).value]
    result, _, error = for_each([outer, segment_count], initial, visit)
    info = insert(error, [position(0)], filled(0, [1], _FLAG_TYPE))
    results = [reshape(result, meta.shape, dtype)]
    return results_or_eager(info, node, symbol_table, results, "the lengths are negative or do not fill the axis")[0]


def _clamp(value: Scalar, size: int) -> ir.Value:
    """Clamps a number to a position from 0 to `size`."""
    wide = cast(value, TensorDType.Int64)
    return scalar_to_index(s.minimum(s.maximum(wide, 0), size))


def _reduce_segment(
    node: Op, result: ir.Value, flat: ir.Value, segment: list[ir.Value], range_: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """Returns `result` [outer, segments, inner] with the reduction of one segment of `flat` [outer, size, inner].

    `segment` are the indices along the dims `outer` and `segments`, `range_` are start and end along `size`.
    """
    dtype, mode, initial = node.tensor_meta.dtype, node.args[1], node.kwargs.get("initial")
    combine, neutral = _MODES[mode]
    inner = node.tensor_meta.shape[len(node.tensor_meta.shape) - _inner_rank(node) :]
    start, end = range_
    length = minus(end, start)
    initial_value = number(neutral if initial is None else initial, dtype)
    if mode == "mean" and initial is None:
        initial_value = s.select(compare("sgt", length, 0), initial_value, number(math.nan, dtype))

    def initialize(column: list[ir.Value], results: list[ir.Value]) -> list[ir.Value]:
        return [insert(initial_value, [*segment, column[0]], results[0])]

    def add_element(indices: list[ir.Value], results: list[ir.Value]) -> list[ir.Value]:
        offset, column = indices
        target, source = [*segment, column], [segment[0], plus(start, offset), column]
        new = combine(element(results[0], target, dtype), element(flat, source, dtype))
        return [insert(new, target, results[0])]

    def average(column: list[ir.Value], results: list[ir.Value]) -> list[ir.Value]:
        target, count = [*segment, column[0]], cast(index_to_scalar(length), dtype)
        x = element(results[0], target, dtype)
        return [insert(s.select(count > 0, x / s.maximum(count, 1), x), target, results[0])]

    width = product(inner)
    (result,) = for_each([width], [result], initialize)
    (result,) = for_each([length, width], [result], add_element)
    return for_each([width], [result], average)[0] if mode == "mean" else result


def _inner_rank(node: Op) -> int:
    """Returns the number of dims after the reduced one."""
    return len(node.args[0].tensor_meta.shape) - 1 - int(node.kwargs.get("axis", 0))
