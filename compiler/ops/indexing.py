"""Reading by index: gathers, embeddings, advanced indexing, and triangles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.bindings import arith, ir, tensor
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, constant, normalized, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("EmbeddingOp")
def embedding(node: Op, symbol_table: SymbolTable) -> Any:
    weight, indices = (value_of(arg, symbol_table) for arg in node.args[:2])
    shape = node.tensor_meta.shape
    rows = len(shape) - 1

    def body(index: Any, _out: Any) -> list[Any]:
        column = st.loop_index(rows)
        return [tensor.extract(weight, [st.to_index(index), column])]

    return _filled_by(node, [indices], [list(range(rows))], body)


@lowering("GatherOp")
def gather(node: Op, symbol_table: SymbolTable) -> Any:
    source, indices = value_of(node.args[0], symbol_table), value_of(node.args[2], symbol_table)
    rank = len(st.shape_of(source))
    if not rank:
        return source
    dim = normalized(node.args[1], rank)

    def body(index: Any, _out: Any) -> list[Any]:
        position = [st.to_index(index) if i == dim else st.loop_index(i) for i in range(rank)]
        return [tensor.extract(source, position)]

    return _filled_by(node, [indices], [list(range(rank))], body)


def _filled_by(node: Op, inputs: list[Any], dims: list[list[st.Dim]], body: Callable[..., Any]) -> Any:
    """A tensor whose every element is `body(*elements of inputs, _)`; `body` may ask for its position."""
    meta = node.tensor_meta
    rank = len(meta.shape)
    out = st.empty(meta.shape, meta.dtype)
    return st.generic(inputs, dims, [out], [list(range(rank))], [st.PARALLEL] * rank, body)[0]


@lowering("IndexOp")
def index(node: Op, symbol_table: SymbolTable) -> Any:
    """`x[i, :, j]`: the index tensors' broadcast dims stand where the indices do, or first when a slice parts them."""
    source, listed = value_of(node.args[0], symbol_table), node.args[1]
    if any(item is not None and not item.tensor_meta.dtype.is_integer for item in listed):
        raise LoweringError("a mask gives a result whose size is not known before the program runs")
    shape, rank = st.shape_of(source), len(node.tensor_meta.shape)
    chosen = [axis for axis, item in enumerate(listed) if item is not None]
    block = max(len(listed[axis].tensor_meta.shape) for axis in chosen)
    adjacent = chosen[-1] - chosen[0] == len(chosen) - 1
    first = chosen[0] if adjacent else 0
    kept = iter([loop for loop in range(rank) if not first <= loop < first + block])
    indexed = node.tensor_meta.shape[first : first + block]
    inputs = [value_of(listed[axis], symbol_table) for axis in chosen]
    dims = [_shifted(st.broadcast_dims(st.shape_of(value), indexed), first) for value in inputs]
    loops = [None if axis in chosen else next(kept) for axis in range(len(shape))]

    def body(*elements: Any) -> list[Any]:
        found = dict(zip(chosen, elements, strict=False))
        at = [_wrapped(found[axis], shape[axis]) if d is None else st.loop_index(d) for axis, d in enumerate(loops)]
        return [tensor.extract(source, at)]

    return _filled_by(node, inputs, dims, body)


def _shifted(dims: list[int | None], by: int) -> list[st.Dim]:
    return [None if dim is None else dim + by for dim in dims]


def _wrapped(element: Any, size: int) -> Any:
    """An index counted from the front."""
    position = st.to_index(element)
    zero, length = (arith.constant(ir.IndexType.get(), value) for value in (0, size))
    negative = arith.cmpi(arith.CmpIPredicate.slt, position, zero)
    return arith.select(negative, arith.addi(position, length), position)


def _triangle(name: str, predicate: str) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> Any:
        value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
        rank, diagonal = len(meta.shape), argument(node, 1, "diagonal", 0)

        def body(element: Any, _out: Any) -> list[Any]:
            row, column = (st.index_to(st.loop_index(rank - i), TensorDType.Int64) for i in (2, 1))
            edge = arith.addi(row, constant(diagonal, TensorDType.Int64))
            kept = arith.cmpi(getattr(arith.CmpIPredicate, predicate), column, edge)
            return [arith.select(kept, element, constant(0, meta.dtype))]

        return _filled_by(node, [value], [list(range(rank))], body)


_triangle("TriuOp", "sge")
_triangle("TrilOp", "sle")
