"""Embedding bags: sums, averages and maxima of rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.operation import GetItemOp, Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.bounds import within
from buddy.compiler.ops.loop_state import compare, minus, pick, plus
from buddy.compiler.ops.loops import element, for_each, index_of, index_position, insert, number, position
from buddy.compiler.ops.ranges import depends_on_inputs, fall_back_if, fall_back_if_outside
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import filled, pointwise, shape_of
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
    fall_back_if(node, symbol_table, wrong)


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
