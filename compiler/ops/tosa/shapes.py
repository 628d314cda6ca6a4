"""Views, slices, concatenation, constants, and reads by index in TOSA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.shapes import arange_bounds
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import (
    TosaTensor,
    broadcast_shape,
    cast,
    concatenated,
    dense,
    expanded,
    gather,
    padded,
    part,
    reshape,
    select,
    splat,
    tiled,
    transpose,
    unary,
)
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, normalize_dim, permutation_of

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)

# TOSA has no iota, so positions are constants. This length limits the text of the IR.
LONGEST_CONSTANT = 4096


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
    return expanded(tensor_of(node.args[0], symbol_table), node.tensor_meta.shape)


@lowering("RepeatOp")
def repeat(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, multiples = tensor_of(node.args[0], symbol_table), node.args[1]
    return tiled(reshape(x, [1] * (len(multiples) - len(x.shape)) + list(x.shape)), multiples)


# ---- slices ----------------------------------------------------------------------------------------------------------


def _start(node: Op, position: int, name: str, size: int) -> int:
    """Returns a slice's start, counted from the front and clamped to the dim."""
    start = argument(node, position, name, 0) or 0
    return int(min(max(start + size if start < 0 else start, 0), size))


@lowering("SliceOp")
def slice_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x = tensor_of(node.args[0], symbol_table)
    dim = normalize_dim(argument(node, 1, "dim", 0), len(x.shape))
    start, step = _start(node, 2, "start", x.shape[dim]), argument(node, 4, "step", 1) or 1
    return _strided_slice(x, dim, start, node.tensor_meta.shape[dim], step)


def _strided_slice(x: TosaTensor, dim: int, start: int, count: int, step: int) -> TosaTensor:
    """Returns `count` elements of a dim, `step` apart: reshapes the dim to rows of `step`, and takes a column."""
    if step == 1:
        return part(x, dim, start, count)
    shape = list(x.shape)
    missing = max(0, start + count * step - shape[dim])
    x = padded(x, [0] * len(shape), [missing if i == dim else 0 for i in range(len(shape))], 0)
    x = part(x, dim, start, count * step)
    rows = reshape(x, [*shape[:dim], count, step, *shape[dim + 1 :]])
    return reshape(part(rows, dim + 1, 0, 1), [*shape[:dim], count, *shape[dim + 1 :]])


@lowering("SelectOp")
def select_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x = tensor_of(node.args[0], symbol_table)
    dim, index = normalize_dim(node.args[1], len(x.shape)), node.args[2]
    return reshape(part(x, dim, index + x.shape[dim] if index < 0 else index, 1), node.tensor_meta.shape)


@lowering("SplitOp", "UnbindOp")
def split(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns consecutive pieces along a dim; unbound pieces lack this dim."""
    x = tensor_of(node.args[0], symbol_table)
    unbound = node.target.startswith("unbind")
    dim = normalize_dim(argument(node, 1 if unbound else 2, "dim", 0), len(x.shape))
    pieces, start = [], 0
    for meta in node.metas:
        assert meta is not None
        size = 1 if unbound else meta.shape[dim]
        if not size:
            raise LoweringError("no empty tensors")
        pieces.append(reshape(part(x, dim, start, size), meta.shape))
        start += size
    return pieces


@lowering("SliceScatterOp")
def scatter_slice(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, piece = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    dim = normalize_dim(argument(node, 2, "dim", 0), len(x.shape))
    if (argument(node, 5, "step", 1) or 1) != 1:
        raise LoweringError("no strided scatter")
    return _replace_range(x, piece, dim, _start(node, 3, "start", x.shape[dim]))


@lowering("SelectScatterOp")
def scatter_index(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, piece = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    dim = normalize_dim(node.args[2], len(x.shape))
    piece = reshape(piece, [*x.shape[:dim], 1, *x.shape[dim + 1 :]])
    return _replace_range(x, piece, dim, _start(node, 3, "index", x.shape[dim]))


def _replace_range(x: TosaTensor, piece: TosaTensor, dim: int, start: int) -> TosaTensor:
    """Returns `x` with the elements from `start` on replaced by `piece`, by concatenation."""
    end = start + piece.shape[dim]
    before = [part(x, dim, 0, start)] if start else []
    behind = [part(x, dim, end, x.shape[dim] - end)] if end < x.shape[dim] else []
    return concatenated([*before, cast(piece, x.dtype), *behind], dim)


@registration.lowering(ops_registry, "CatOp", with_empty_operands=True)
def cat(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    meta = node.tensor_meta
    parts = [part for part in node.args[0] if 0 not in part.tensor_meta.shape]
    found = [cast(tensor_of(part, symbol_table), meta.dtype) for part in parts]
    return concatenated(found, normalize_dim(argument(node, 1, "dim", 0), len(meta.shape)))


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
    check_length(meta)
    return dense([start + i * step for i in range(meta.shape[0])], meta.shape, meta.dtype)


def check_length(meta: TensorMeta) -> None:
    """Raises `LoweringError` for a constant that is too long to print."""
    count = 1
    for size in meta.shape:
        count *= size
    if count > LONGEST_CONSTANT:
        raise LoweringError(f"no iota, and {count} positions are too many for a constant")


@lowering("EmbeddingOp")
def embedding(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    weight, indices = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    rows = gather(reshape(weight, [1, *weight.shape]), reshape(indices, [1, prod(indices.shape)]))
    return reshape(rows, node.tensor_meta.shape)


@lowering("GatherOp")
def gather_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers `result[..., i, ...] = x[..., index[..., i, ...], ...]`: gathers elements, in batches of other dims."""
    operands = (tensor_of(node.args[place], symbol_table) for place in (0, 2))
    x, indices = (tensor if tensor.shape else reshape(tensor, [1]) for tensor in operands)
    rank = len(x.shape)
    dim = normalize_dim(node.args[1], rank)
    order = [i for i in range(rank) if i != dim] + [dim]
    for axis in order[:-1]:
        x = part(x, axis, 0, indices.shape[axis])
    x, indices = transpose(x, order), transpose(indices, order)
    batch, shape = prod(x.shape[:-1]), indices.shape
    columns = gather(reshape(x, [batch, x.shape[-1], 1]), reshape(indices, [batch, shape[-1]]))
    found = transpose(reshape(columns, shape), [order.index(i) for i in range(rank)])
    return reshape(found, node.tensor_meta.shape)


@lowering("IndexOp")
def index(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers `x[i, :, j]`: moves the indexed dims to the front, merges them, gathers rows, and moves the dims back."""
    x, listed = tensor_of(node.args[0], symbol_table), node.args[1]
    if any(item is not None and not item.tensor_meta.dtype.is_integer for item in listed):
        raise LoweringError("the size of the result of a mask depends on data")
    chosen = [axis for axis, item in enumerate(listed) if item is not None]
    kept = [axis for axis in range(len(x.shape)) if axis not in chosen]
    sizes = [x.shape[axis] for axis in chosen]
    positions = _flat_positions([tensor_of(listed[axis], symbol_table) for axis in chosen], sizes)
    rows = reshape(transpose(x, [*chosen, *kept]), [1, prod(sizes), prod(x.shape[axis] for axis in kept)])
    found = gather(rows, reshape(positions, [1, prod(positions.shape)]))
    found = reshape(found, [*positions.shape, *(x.shape[axis] for axis in kept)])
    # The dims of adjacent indices stay in place; if a slice separates indices, their dims come first.
    first = chosen[0] if chosen[-1] - chosen[0] == len(chosen) - 1 else 0
    count, rank = len(positions.shape), len(found.shape)
    order = [*range(count, count + first), *range(count), *range(count + first, rank)]
    return transpose(found, order)


def _flat_positions(indices: Sequence[TosaTensor], sizes: Sequence[int]) -> TosaTensor:
    """Returns the row-major positions that `indices` have in dims of `sizes`; negative indices count from the end."""
    rank = max(len(found.shape) for found in indices)
    aligned = [reshape(found, [1] * (rank - len(found.shape)) + list(found.shape)) for found in indices]
    total: TosaTensor | None = None
    for found, size in zip(aligned, sizes, strict=True):
        wide = cast(found, TensorDType.Int64)
        wide = select(wide < 0, wide + size, wide)
        total = wide if total is None else total * size + wide
    assert total is not None
    shape: list[int] = [1] * rank
    for found in aligned:
        shape = broadcast_shape(shape, found.shape)
    return expanded(total, shape)


def _position_mask(shape: Sequence[int], keep: Callable[[int, int], bool]) -> TosaTensor:
    """Returns a constant bool tensor [1, …, rows, columns]: `keep(row, column)`."""
    rows, columns = shape[-2:]
    check_length(TensorMeta((rows, columns), TensorDType.Bool))
    values = [keep(row, column) for row in range(rows) for column in range(columns)]
    return dense(values, [*[1] * (len(shape) - 2), rows, columns], TensorDType.Bool)


def causal_mask(shape: Sequence[int]) -> TosaTensor:
    """Returns `row >= column`, broadcastable to `shape`."""
    return _position_mask(shape, lambda row, column: row >= column)


def _triangle(name: str, keep: Callable[[int, int, int], bool]) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> Any:
        x, diagonal = tensor_of(node.args[0], symbol_table), argument(node, 1, "diagonal", 0)
        kept = _position_mask(x.shape, lambda row, column: keep(row, column, diagonal))
        return select(kept, x, x.like(0))


_triangle("TriuOp", lambda row, column, diagonal: column >= row + diagonal)
_triangle("TrilOp", lambda row, column, diagonal: column <= row + diagonal)

# `tosa.scatter` does not allow an index to occur twice.
ops_registry.absent |= dict.fromkeys(
    (
        "IndexPutOp", "IndexReduceOp", "PutOp", "ScatterOp", "ScatterAddOp", "ScatterReduceOp", "MaskedScatterOp",
    ),
    "tosa.scatter allows one write per position",
)  # fmt: skip
