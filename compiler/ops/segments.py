"""Reductions of consecutive segments of a dim, and embedding bags."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.graph.sizes import product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.bounds import depends_on_inputs, fall_back_if, fall_back_if_outside, within
from buddy.compiler.ops.loops import (
    compare,
    element,
    for_each,
    index_of,
    index_position,
    insert,
    minus,
    number,
    pick,
    plus,
    position,
)
from buddy.compiler.ops.matrices.stack import results_or_eager
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import empty, filled, pointwise, reshape, shape_of
from buddy.compiler.ops.sums import accumulator_type
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

SUM, MEAN, MAX = range(3)


@lowering("EmbeddingBagOp")
def embedding_bag(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the first result, [bags, width]; the others are for the backward pass only.

    Raises `LoweringError` if one of the others is read.
    """
    if any(user.args[1] for user in node._children if isinstance(user, GetItemOp)):
        raise LoweringError("results for the backward pass of embedding_bag are not computed")
    meta, mode = node.tensor_meta, argument(node, 4, "mode", SUM)
    wide = accumulator_type(meta.dtype)
    bags, width = meta.shape
    rows, count = (arg.tensor_meta.shape[0] for arg in node.args[:2])
    # An offset may be equal to the number of indices, whereas an index must be less than the number of rows.
    fall_back_if_outside(node, symbol_table, [(node.args[1], rows), (node.args[2], count + 1)])
    _check_offsets(node, symbol_table)
    start = [filled(0, meta.shape, wide), filled(0, [bags, 1], TensorDType.Int64)]
    read = _reader(node, symbol_table, wide)
    padding = argument(node, 8, "padding_idx", -1)

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        bag = [at[0], position(0)]

        def take(step: list[Any], carried: list[Any]) -> list[Any]:
            index, row = read(plus(first, step[0]))
            taken, count = index.compare("ne", padding), element(carried[1], bag, TensorDType.Int64)

            def add(column: list[Any], sums: list[Any]) -> list[Any]:
                where = [at[0], column[0]]
                x, old = row(column[0]), element(sums[0], where, wide)
                larger = s.select(count.compare("eq", 0) | (x > old), x, old)
                return [insert(s.select(taken, larger if mode == MAX else old + x, old), where, sums[0])]

            (sums,) = for_each([width], carried[:1], add)
            return [sums, insert(count + cast(taken, TensorDType.Int64), bag, carried[1])]

        first, last = _ends(node, symbol_table, at[0])
        return for_each([minus(last, first)], held, take)

    sums, counts = for_each([bags], start, visit)

    def finished(x: Scalar, count: Scalar) -> Scalar:
        return cast(x / cast(s.maximum(count, 1), wide) if mode == MEAN else x, meta.dtype)

    return [pointwise([(sums, wide), (counts, TensorDType.Int64)], meta.shape, meta.dtype, finished)]


def _check_offsets(node: Op, symbol_table: SymbolTable) -> None:
    """Falls back to eager if the offsets do not start at 0 or decrease.

    With `include_last_offset`, the last one must also be the number of indices.
    """
    if 0 in node.args[2].tensor_meta.shape or not depends_on_inputs(node.args[2], symbol_table):
        return
    offsets, kind = value_of(node.args[2], symbol_table), node.args[2].tensor_meta.dtype
    count, length = shape_of(offsets)[0], shape_of(value_of(node.args[1], symbol_table))[0]

    def offset(at: Any) -> Scalar:
        return cast(element(offsets, [at], kind), TensorDType.Int64)

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        before = pick(compare("eq", at[0], 0), position(0), minus(at[0], 1))
        falls = offset(before) > offset(at[0])
        return [(Scalar(held[0], TensorDType.Int64) + cast(falls, TensorDType.Int64)).value]

    (falls,) = for_each([count], [number(0, TensorDType.Int64).value], visit)
    wrong = Scalar(falls, TensorDType.Int64).compare("ne", 0) | offset(position(0)).compare("ne", 0)
    if argument(node, 7, "include_last_offset", False):
        wrong = wrong | offset(minus(position(count), 1)).compare("ne", index_of(position(length)))
    fall_back_if(node, symbol_table, wrong, "the offsets do not start at 0, decrease, or do not end at the length")


def _reader(node: Op, symbol_table: SymbolTable, wide: TensorDType) -> Callable[[Any], tuple[Scalar, Any]]:
    """Returns a function that maps a position to the index there, and to a function that reads that row of the table.

    The latter maps a column to the element, multiplied by the weight of the position.
    """
    table, indices = (value_of(arg, symbol_table) for arg in node.args[:2])
    dtype, kind = (arg.tensor_meta.dtype for arg in node.args[:2])
    weights = argument(node, 6, "per_sample_weights")

    def read(at: Any) -> tuple[Scalar, Any]:
        index = element(indices, [at], kind)
        place = within(index, shape_of(table)[0])

        def row(column: Any) -> Scalar:
            x = cast(element(table, [place, column], dtype), wide)
            return x if weights is None else x * element(value_of(weights, symbol_table), [at], dtype)

        return index, row

    return read


def _ends(node: Op, symbol_table: SymbolTable, bag: Any) -> tuple[Any, Any]:
    """Returns the start and end of a bag among the indices; the last bag extends to the last index."""
    offsets, kind = value_of(node.args[2], symbol_table), node.args[2].tensor_meta.dtype
    count, length = shape_of(offsets)[0], shape_of(value_of(node.args[1], symbol_table))[0]

    def offset(at: Any) -> Any:
        found = index_position(element(offsets, [at], kind))
        return arith.minsi(arith.maxsi(found, position(0)), position(length))

    following = plus(bag, 1)
    inside = compare("slt", following, count)
    return offset(bag), pick(inside, offset(pick(inside, following, bag)), length)


Combine = Callable[[Scalar, Scalar], Scalar]
# How an element is combined with the previous result, and the initial value of a segment.
_MODES: dict[str, tuple[Combine, float]] = {
    "sum": (lambda old, new: old + new, 0),
    "mean": (lambda old, new: old + new, 0),
    "prod": (lambda old, new: old * new, 1),
    "max": (s.maximum, -math.inf),
    "min": (s.minimum, math.inf),
}
_FLAG = TensorDType.Int32


@ops_registry.lowering("SegmentReduceOp")
def segment_reduce(node: Op, symbol_table: SymbolTable) -> Any:
    """Reduces segments given by lengths or by offsets.

    Falls back to eager if lengths are negative or do not add up to the size of the dim.
    """
    data, meta, axis = node.args[0], node.tensor_meta, node.kwargs.get("axis", 0)
    shape, lengths, offsets = data.tensor_meta.shape, node.kwargs.get("lengths"), node.kwargs.get("offsets")
    if (lengths is None and offsets is None) or 0 in (*shape, *meta.shape):
        raise LoweringError("the segments are of an empty tensor, or given by indices")
    outer, inner = product(shape[:axis]), product(shape[axis + 1 :])
    count, dtype = meta.shape[axis], meta.dtype
    whole = reshape(value_of(data, symbol_table), [outer, shape[axis], inner], dtype)
    limits: Any = lengths if offsets is None else offsets
    ends = reshape(value_of(limits, symbol_table), [outer, limits.tensor_meta.shape[-1]], limits.tensor_meta.dtype)
    kind = limits.tensor_meta.dtype

    def bounds(at: list[Any], cursor: Any) -> tuple[Any, Any, Scalar]:
        """Returns start and end of a segment, and whether its length is invalid."""
        if offsets is not None:
            first, last = (element(ends, [at[0], plus(at[1], i)], kind) for i in (0, 1))
            return _clamp(first, shape[axis]), _clamp(last, shape[axis]), number(False, TensorDType.Bool)
        length = element(ends, at, kind)
        begin = pick(compare("eq", at[1], 0), 0, cursor)
        return begin, plus(begin, _clamp(length, shape[axis] + 1)), length.compare("lt", 0)

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        begin, end, wrong = bounds(at, held[1])
        if offsets is None:
            wrong |= compare("eq", at[1], count - 1) & compare("ne", end, shape[axis])
        last = pick(compare("slt", end, shape[axis]), end, shape[axis])
        found = _reduce_segment(node, held[0], whole, at, (begin, last))
        return [found, end, (Scalar(held[2], _FLAG) | cast(wrong, _FLAG)).value]

    start = [empty([outer, count, inner], dtype), position(0), number(0, _FLAG).value]
    found, _, faults = for_each([outer, count], start, visit)
    info = insert(faults, [position(0)], filled(0, [1], _FLAG))
    results = [reshape(found, meta.shape, dtype)]
    return results_or_eager(info, node, symbol_table, results, "the lengths are negative or do not fill the axis")[0]


def _clamp(value: Scalar, size: int) -> Any:
    """Clamps a number to a position from 0 to `size`."""
    wide = cast(value, TensorDType.Int64)
    return index_position(s.minimum(s.maximum(wide, 0), size))


def _reduce_segment(node: Op, into: Any, whole: Any, at: list[Any], ends: tuple[Any, Any]) -> Any:
    """Returns `into` [outer, segments, inner] with the reduction of segment `at` of `whole`, from and up to `ends`."""
    dtype, mode, initial = node.tensor_meta.dtype, node.args[1], node.kwargs.get("initial")
    combine, neutral = _MODES[mode]
    inner = node.tensor_meta.shape[len(node.tensor_meta.shape) - _inner_rank(node) :]
    length = minus(ends[1], ends[0])
    begin = number(neutral if initial is None else initial, dtype)
    if mode == "mean" and initial is None:
        begin = s.select(compare("sgt", length, 0), begin, number(math.nan, dtype))

    def clear(k: list[Any], held: list[Any]) -> list[Any]:
        return [insert(begin, [*at, k[0]], held[0])]

    def take(step: list[Any], held: list[Any]) -> list[Any]:
        here, j = [*at, step[1]], plus(ends[0], step[0])
        new = combine(element(held[0], here, dtype), element(whole, [at[0], j, step[1]], dtype))
        return [insert(new, here, held[0])]

    def average(k: list[Any], held: list[Any]) -> list[Any]:
        x, many = element(held[0], [*at, k[0]], dtype), cast(index_of(length), dtype)
        return [insert(s.select(many > 0, x / s.maximum(many, 1), x), [*at, k[0]], held[0])]

    width = product(inner)
    (into,) = for_each([width], [into], clear)
    (into,) = for_each([length, width], [into], take)
    return for_each([width], [into], average)[0] if mode == "mean" else into


def _inner_rank(node: Op) -> int:
    """Returns the number of dims after the reduced one."""
    return len(node.args[0].tensor_meta.shape) - 1 - int(node.kwargs.get("axis", 0))
