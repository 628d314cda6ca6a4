"""Grouped matrix products, as in mixtures of experts: each group of rows is multiplied by its own matrix."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.contractions import summed
from buddy.compiler.ops.loop_state import LoopState, compare, minus, pick, plus
from buddy.compiler.ops.loops import element, index_position, position
from buddy.compiler.ops.ranges import refuse_outside
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, value_of

ops_registry = Registry()

# Rows per block. A group with fewer rows still computes a whole block.
_ROWS = 32


@ops_registry.lowering("GroupedMatmulOp")
def grouped_product(node: Op, symbol_table: SymbolTable) -> Any:
    """Multiplies rows [rows, depth] by matrices [groups, depth, width]; group `g` ends before row `ends[g]`.

    The next group starts there. Rows in no group are 0. Blocks have a fixed number of rows, at any position; of a
    product only the rows of the group are written. Raises `LoweringError` for other ranks, a bias, and an unknown
    number of rows.
    """
    x, w, ends = node.args[:3]
    shapes = [list(op.tensor_meta.shape) for op in (x, w) if isinstance(op, Op)]
    if [len(shape) for shape in shapes] != [2, 3] or not isinstance(ends, Op):
        raise LoweringError("rows that are not grouped along one dim")
    if argument(node, 3, "bias") is not None:
        raise LoweringError("a grouped product with a bias")
    (rows, depth), (groups, _, width) = shapes
    if not all(isinstance(size, int) for size in (rows, depth, groups, width)):
        raise LoweringError("a grouped product of dynamic sizes")
    refuse_outside(node, symbol_table, [(ends, rows + 1)])
    given, out_dtype = x.tensor_meta.dtype, node.tensor_meta.dtype
    values, weights, limits = (value_of(op, symbol_table) for op in (x, w, ends))
    carried = LoopState([st.filled(0, [rows, width], out_dtype)])
    if 0 in (rows, depth, groups, width):
        return carried.tensors[0]
    block = min(rows, _ROWS)

    def limit(group: Any) -> Any:
        """Returns the end of a group, clamped to the number of rows, since it is data."""
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
        """Multiplies the rows `first <= row < last`, at most one block; the block is moved to lie within the tensor."""
        (out,) = carried.tensors
        start = arith.minsi(first, position(rows - block))
        taken = st.slice_of(values, [start, 0], [block, depth], [1, 1], [block, depth], given)
        product, wide = summed(taken, matrix, "mk", "kn", "mn", given)
        before = st.slice_of(out, [start, 0], [block, width], [1, 1], [block, width], out_dtype)

        def kept(new: Scalar, old: Scalar) -> Scalar:
            row = plus(start, st.loop_index(0))
            inside = compare("sge", row, first) & compare("slt", row, last)
            return Scalar(arith.select(inside.value, cast(new, out_dtype).value, old.value), out_dtype)

        merged = st.pointwise([(product, wide), (before, out_dtype)], [block, width], out_dtype, kept)
        carried.tensors = [st.insert_slice(merged, out, [start, 0], [block, width], [1, 1])]

    carried.each(0, groups, each_group)
    return carried.tensors[0]
