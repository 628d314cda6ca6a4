"""Reductions that return the position of the maximum or minimum, with or without its value."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.loops import index_of
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.structured import PARALLEL, REDUCTION, filled, generic, loop_index, reshape, shape_of
from buddy.compiler.ops.utils import SymbolTable, argument, normalized, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def extreme_with_position(value: Any, dtype: TensorDType, axis: int, largest: bool) -> list[Any]:
    """Returns the maximum or minimum along `axis` and its position (i64), the first of equal elements or of NaNs."""
    shape = shape_of(value)
    kept = [i for i in range(len(shape)) if i != axis]
    low, high = s.limits(dtype)
    sizes = [shape[i] for i in kept]
    outs = [filled(low if largest else high, sizes, dtype), filled(0, sizes, TensorDType.Int64)]

    def body(*elements: Any) -> list[Any]:
        x, best, where = map(Scalar, elements, (dtype, dtype, TensorDType.Int64))
        better = x > best if largest else x < best
        if dtype.is_float:
            better = better | (x.compare("ne", x) & best.compare("eq", best))
        here = index_of(loop_index(axis))
        return [s.select(better, x, best).value, s.select(better, here, where).value]

    iterators = [REDUCTION if i == axis else PARALLEL for i in range(len(shape))]
    return generic([value], [list(range(len(shape)))], outs, [kept, kept], iterators, body)


def _extreme_of_node(node: Op, symbol_table: SymbolTable, largest: bool) -> list[Any]:
    """Returns value and position along the node's dim; without a dim, the position is in row-major order."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    shape, dim = shape_of(value), argument(node, 1, "dim")
    if dim is None or not shape:
        return extreme_with_position(reshape(value, [product(shape)], dtype), dtype, 0, largest)
    return extreme_with_position(value, dtype, normalized(dim, len(shape)), largest)


def _register(largest: bool, with_value: str, position_alone: str) -> None:
    @lowering(with_value)
    def lower(node: Op, symbol_table: SymbolTable) -> list[Any]:
        pairs = zip(_extreme_of_node(node, symbol_table, largest), node.metas, strict=True)
        return [reshape(found, meta.shape, meta.dtype) for found, meta in pairs if meta is not None]

    @lowering(position_alone)
    def lower_position(node: Op, symbol_table: SymbolTable) -> Any:
        return reshape(_extreme_of_node(node, symbol_table, largest)[1], node.tensor_meta.shape, TensorDType.Int64)


_register(True, "MaxDimOp", "ArgmaxOp")
_register(False, "MinDimOp", "ArgminOp")
