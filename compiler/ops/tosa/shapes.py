"""Lowers views, slices, concatenation, constants, and reads by index to TOSA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.ops.shapes import arange_bounds
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import (
    TosaTensor,
    broadcast_shape,
    cast,
    concatenate,
    dense,
    expand_to,
    gather,
    pad,
    reshape,
    select,
    slice_dim,
    splat,
    tile,
    transpose,
    unary,
)
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, normalize_dim, permutation_of

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)

# TOSA has no iota, so `arange` and masks become constants. The limit keeps the printed IR short.
MAX_CONSTANT_ELEMENTS = 4096


@lowering("ViewOp", "ReshapeOp", "UnsqueezeOp", "SqueezeOp")
def view(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return reshape(tensor_of(node.args[0], symbol_table), node.tensor_meta.shape)


@lowering("CloneOp", "AliasOp")
def identity(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return unary("identity", tensor_of(node.args[0], symbol_table))


@lowering("TOp", "TransposeOp", "PermuteOp")
def permute(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return transpose(tensor_of(node.args[0], symbol_table), permutation_of(node))


@lowering("ExpandOp")
def expand(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return expand_to(tensor_of(node.args[0], symbol_table), node.tensor_meta.shape)


@lowering("RepeatOp")
def repeat(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, multiples = tensor_of(node.args[0], symbol_table), node.args[1]
    return tile(reshape(x, [1] * (len(multiples) - len(x.shape)) + list(x.shape)), multiples)


# ---- slices ----------------------------------------------------------------------------------------------------------


def _slice_start(node: Op, position: int, name: str, size: int) -> int:
    """Returns a slice's start, counted from the front and clamped to the dim."""
    start = argument(node, position, name, 0) or 0
    return int(min(max(start + size if start < 0 else start, 0), size))


@lowering("SliceOp")
def slice_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x = tensor_of(node.args[0], symbol_table)
    dim = normalize_dim(argument(node, 1, "dim", 0), len(x.shape))
    start, step = _slice_start(node, 2, "start", x.shape[dim]), argument(node, 4, "step", 1) or 1
    return _strided_slice(x, dim, start, node.tensor_meta.shape[dim], step)


def _strided_slice(x: TosaTensor, dim: int, start: int, count: int, step: int) -> TosaTensor:
    """Returns `count` elements of a dim, `step` apart: the first column of the dim reshaped to rows of `step`."""
    if step == 1:
        return slice_dim(x, dim, start, count)
    shape = list(x.shape)
    padding = max(0, start + count * step - shape[dim])
    x = pad(x, [0] * len(shape), [padding if i == dim else 0 for i in range(len(shape))], 0)
    x = slice_dim(x, dim, start, count * step)
    rows = reshape(x, [*shape[:dim], count, step, *shape[dim + 1 :]])
    return reshape(slice_dim(rows, dim + 1, 0, 1), [*shape[:dim], count, *shape[dim + 1 :]])


@lowering("SelectOp")
def select_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x = tensor_of(node.args[0], symbol_table)
    dim, index = normalize_dim(node.args[1], len(x.shape)), node.args[2]
    return reshape(slice_dim(x, dim, index + x.shape[dim] if index < 0 else index, 1), node.tensor_meta.shape)


@lowering("SplitOp", "UnbindOp")
def split(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns consecutive pieces along a dim; `unbind` removes this dim from the pieces."""
    x = tensor_of(node.args[0], symbol_table)
    is_unbind = node.target.startswith("unbind")
    dim = normalize_dim(argument(node, 1 if is_unbind else 2, "dim", 0), len(x.shape))
    pieces, start = [], 0
    for meta in node.metas:
        assert meta is not None
        size = 1 if is_unbind else meta.shape[dim]
        if not size:
            raise LoweringError("no empty tensors")
        pieces.append(reshape(slice_dim(x, dim, start, size), meta.shape))
        start += size
    return pieces


@lowering("SliceScatterOp")
def scatter_slice(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, piece = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    dim = normalize_dim(argument(node, 2, "dim", 0), len(x.shape))
    if (argument(node, 5, "step", 1) or 1) != 1:
        raise LoweringError("no strided scatter")
    return _replace_range(x, piece, dim, _slice_start(node, 3, "start", x.shape[dim]))


@lowering("SelectScatterOp")
def scatter_index(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, piece = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    dim = normalize_dim(node.args[2], len(x.shape))
    piece = reshape(piece, [*x.shape[:dim], 1, *x.shape[dim + 1 :]])
    return _replace_range(x, piece, dim, _slice_start(node, 3, "index", x.shape[dim]))


def _replace_range(x: TosaTensor, piece: TosaTensor, dim: int, start: int) -> TosaTensor:
    """Returns `x` with the elements of `dim` from `start` on replaced by `piece`, by concatenation."""
    end = start + piece.shape[dim]
    before = [slice_dim(x, dim, 0, start)] if start else []
    after = [slice_dim(x, dim, end, x.shape[dim] - end)] if end < x.shape[dim] else []
    return concatenate([*before, cast(piece, x.dtype), *after], dim)


@registration.lowering(ops_registry, "CatOp", with_empty_operands=True)
def cat(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    meta = node.tensor_meta
    operands = [op for op in node.args[0] if 0 not in op.tensor_meta.shape]
    tensors = [cast(tensor_of(op, symbol_table), meta.dtype) for op in operands]
    return concatenate(tensors, normalize_dim(argument(node, 1, "dim", 0), len(meta.shape)))


# ---- constants -------------------------------------------------------------------------------------------------------


@lowering("FullOp", "ScalarTensorOp")
def full(node: Op, _symbol_table: SymbolTable) -> TosaTensor:
    value = node.args[0] if node.target.startswith("scalar_tensor") else argument(node, 1, "fill_value")
    if not isinstance(value, (bool, int, float)):
        raise LoweringError(f"the fill value {value} is not a compile-time constant")
    return splat(value, node.tensor_meta.shape, node.tensor_meta.dtype)


@lowering("ArangeOp")
def arange(node: Op, _symbol_table: SymbolTable) -> TosaTensor:
    start, step = arange_bounds(node)
    meta = node.tensor_meta
    _check_constant_size(meta)
    return dense([start + i * step for i in range(meta.shape[0])], meta.shape, meta.dtype)


def _check_constant_size(meta: TensorMeta) -> None:
    """Raises `LoweringError` for a constant with more than `MAX_CONSTANT_ELEMENTS` elements."""
    count = prod(meta.shape)
    if count > MAX_CONSTANT_ELEMENTS:
        raise LoweringError(f"no iota, and {count} positions are too many for a constant")


# ---- reads by index --------------------------------------------------------------------------------------------------


@lowering("EmbeddingOp")
def embedding(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    weight, indices = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    rows = gather(reshape(weight, [1, *weight.shape]), reshape(indices, [1, prod(indices.shape)]))
    return reshape(rows, node.tensor_meta.shape)


@lowering("GatherOp")
def gather_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers `result[..., i, ...] = x[..., index[..., i, ...], ...]`: gathers elements; other dims are the batch."""
    operands = (tensor_of(node.args[i], symbol_table) for i in (0, 2))
    x, indices = (tensor if tensor.shape else reshape(tensor, [1]) for tensor in operands)
    rank = len(x.shape)
    dim = normalize_dim(node.args[1], rank)
    order = [i for i in range(rank) if i != dim] + [dim]
    for axis in order[:-1]:
        x = slice_dim(x, axis, 0, indices.shape[axis])
    x, indices = transpose(x, order), transpose(indices, order)
    batch, shape = prod(x.shape[:-1]), indices.shape
    columns = gather(reshape(x, [batch, x.shape[-1], 1]), reshape(indices, [batch, shape[-1]]))
    result = transpose(reshape(columns, shape), [order.index(i) for i in range(rank)])
    return reshape(result, node.tensor_meta.shape)


@lowering("IndexOp")
def index(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers `x[i, :, j]`: moves the indexed dims to the front, merges them, gathers rows, moves the new dims back."""
    x, items = tensor_of(node.args[0], symbol_table), node.args[1]
    if any(item is not None and not item.tensor_meta.dtype.is_integer for item in items):
        raise LoweringError("the size of the result of a mask depends on data")
    indexed = [dim for dim, item in enumerate(items) if item is not None]
    others = [dim for dim in range(len(x.shape)) if dim not in indexed]
    sizes = [x.shape[dim] for dim in indexed]
    positions = _flat_positions([tensor_of(items[dim], symbol_table) for dim in indexed], sizes)
    rows = reshape(transpose(x, [*indexed, *others]), [1, prod(sizes), prod(x.shape[dim] for dim in others)])
    gathered = gather(rows, reshape(positions, [1, prod(positions.shape)]))
    gathered = reshape(gathered, [*positions.shape, *(x.shape[dim] for dim in others)])
    # As in NumPy, the new dims replace the indexed dims, or come first if the indexed dims are not adjacent.
    first = indexed[0] if indexed[-1] - indexed[0] == len(indexed) - 1 else 0
    count, rank = len(positions.shape), len(gathered.shape)
    order = [*range(count, count + first), *range(count), *range(count + first, rank)]
    return transpose(gathered, order)


def _flat_positions(indices: Sequence[TosaTensor], sizes: Sequence[int]) -> TosaTensor:
    """Returns the row-major positions of `indices` in dims of `sizes`; negative indices count from the end."""
    rank = max(len(index.shape) for index in indices)
    aligned = [reshape(index, [1] * (rank - len(index.shape)) + list(index.shape)) for index in indices]
    positions: TosaTensor | None = None
    for index, size in zip(aligned, sizes, strict=True):
        wide = cast(index, TensorDType.Int64)
        wide = select(wide < 0, wide + size, wide)
        positions = wide if positions is None else positions * size + wide
    assert positions is not None
    shape: list[int] = [1] * rank
    for index in aligned:
        shape = broadcast_shape(shape, index.shape)
    return expand_to(positions, shape)


# ---- masks -----------------------------------------------------------------------------------------------------------


def _position_mask(shape: Sequence[int], keep: Callable[[int, int], bool]) -> TosaTensor:
    """Returns a constant bool tensor [1, …, rows, columns] with the elements `keep(row, column)`."""
    rows, columns = shape[-2:]
    _check_constant_size(TensorMeta((rows, columns), TensorDType.Bool))
    values = [keep(row, column) for row in range(rows) for column in range(columns)]
    return dense(values, [*[1] * (len(shape) - 2), rows, columns], TensorDType.Bool)


def causal_mask(shape: Sequence[int]) -> TosaTensor:
    """Returns a bool tensor `row >= column` that broadcasts to `shape`."""
    return _position_mask(shape, lambda row, column: row >= column)


def _register_triangle(name: str, keep: Callable[[int, int, int], bool]) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> TosaTensor:
        x, diagonal = tensor_of(node.args[0], symbol_table), argument(node, 1, "diagonal", 0)
        mask = _position_mask(x.shape, lambda row, column: keep(row, column, diagonal))
        return select(mask, x, x.like(0))


_register_triangle("TriuOp", lambda row, column, diagonal: column >= row + diagonal)
_register_triangle("TrilOp", lambda row, column, diagonal: column <= row + diagonal)

# `tosa.scatter` does not allow two writes to the same position.
ops_registry.absence_reasons |= dict.fromkeys(
    (
        "IndexPutOp", "IndexReduceOp", "PutOp", "ScatterOp", "ScatterAddOp", "ScatterReduceOp", "MaskedScatterOp",
    ),
    "tosa.scatter allows one write per position",
)  # fmt: skip
