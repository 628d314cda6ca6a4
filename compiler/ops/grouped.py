"""Grouped matrix products, as in mixtures of experts: each group of rows is multiplied by its own matrix."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.contractions import summed
from buddy.compiler.ops.loop_state import LoopState, compare, minus, pick, plus
from buddy.compiler.ops.loops import element, index_position, position
from buddy.compiler.ops.ranges import fall_back_if_outside
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, value_of

ops_registry = Registry()

# Rows per block. A group with fewer rows still computes a whole block.
_ROWS = 32


@ops_registry.lowering("GroupedMatmulOp")
def grouped_product(node: Op, symbol_table: SymbolTable) -> Any:
    """Multiplies rows [rows, depth] by matrices [groups, depth, width]; returns [rows, width].

    Group `g` has the rows `ends[g - 1] <= row < ends[g]`; rows outside of all groups are 0. All blocks have the same
    number of rows, may start at any row, and write only the rows of their group. Raises `LoweringError` for other
    ranks, a bias, and dynamic sizes.
    """
    x, w, ends = node.args[:3]
    shapes = [list(op.tensor_meta.shape) for op in (x, w) if isinstance(op, Op)]
    if [len(shape) for shape in shapes] != [2, 3] or not isinstance(ends, Op):
        raise LoweringError("the rows are not grouped along one dim")
    if argument(node, 3, "bias") is not None:
        raise LoweringError("a grouped product with a bias")
    (rows, depth), (groups, _, width) = shapes
    if not all(isinstance(size, int) for size in (rows, depth, groups, width)):
        raise LoweringError("a grouped product of dynamic sizes")
    fall_back_if_outside(node, symbol_table, [(ends, rows + 1)])
    given, out_dtype = x.tensor_meta.dtype, node.tensor_meta.dtype
    values, weights, limits = (value_of(op, symbol_table) for op in (x, w, ends))
    carried = LoopState([st.filled(0, [rows, width], out_dtype)])
    if 0 in (rows, depth, groups, width):
        return carried.tensors[0]
    block = min(rows, _ROWS)

    def limit(group: Any) -> Any:
        """Returns the end of a group, clamped to the number of rows, since data may be out of range."""
        at = index_position(element(limits, [group], ends.tensor_meta.dtype))
        return arith.minsi(arith.maxsi(at, position(0)), position(rows))

    def each_group(group: Any) -> None:
        is_first = compare("eq", group, 0)
        first = pick(is_first, 0, limit(pick(is_first, 0, minus(group, 1))))
        last = limit(group)
        count = arith.ceildivsi(arith.maxsi(minus(last, first), position(0)), position(block))
        matrix = st.slice_of(weights, [group, 0, 0], [1, depth, width], [1, 1, 1], [depth, width], given)
        carried.each(0, count, lambda number: multiply(plus(first, arith.muli(number, position(block))), last, matrix))

    def multiply(first: Any, last: Any, matrix: Any) -> None:
        """Multiplies the rows `first <= row < last`, at most one block.

        The block starts earlier if it would exceed the tensor.
        """
        (out,) = carried.tensors
        start = arith.minsi(first, position(rows - block))
        taken = st.slice_of(values, [start, 0], [block, depth], [1, 1], [block, depth], given)
        product, wide = summed(taken, matrix, "mk", "kn", "mn", given)
        before = st.slice_of(out, [start, 0], [block, width], [1, 1], [block, width], out_dtype)

        def merge(new: Scalar, old: Scalar) -> Scalar:
            row = plus(start, st.loop_index(0))
            inside = compare("sge", row, first) & compare("slt", row, last)
            return Scalar(arith.select(inside.value, cast(new, out_dtype).value, old.value), out_dtype)

        merged = st.pointwise([(product, wide), (before, out_dtype)], [block, width], out_dtype, merge)
        carried.tensors = [st.insert_slice(merged, out, [start, 0], [block, width], [1, 1])]

    carried.each(0, groups, each_group)
    return carried.tensors[0]
