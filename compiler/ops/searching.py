"""Lowers binary search in sorted rows, histograms, `nonzero_static` and `repeat_interleave`."""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise import promoted_type
from buddy.compiler.ops.indexing import clamp_index, fall_back_if, fall_back_if_outside
from buddy.compiler.ops.loops import (
    Extent,
    compare,
    element,
    for_each,
    half,
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
from buddy.compiler.ops.reductions import extreme
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import PARALLEL, empty, filled, generic, loop_index, shape_of
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def _partition_point(length: Extent, is_before: Callable[[ir.Value], Scalar]) -> ir.Value:
    """Returns the first of `length` positions for which `is_before` is false, by binary search.

    Returns `length` if there is no such position. `is_before` must be false for all later positions.
    """
    index = ir.IndexType.get()
    loop = scf.WhileOp([index, index], [position(0), position(length)])
    before, after = (region.blocks.append(index, index) for region in loop.regions)
    with ir.InsertionPoint(before):
        scf.ConditionOp(compare("slt", *before.arguments).value, list(before.arguments))
    with ir.InsertionPoint(after):
        low, high = after.arguments
        middle = plus(low, half(minus(high, low)))
        in_upper_half = is_before(middle)
        scf.yield_([pick(in_upper_half, plus(middle, 1), low), pick(in_upper_half, high, middle)])
    return loop.results[0]


def _search(
    node: Op, rows: Op, values: Op | int | float, symbol_table: SymbolTable, right: bool, sorter: Op | None
) -> ir.Value:
    """Returns the insertion position of each value in the corresponding sorted row of `rows`, or in the only row.

    `right` selects the position after equal elements. `sorter` has the positions of each row's elements in sorted
    order. A NaN is inserted at the end, as in eager, because every comparison with it is false.
    """
    meta, row_type = node.tensor_meta, rows.tensor_meta.dtype
    boundaries, length = value_of(rows, symbol_table), rows.tensor_meta.shape[-1]
    order = None if sorter is None else value_of(sorter, symbol_table)
    if sorter is not None:
        fall_back_if_outside(node, symbol_table, [(sorter, length)])
    inputs = [value_of(values, symbol_table)] if isinstance(values, Op) else []
    dtype = values.tensor_meta.dtype if isinstance(values, Op) else row_type
    common_type, outer_rank = promoted_type((rows, values)), len(rows.tensor_meta.shape) - 1
    all_loops = list(range(len(meta.shape)))

    def body(*elements: ir.Value) -> list[ir.Value]:
        row = [loop_index(i) for i in range(outer_rank)]
        value = Scalar(elements[0], dtype) if isinstance(values, Op) else number(values, common_type)

        def is_before(middle: ir.Value) -> Scalar:
            column = middle if order is None else clamp_index(element(order, [*row, middle], TensorDType.Int64), length)
            boundary = cast(element(boundaries, [*row, column], row_type), common_type)
            # The negated comparison is true for NaN, so that the search continues to the right.
            return boundary.compare("gt" if right else "ge", cast(value, common_type)) ^ True

        return [index_to_scalar(_partition_point(length, is_before), meta.dtype).value]

    out, loops = empty(meta.shape, meta.dtype), [PARALLEL] * len(all_loops)
    return generic(inputs, [all_loops] * len(inputs), [out], [all_loops], loops, body)[0]


@lowering("SearchsortedOp")
def searchsorted(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `searchsorted(rows, values, out_int32, right)`; the keyword `side` takes precedence over `right`."""
    side = argument(node, 4, "side")
    right = side == "right" if side is not None else bool(argument(node, 3, "right", False))
    sorter = argument(node, 5, "sorter")
    return _search(node, node.args[0], node.args[1], symbol_table, right, sorter)


@lowering("BucketizeOp")
def bucketize(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `bucketize(values, boundaries, out_int32, right)`."""
    return _search(node, node.args[1], node.args[0], symbol_table, bool(argument(node, 3, "right", False)), None)


@lowering("HistcOp")
def histc(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Counts the elements in bins of equal width from `min` to `max`, or over all elements if `min` equals `max`."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    meta, bins = node.tensor_meta, argument(node, 1, "bins", 100)
    if not dtype.is_float:
        raise LoweringError(f"eager has no histogram of {dtype.value}")
    if 0 in shape_of(value):
        return filled(0, meta.shape, meta.dtype)
    low, high = _range(value, dtype, argument(node, 2, "min", 0), argument(node, 3, "max", 0))
    # The difference of an infinity or NaN and itself is NaN.
    is_finite = (low - low).compare("eq", 0) & (high - high).compare("eq", 0)
    fall_back_if(node, symbol_table, is_finite.compare("eq", 0), "the range is not finite")

    def count(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        x = element(value, indices, dtype)
        inside = x.compare("ge", low) & x.compare("le", high)
        # Elements outside of the range, and NaN, add 0 to the first bin.
        offset = s.select(inside, x, low) - low
        # For an infinite range, which eager rejects, the quotient is NaN; the position must still be in the tensor.
        quotient = s.fmin(s.fmax(offset * bins / (high - low), 0), bins)
        bin_index = [scalar_to_index(s.minimum(cast(quotient, TensorDType.Int64), bins - 1))]
        counts = carried[0]
        return [insert(element(counts, bin_index, dtype) + cast(inside, dtype), bin_index, counts)]

    return for_each(shape_of(value), [filled(0, meta.shape, meta.dtype)], count)[0]


def _range(value: ir.Value, dtype: TensorDType, low: float, high: float) -> tuple[Scalar, Scalar]:
    """Returns the requested bounds, or those of the elements, widened by one on each side if all are equal."""
    if low != high:
        return number(low, dtype), number(high, dtype)
    axes = list(range(len(shape_of(value))))
    extremes = (extreme(value, dtype, axes, keep=False, largest=largest) for largest in (False, True))
    low_element, high_element = (element(tensor, [], dtype) for tensor in extremes)
    all_equal = low_element.compare("eq", high_element)
    return s.select(all_equal, low_element - 1, low_element), s.select(all_equal, high_element + 1, high_element)


@lowering("NonzeroStaticOp")
def nonzero_static(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the indices of the first nonzero elements, one element per row; fills the remaining rows."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    meta, fill = node.tensor_meta, argument(node, 2, "fill_value", -1)
    size = meta.shape[0]
    out = filled(fill, meta.shape, meta.dtype)
    if 0 in meta.shape:
        return out
    first_size, *other_sizes = shape_of(value)
    # The loop does not run if a dynamic `size` is 0, when the result has no row to write to.
    extents = [first_size * smallest(size, 1), *other_sizes]

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        result, count = carried
        is_listed = cast(element(value, indices, dtype), TensorDType.Bool) & compare("slt", count, size)
        row = arith.minui(count, position(size - 1))
        for dim, index in enumerate(indices):
            target = [row, position(dim)]
            new = s.select(is_listed, index_to_scalar(index, meta.dtype), element(result, target, meta.dtype))
            result = insert(new, target, result)
        return [result, plus(count, arith.index_castui(ir.IndexType.get(), is_listed.value))]

    return for_each(extents, [out, position(0)], visit)[0]


@lowering("RepeatInterleaveOp")
def repeat_interleave(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the positions of the operand, each repeated as often as the element at that position.

    Falls back to eager if a count is negative or the counts do not add up to the expected size.
    """
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    meta, flag = node.tensor_meta, TensorDType.Int32
    size = meta.shape[0]
    if 0 in meta.shape:
        return empty(meta.shape, meta.dtype)

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        result, start, error = carried
        times = element(value, indices, dtype)
        count = scalar_to_index(cast(s.maximum(times, 0), TensorDType.Int64))
        end = plus(start, arith.minui(count, position(size + 1)))
        clamped_end = pick(compare("slt", end, size), end, size)

        def write(repetition: list[ir.Value], results: list[ir.Value]) -> list[ir.Value]:
            return [insert(index_to_scalar(indices[0], meta.dtype), [plus(start, repetition[0])], results[0])]

        (result,) = for_each([minus(clamped_end, start)], [result], write)
        return [result, end, (Scalar(error, flag) | cast(times.compare("lt", 0), flag)).value]

    initial = [empty(meta.shape, meta.dtype), position(0), number(0, flag).value]
    result, end, error = for_each(shape_of(value), initial, visit)
    has_error = Scalar(error, flag) | cast(compare("ne", end, size), flag)
    info = insert(has_error, [position(0)], empty([1], flag))
    condition = "a count is negative or the counts have another sum than the size"
    return results_or_eager(info, node, symbol_table, [result], condition)[0]
