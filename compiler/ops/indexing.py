"""Reads by index: gathers, embeddings, subscripts by index tensors, and triangles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, tensor
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import fall_back_if_outside, within
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, constant, normalized, value_of


@dataclass(frozen=True)
class Subscripts:
    """Index `tensors`, of element types `types`, for the dims `chosen` of a tensor of shape `source`.

    `shape` is the shape that is read or written, and `dims` are the loops over it that each index tensor reads.
    `loops[axis]` is the loop along an axis that is not indexed, else `None`.
    """

    tensors: tuple[Any, ...]
    types: tuple[TensorDType, ...]
    chosen: tuple[int, ...]
    source: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[tuple[int | None, ...], ...]
    loops: tuple[int | None, ...]

    def place(self, elements: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        """Returns the position in the source of the element at `at`; `elements` are the indices there."""
        indices = map(Scalar, elements, self.types)
        found = {
            axis: within(index, self.source[axis], wraps=True)
            for axis, index in zip(self.chosen, indices, strict=False)
        }
        return [found[axis] if loop is None else at[loop] for axis, loop in enumerate(self.loops)]

    def sized(self, listed: Sequence[Op | None]) -> list[tuple[Op, int]]:
        """Returns the index tensors among the subscripts, each with the size of the dim that it indexes."""
        return [(op, self.source[axis]) for axis, op in enumerate(listed) if op is not None]


def subscripts_of(source: Sequence[int], listed: Sequence[Op | None], symbol_table: SymbolTable) -> Subscripts:
    """Returns the subscripts `listed` of a tensor of shape `source`.

    As in NumPy, the dims that the indices broadcast to replace the indexed dims, or come first if a slice separates
    these. Raises `LoweringError` for masks, for which the size of the result is unknown at compile time.
    """
    if any(item is not None and is_mask(item) for item in listed):
        raise LoweringError("the size of the result of a mask depends on data")
    chosen = [axis for axis, item in enumerate(listed) if item is not None]
    indices = [listed[axis] for axis in chosen]
    shapes = [op.tensor_meta.shape for op in indices if op is not None]
    block = broadcast_shape(shapes)
    first = chosen[0] if chosen[-1] - chosen[0] == len(chosen) - 1 else 0
    kept = [axis for axis in range(len(source)) if axis not in chosen]
    before, after = kept[:first], kept[first:]
    shape = [*(source[axis] for axis in before), *block, *(source[axis] for axis in after)]
    order = [*before, *[None] * len(block), *after]
    loops = [order.index(axis) if axis in kept else None for axis in range(len(source))]
    tensors = [value_of(op, symbol_table) for op in indices]
    types = [op.tensor_meta.dtype for op in indices if op is not None]
    dims = [_shift_dims(st.broadcast_dims(st.shape_of(value), block), first) for value in tensors]
    return Subscripts(
        tuple(tensors), tuple(types), tuple(chosen), tuple(source), tuple(shape), tuple(dims), tuple(loops)
    )


def is_mask(item: Op) -> bool:
    return item.tensor_meta.dtype in (TensorDType.Bool, TensorDType.UInt8)


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns the shape that all of `shapes` broadcast to."""
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]


def _shift_dims(dims: Sequence[int | None], by: int) -> tuple[int | None, ...]:
    return tuple(None if dim is None else dim + by for dim in dims)


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
