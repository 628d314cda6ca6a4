"""Lowers reads by index: gathers, embeddings, indexing by index tensors, and triangular parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, tensor
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import clamp_index, fall_back_if_outside
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, constant, normalize_dim, value_of


@dataclass(frozen=True)
class Subscripts:
    """The index tensors of `x[i, :, j]`, where `x` has the shape `source`.

    `tensors[k]`, with elements of type `types[k]`, indexes dim `indexed_dims[k]` of `x`. The result has the shape
    `shape`, and there is one loop per dim of it. `dims[k]` are the loops that index the dims of `tensors[k]`, and
    `loops[i]` is the loop along dim `i` of `x`, or `None` if a tensor indexes this dim.
    """

    tensors: tuple[Any, ...]
    types: tuple[TensorDType, ...]
    indexed_dims: tuple[int, ...]
    source: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[tuple[int | None, ...], ...]
    loops: tuple[int | None, ...]

    def source_indices(self, elements: Sequence[ir.Value], loop_indices: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the indices into `x` for an iteration of the loops; `elements` are those of the index tensors."""
        scalars = map(Scalar, elements, self.types)
        clamped = {
            dim: clamp_index(index, self.source[dim], wraps=True)
            for dim, index in zip(self.indexed_dims, scalars, strict=False)
        }
        return [clamped[dim] if loop is None else loop_indices[loop] for dim, loop in enumerate(self.loops)]

    def with_sizes(self, subscripts: Sequence[Op | None]) -> list[tuple[Op, int]]:
        """Returns the index tensors among `subscripts`, each with the size of the dim that it indexes."""
        return [(op, self.source[dim]) for dim, op in enumerate(subscripts) if op is not None]


def subscripts_of(source: Sequence[int], items: Sequence[Op | None], symbol_table: SymbolTable) -> Subscripts:
    """Returns the subscripts of a tensor of shape `source`; `items` has the index tensor of each dim, or `None`.

    There may be fewer items than dims; the other dims are not indexed. As in NumPy, the index tensors are broadcast to
    one shape. Its dims replace the indexed dims, or come first if the indexed dims are not adjacent. Raises
    `LoweringError` for masks, because the size of the result depends on data.
    """
    if any(item is not None and is_mask(item) for item in items):
        raise LoweringError("the size of the result of a mask depends on data")
    indexed = [dim for dim, item in enumerate(items) if item is not None]
    indices = [items[dim] for dim in indexed]
    shapes = [op.tensor_meta.shape for op in indices if op is not None]
    index_shape = broadcast_shape(shapes)
    are_adjacent = indexed[-1] - indexed[0] == len(indexed) - 1
    # The dims of the index tensors come after the first `dims_before` of the dims that are not indexed.
    dims_before = indexed[0] if are_adjacent else 0
    other_dims = [dim for dim in range(len(source)) if dim not in indexed]
    before, after = other_dims[:dims_before], other_dims[dims_before:]
    shape = [*(source[dim] for dim in before), *index_shape, *(source[dim] for dim in after)]
    order = [*before, *[None] * len(index_shape), *after]
    loops = [order.index(dim) if dim in other_dims else None for dim in range(len(source))]
    tensors = [value_of(op, symbol_table) for op in indices]
    types = [op.tensor_meta.dtype for op in indices if op is not None]
    dims = [_shift_dims(st.broadcast_dims(st.shape_of(value), index_shape), dims_before) for value in tensors]
    return Subscripts(
        tuple(tensors), tuple(types), tuple(indexed), tuple(source), tuple(shape), tuple(dims), tuple(loops)
    )


def is_mask(item: Op) -> bool:
    """True if an index tensor is a mask: of bool, or of uint8, as PyTorch still allows."""
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
def embedding(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `weight[indices]`, where `weight` has the shape [count, width]."""
    weight, indices = (value_of(arg, symbol_table) for arg in node.args[:2])
    index_rank = len(node.tensor_meta.shape) - 1
    count, index_type = st.shape_of(weight)[0], node.args[1].tensor_meta.dtype
    fall_back_if_outside(node, symbol_table, [(node.args[1], count)])

    def body(index: ir.Value, _out: ir.Value) -> list[ir.Value]:
        column = st.loop_index(index_rank)
        return [tensor.extract(weight, [clamp_index(Scalar(index, index_type), count), column])]

    return _compute_elements(node, [indices], [list(range(index_rank))], body)


@lowering("GatherOp")
def gather(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `result[..., i, ...] = x[..., index[..., i, ...], ...]`; the arguments are x, dim, index."""
    source, indices = value_of(node.args[0], symbol_table), value_of(node.args[2], symbol_table)
    rank = len(st.shape_of(source))
    if not rank:
        return st.broadcast(source, node.tensor_meta.shape, node.tensor_meta.dtype)
    dim, sizes = normalize_dim(node.args[1], rank), st.shape_of(source)
    index_type = node.args[2].tensor_meta.dtype
    fall_back_if_outside(node, symbol_table, [(node.args[2], sizes[dim])])

    def body(index: ir.Value, _out: ir.Value) -> list[ir.Value]:
        clamped = clamp_index(Scalar(index, index_type), sizes[dim])
        return [tensor.extract(source, [clamped if i == dim else st.loop_index(i) for i in range(rank)])]

    return _compute_elements(node, [indices], [list(range(len(st.shape_of(indices))))], body)


def _compute_elements(
    node: Op, inputs: list[ir.Value], dims: list[list[st.DimIndex]], body: Callable[..., Sequence[ir.Value]]
) -> ir.Value:
    """Returns the node's result with elements computed by `body`, which may use `loop_index`.

    `body` gets the elements of `inputs` in an iteration, and an unused output element. `dims` are the loops that index
    the dims of each input.
    """
    meta = node.tensor_meta
    rank = len(meta.shape)
    out = st.empty(meta.shape, meta.dtype)
    if 0 in meta.shape:
        return out
    return st.generic(inputs, dims, [out], [list(range(rank))], [st.PARALLEL] * rank, body)[0]


@lowering("IndexOp")
def index(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `x[i, :, j]`; the second argument is a list with an index tensor or `None` for each dim."""
    source = value_of(node.args[0], symbol_table)
    subscripts = subscripts_of(st.shape_of(source), node.args[1], symbol_table)
    fall_back_if_outside(node, symbol_table, subscripts.with_sizes(node.args[1]), wraps=True)

    def body(*elements: ir.Value) -> list[ir.Value]:
        loop_indices = [st.loop_index(i) for i in range(len(subscripts.shape))]
        return [tensor.extract(source, subscripts.source_indices(elements[:-1], loop_indices))]

    return _compute_elements(node, list(subscripts.tensors), list(map(list, subscripts.dims)), body)


@lowering("IndexSelectOp")
def index_select(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `x[:, i, :]`, where `i` is a one-dimensional or zero-dimensional tensor."""
    source, (dim, indices) = value_of(node.args[0], symbol_table), node.args[1:3]
    rank, sizes = len(node.tensor_meta.shape), st.shape_of(source)
    dim, index_type = normalize_dim(dim, rank), indices.tensor_meta.dtype
    fall_back_if_outside(node, symbol_table, [(indices, sizes[dim] if rank else 1)])

    def body(element: ir.Value, _out: ir.Value) -> list[ir.Value]:
        source_indices = [st.loop_index(i) for i in range(rank)]
        if rank:
            source_indices[dim] = clamp_index(Scalar(element, index_type), sizes[dim])
        return [tensor.extract(source, source_indices)]

    index_dims: list[st.DimIndex] = [dim if rank else None] * len(indices.tensor_meta.shape)
    return _compute_elements(node, [value_of(indices, symbol_table)], [index_dims], body)


def _register_triangle(name: str, predicate: str) -> None:
    """Registers a lowering that keeps the elements for which `column predicate row + diagonal`, and zeroes others."""

    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> ir.Value:
        value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
        rank, diagonal = len(meta.shape), argument(node, 1, "diagonal", 0)

        def body(element: ir.Value, _out: ir.Value) -> list[ir.Value]:
            row, column = (st.index_to_integer(st.loop_index(rank - i), TensorDType.Int64) for i in (2, 1))
            limit = arith.addi(row, constant(diagonal, TensorDType.Int64))
            is_kept = arith.cmpi(getattr(arith.CmpIPredicate, predicate), column, limit)
            return [arith.select(is_kept, element, constant(0, meta.dtype))]

        return _compute_elements(node, [value], [list(range(rank))], body)


_register_triangle("TriuOp", "sge")
_register_triangle("TrilOp", "sle")
