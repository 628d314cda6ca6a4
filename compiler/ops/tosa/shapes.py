"""Views, slices, concatenation and constants in TOSA."""

from __future__ import annotations

from functools import partial

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorMeta
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.shapes import arange_bounds
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import (
    TosaTensor,
    cast,
    concatenated,
    dense,
    expanded,
    padded,
    part,
    reshape,
    splat,
    tiled,
    transpose,
    unary,
)
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, normalized, permutation_of

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
    """Returns a slice's start, counted from the front and within the dim."""
    start = argument(node, position, name, 0) or 0
    return int(min(max(start + size if start < 0 else start, 0), size))


@lowering("SliceOp")
def slice_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x = tensor_of(node.args[0], symbol_table)
    dim = normalized(argument(node, 1, "dim", 0), len(x.shape))
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
    dim, index = normalized(node.args[1], len(x.shape)), node.args[2]
    return reshape(part(x, dim, index + x.shape[dim] if index < 0 else index, 1), node.tensor_meta.shape)


@lowering("SplitOp", "UnbindOp")
def split(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns consecutive pieces along a dim; unbound pieces lack this dim."""
    x = tensor_of(node.args[0], symbol_table)
    unbound = node.target.startswith("unbind")
    dim = normalized(argument(node, 1 if unbound else 2, "dim", 0), len(x.shape))
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
    dim = normalized(argument(node, 2, "dim", 0), len(x.shape))
    if (argument(node, 5, "step", 1) or 1) != 1:
        raise LoweringError("no strided scatter")
    return _replace_range(x, piece, dim, _start(node, 3, "start", x.shape[dim]))


@lowering("SelectScatterOp")
def scatter_index(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, piece = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    dim = normalized(node.args[2], len(x.shape))
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
    return concatenated(found, normalized(argument(node, 1, "dim", 0), len(meta.shape)))


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
