"""Reads by index: gathers, embeddings, advanced indexing, and triangles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, tensor
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import within
from buddy.compiler.ops.ranges import fall_back_if_outside
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.subscripts import subscripts_of
from buddy.compiler.ops.utils import SymbolTable, argument, constant, normalized, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("EmbeddingOp")
def embedding(node: Op, symbol_table: SymbolTable) -> Any:
    weight, indices = (value_of(arg, symbol_table) for arg in node.args[:2])
    shape = node.tensor_meta.shape
    rows = len(shape) - 1

    count, kind = st.shape_of(weight)[0], node.args[1].tensor_meta.dtype
    fall_back_if_outside(node, symbol_table, [(node.args[1], count)])

    def body(index: Any, _out: Any) -> list[Any]:
        column = st.loop_index(rows)
        return [tensor.extract(weight, [within(Scalar(index, kind), count), column])]

    return _compute_elements(node, [indices], [list(range(rows))], body)


@lowering("GatherOp")
def gather(node: Op, symbol_table: SymbolTable) -> Any:
    source, indices = value_of(node.args[0], symbol_table), value_of(node.args[2], symbol_table)
    rank = len(st.shape_of(source))
    if not rank:
        return st.broadcast(source, node.tensor_meta.shape, node.tensor_meta.dtype)
    dim, size = normalized(node.args[1], rank), st.shape_of(source)
    kind = node.args[2].tensor_meta.dtype
    fall_back_if_outside(node, symbol_table, [(node.args[2], size[dim])])

    def body(index: Any, _out: Any) -> list[Any]:
        at = within(Scalar(index, kind), size[dim])
        return [tensor.extract(source, [at if i == dim else st.loop_index(i) for i in range(rank)])]

    return _compute_elements(node, [indices], [list(range(len(st.shape_of(indices))))], body)


def _compute_elements(node: Op, inputs: list[Any], dims: list[list[st.Dim]], body: Callable[..., Any]) -> Any:
    """Returns the node's result with the elements `body(*elements of inputs, _)`; `body` may use `loop_index`."""
    meta = node.tensor_meta
    rank = len(meta.shape)
    out = st.empty(meta.shape, meta.dtype)
    if 0 in meta.shape:
        return out
    return st.generic(inputs, dims, [out], [list(range(rank))], [st.PARALLEL] * rank, body)[0]


@lowering("IndexOp")
def index(node: Op, symbol_table: SymbolTable) -> Any:
    source = value_of(node.args[0], symbol_table)
    subscripts = subscripts_of(st.shape_of(source), node.args[1], symbol_table)
    fall_back_if_outside(node, symbol_table, subscripts.sized(node.args[1]), wraps=True)

    def body(*elements: Any) -> list[Any]:
        at = [st.loop_index(i) for i in range(len(subscripts.shape))]
        return [tensor.extract(source, subscripts.place(elements[:-1], at))]

    return _compute_elements(node, list(subscripts.tensors), list(map(list, subscripts.dims)), body)


@lowering("IndexSelectOp")
def index_select(node: Op, symbol_table: SymbolTable) -> Any:
    """Lowers `x[:, i, :]`, where `i` is a one-dimensional or zero-dimensional tensor."""
    source, (axis, indices) = value_of(node.args[0], symbol_table), node.args[1:3]
    rank, size = len(node.tensor_meta.shape), st.shape_of(source)
    axis, kind = normalized(axis, rank), indices.tensor_meta.dtype
    fall_back_if_outside(node, symbol_table, [(indices, size[axis] if rank else 1)])

    def body(element: Any, _out: Any) -> list[Any]:
        at = [st.loop_index(i) for i in range(rank)]
        if rank:
            at[axis] = within(Scalar(element, kind), size[axis])
        return [tensor.extract(source, at)]

    read: list[st.Dim] = [axis if rank else None] * len(indices.tensor_meta.shape)
    return _compute_elements(node, [value_of(indices, symbol_table)], [read], body)


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

        return _compute_elements(node, [value], [list(range(rank))], body)


_triangle("TriuOp", "sge")
_triangle("TrilOp", "sle")
