"""Reads by index in TOSA, by `tosa.gather`, which reads rows of [batch, rows, columns]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.shapes import check_length
from buddy.compiler.ops.tosa.tensors import (
    TosaTensor,
    broadcast_shape,
    cast,
    dense,
    expanded,
    gather,
    part,
    reshape,
    select,
    transpose,
)
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, normalized

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)


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
    dim = normalized(node.args[1], rank)
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
