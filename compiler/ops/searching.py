"""Binary search in sorted rows, and histograms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.bounds import fall_back_if, fall_back_if_outside, within
from buddy.compiler.ops.elementwise import promoted
from buddy.compiler.ops.loops import (
    compare,
    element,
    for_each,
    half,
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
from buddy.compiler.ops.reductions import extreme
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import PARALLEL, empty, filled, generic, loop_index, shape_of
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def _partition_point(length: Any, is_before: Callable[[Any], Scalar]) -> Any:
    """Returns the first of `length` positions for which `is_before` is false, by binary search; it must stay false."""
    index = ir.IndexType.get()
    loop = scf.WhileOp([index, index], [position(0), position(length)])
    before, after = (region.blocks.append(index, index) for region in loop.regions)
    with ir.InsertionPoint(before):
        scf.ConditionOp(compare("slt", *before.arguments).value, list(before.arguments))
    with ir.InsertionPoint(after):
        low, high = after.arguments
        middle = plus(low, half(minus(high, low)))
        further = is_before(middle)
        scf.yield_([pick(further, plus(middle, 1), low), pick(further, high, middle)])
    return loop.results[0]


def _search(node: Op, line: Op, values: Any, symbol_table: SymbolTable, right: bool, sorter: Op | None) -> Any:
    """Returns the insertion position of each value in its row of `line`, or in its only row.

    A NaN is inserted at the end, as in eager, because every comparison with it is false.
    """
    meta, kind = node.tensor_meta, line.tensor_meta.dtype
    boundaries, length = value_of(line, symbol_table), line.tensor_meta.shape[-1]
    places = None if sorter is None else value_of(sorter, symbol_table)
    if sorter is not None:
        fall_back_if_outside(node, symbol_table, [(sorter, length)])
    given = [value_of(values, symbol_table)] if isinstance(values, Op) else []
    dtype = values.tensor_meta.dtype if isinstance(values, Op) else kind
    common, rows = promoted((line, values)), len(line.tensor_meta.shape) - 1
    every = list(range(len(meta.shape)))

    def body(*elements: Any) -> list[Any]:
        row = [loop_index(i) for i in range(rows)]
        wanted = Scalar(elements[0], dtype) if given else number(values, common)

        def is_before(middle: Any) -> Scalar:
            at = middle if places is None else within(element(places, [*row, middle], TensorDType.Int64), length)
            here = cast(element(boundaries, [*row, at], kind), common)
            # The negated comparison is true for NaN, so that the search continues to the right.
            return here.compare("gt" if right else "ge", cast(wanted, common)) ^ True

        return [index_of(_partition_point(length, is_before), meta.dtype).value]

    out, loops = empty(meta.shape, meta.dtype), [PARALLEL] * len(every)
    return generic(given, [every] * len(given), [out], [every], loops, body)[0]


@lowering("SearchsortedOp")
def searchsorted(node: Op, symbol_table: SymbolTable) -> Any:
    side = argument(node, 4, "side")
    right = side == "right" if side is not None else bool(argument(node, 3, "right", False))
    sorter = argument(node, 5, "sorter")
    return _search(node, node.args[0], node.args[1], symbol_table, right, sorter)


@lowering("BucketizeOp")
def bucketize(node: Op, symbol_table: SymbolTable) -> Any:
    return _search(node, node.args[1], node.args[0], symbol_table, bool(argument(node, 3, "right", False)), None)


@lowering("HistcOp")
def histc(node: Op, symbol_table: SymbolTable) -> Any:
    """Counts the elements in bins of equal width over a range; an empty range stands for that of the elements."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    meta, bins = node.tensor_meta, argument(node, 1, "bins", 100)
    if not dtype.is_float:
        raise LoweringError(f"eager has no histogram of {dtype.value}")
    if 0 in shape_of(value):
        return filled(0, meta.shape, meta.dtype)
    low, high = _range(value, dtype, argument(node, 2, "min", 0), argument(node, 3, "max", 0))
    finite = (low - low).compare("eq", 0) & (high - high).compare("eq", 0)
    fall_back_if(node, symbol_table, finite.compare("eq", 0), "the range is not finite")

    def count(at: list[Any], held: list[Any]) -> list[Any]:
        x = element(value, at, dtype)
        inside = x.compare("ge", low) & x.compare("le", high)
        # Elements outside of the range, and NaN, add 0 to the first bin.
        share = s.select(inside, x, low) - low
        # For an infinite range, which eager rejects, the quotient is NaN; the position must still be in the tensor.
        quotient = s.fmin(s.fmax(share * bins / (high - low), 0), bins)
        part = s.minimum(cast(quotient, TensorDType.Int64), bins - 1)
        here = [index_position(part)]
        return [insert(element(held[0], here, dtype) + cast(inside, dtype), here, held[0])]

    return for_each(shape_of(value), [filled(0, meta.shape, meta.dtype)], count)[0]


def _range(value: Any, dtype: TensorDType, low: float, high: float) -> tuple[Scalar, Scalar]:
    """Returns the requested bounds, or those of the elements, widened by one on each side if all are equal."""
    if low != high:
        return number(low, dtype), number(high, dtype)
    axes = list(range(len(shape_of(value))))
    ends = (extreme(value, dtype, axes, False, largest) for largest in (False, True))
    least, greatest = (element(end, [], dtype) for end in ends)
    same = least.compare("eq", greatest)
    return s.select(same, least - 1, least), s.select(same, greatest + 1, greatest)


@lowering("NonzeroStaticOp")
def nonzero_static(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns the positions of the first nonzero elements, one per row of the result; fills the remaining rows."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    meta, fill = node.tensor_meta, argument(node, 2, "fill_value", -1)
    size = meta.shape[0]
    out = filled(fill, meta.shape, meta.dtype)
    if 0 in meta.shape:
        return out
    rows, *others = shape_of(value)
    box = [rows * smallest(size, 1), *others]  # an empty loop if there is no row to write to

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        found, count = held
        chosen = cast(element(value, at, dtype), TensorDType.Bool) & compare("slt", count, size)
        row = arith.minui(count, position(size - 1))
        for axis, place in enumerate(at):
            where = [row, position(axis)]
            kept = s.select(chosen, index_of(place, meta.dtype), element(found, where, meta.dtype))
            found = insert(kept, where, found)
        return [found, plus(count, arith.index_castui(ir.IndexType.get(), chosen.value))]

    return for_each(box, [out, position(0)], visit)[0]


@lowering("RepeatInterleaveOp")
def repeat_interleave(node: Op, symbol_table: SymbolTable) -> Any:
    """Repeats each position of the operand by the count that the operand has there.

    Falls back to eager if a count is negative or the counts do not add up to the expected size.
    """
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    meta, flag = node.tensor_meta, TensorDType.Int32
    size = meta.shape[0]
    if 0 in meta.shape:
        return empty(meta.shape, meta.dtype)

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        found, begin, faults = held
        times = element(value, at, dtype)
        wanted = index_position(cast(s.maximum(times, 0), TensorDType.Int64))
        end = plus(begin, arith.minui(wanted, position(size + 1)))
        last = pick(compare("slt", end, size), end, size)

        def write(step: list[Any], carried: list[Any]) -> list[Any]:
            return [insert(index_of(at[0], meta.dtype), [plus(begin, step[0])], carried[0])]

        (found,) = for_each([minus(last, begin)], [found], write)
        return [found, end, (Scalar(faults, flag) | cast(times.compare("lt", 0), flag)).value]

    start = [empty(meta.shape, meta.dtype), position(0), number(0, flag).value]
    found, end, faults = for_each(shape_of(value), start, visit)
    wrong = Scalar(faults, flag) | cast(compare("ne", end, size), flag)
    info = insert(wrong, [position(0)], empty([1], flag))
    condition = "a count is negative or the counts have another sum than the size"
    return results_or_eager(info, node, symbol_table, [found], condition)[0]
