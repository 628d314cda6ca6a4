"""Lowers reads by index; checks and clamps indices, also for other lowerings, and checks assertions.

Reads by index are gathers, embeddings, indexing by index tensors, and triangular parts.

Compiled code checks indices before it uses them. If one is out of range, it calls eager, which raises the error. The
check does not protect memory, because compiled code cannot leave a loop early. Therefore each index is also clamped to
its dim by one unsigned minimum, without a branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations import ArangeOp, FullOp, ScalarTensorOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, tensor
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.func import call_eager_for_errors
from buddy.compiler.ops.loops import Extent, LoopState, element, position, scalar_to_index
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, constant, normalize_dim, value_of

# ---- checks ----------------------------------------------------------------------------------------------------------


def clamp_index(index: Scalar, size: Extent, wraps: bool = False) -> ir.Value:
    """Returns a data-dependent index as a valid position in a dim of `size`.

    With `wraps`, negative indices count from the end. An index out of range, below or above, becomes the last position.
    Raises `LoweringError` for a dim of size 0, which has no valid position.
    """
    if isinstance(size, int) and size == 0:
        raise LoweringError("the indexed dim is empty, which eager rejects")
    signed_index, length = scalar_to_index(index), position(size)
    if wraps:
        negative = arith.cmpi(arith.CmpIPredicate.slt, signed_index, position(0))
        signed_index = arith.select(negative, arith.addi(signed_index, length), signed_index)
    return arith.minui(signed_index, arith.subi(length, position(1)))


# The element type of the tensor that says whether an index is out of range.
_FLAG_TYPE = TensorDType.Int32
# Whether to emit checks, which an option of the recipe decides.
_checks_enabled = ContextVar("_checks_enabled", default=True)


@contextmanager
def value_checks(enabled: bool) -> Iterator[None]:
    """Enables or disables the checks of this module for lowerings in the `with` block."""
    token = _checks_enabled.set(enabled)
    try:
        yield
    finally:
        _checks_enabled.reset(token)


def fall_back_if_outside(
    node: Op,
    symbol_table: SymbolTable,
    indices: Sequence[tuple[Op, Extent]],
    wraps: bool = False,
    read: Callable[[Scalar], Scalar] = lambda x: x,
) -> None:
    """Emits a check that falls back to eager for `node` if an index is out of range.

    `indices` are index tensors, each with the size of the dim that it indexes. With `wraps`, negative indices count
    from the end. `read` converts an element to an index from 0. Index tensors that do not depend on inputs come from
    PyTorch's decompositions, and are not checked.
    """
    if not _checks_enabled.get():
        return
    checked = [
        (op, size) for op, size in indices if 0 not in op.tensor_meta.shape and depends_on_inputs(op, symbol_table)
    ]
    for op, size in checked:
        flag_tensor = _out_of_range_flag(value_of(op, symbol_table), op.tensor_meta.dtype, size, wraps, read)
        flag = element(flag_tensor, [], _FLAG_TYPE)
        fall_back_if(node, symbol_table, flag.compare("ne", 0), "an index is out of range")


def fall_back_if(node: Op, symbol_table: SymbolTable, invalid: Scalar, condition: str) -> None:
    """Emits a check that falls back to eager for the error of `node` if `invalid`, a bool, is true.

    `condition` says in words when `invalid` is true.
    """
    if not _checks_enabled.get():
        return
    LoopState([]).branch(invalid, lambda: call_eager_for_errors(node, symbol_table, condition))


def _out_of_range_flag(
    value: ir.Value, dtype: TensorDType, size: Extent, wraps: bool, read: Callable[[Scalar], Scalar]
) -> ir.Value:
    """Returns a zero-dimensional tensor: 1 if an index in `value` is out of range for `size`, else 0."""
    shape = st.shape_of(value)

    def body(x: Scalar, flag: Scalar) -> Scalar:
        index, length = scalar_to_index(read(x)), position(size)
        end = length
        if wraps:
            # Valid wrapping indices are -length .. length - 1; adding the length makes them 0 .. 2 * length - 1.
            index, end = arith.addi(index, length), arith.addi(length, length)
        # An unsigned comparison: a negative index is a large number.
        is_outside = arith.cmpi(arith.CmpIPredicate.uge, index, end)
        return flag | cast(Scalar(is_outside, TensorDType.Bool), _FLAG_TYPE)

    return st.reduce([(value, dtype)], shape, list(range(len(shape))), 0, _FLAG_TYPE, body)


def depends_on_inputs(index: Op, symbol_table: SymbolTable) -> bool:
    """True if a tensor depends on arguments of the function, and not only on constants and `arange`."""
    pending, seen = [index], set[Op]()
    while pending:
        op = pending.pop()
        value = symbol_table.get((op.name, 0))
        # A value that a block owns is an argument of the function.
        if value is None or isinstance(value.owner, ir.Block):
            return True
        if not op.parents and not isinstance(op, (ArangeOp, FullOp, ScalarTensorOp)):
            return True
        seen.add(op)
        pending += [parent for parent in op.parents if parent not in seen]
    return False


ops_registry = Registry()


@ops_registry.lowering("AssertOp")
def check_assertion(node: Op, symbol_table: SymbolTable) -> list[ir.Value | None]:
    """Emits a check that falls back to eager, which raises, if the condition is false. Returns no value."""
    meta = node.args[0].tensor_meta
    if math.prod(meta.shape) != 1:
        raise LoweringError(f"the condition has shape {list(meta.shape)}, not one element")
    condition = element(value_of(node.args[0], symbol_table), [position(0) for _ in meta.shape], meta.dtype)
    fall_back_if(node, symbol_table, condition.compare("eq", 0), "the assertion does not hold")
    return [None]


# ---- reads by index --------------------------------------------------------------------------------------------------


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
