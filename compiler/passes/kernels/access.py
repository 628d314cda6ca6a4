"""Describes memrefs as a flat buffer with a stride per loop, and merges loops that are contiguous everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import ir, memref


class UnsupportedError(Exception):
    """The code generator does not support the op; the text is the reason, which a remark shows."""


@dataclass(frozen=True)
class MemrefLayout:
    """Shape and strides of a memref, all static; `offset` is `None` if it is dynamic."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int | None

    @property
    def span(self) -> int:
        """The number of elements from the first to the last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


def layout_of(type_: Any) -> MemrefLayout:
    """Returns the layout of a memref type.

    Raises `UnsupportedError` for dynamic shapes or strides.
    """
    if not isinstance(type_, ir.MemRefType):
        raise UnsupportedError(f"operand of type {type_} is not a memref")
    if not type_.has_static_shape:
        raise UnsupportedError(f"dynamic shape {type_}")
    if 0 in type_.shape:
        return MemrefLayout(
            tuple(type_.shape), (0,) * len(type_.shape), 0
        )  # MLIR reports no strides for an empty memref
    strides, offset = type_.get_strides_and_offset()
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    if dynamic in strides or any(stride < 0 for stride in strides):
        raise UnsupportedError(f"strides of {type_} are not known")
    return MemrefLayout(tuple(type_.shape), tuple(strides), None if offset == dynamic else offset)


def flatten(value: Any) -> Any:
    """Returns `value` as a 1-D memref of unit stride from its first element; emitted at the insertion point."""
    type_ = value.type
    layout = layout_of(type_)
    if layout.strides == (1,):
        return value
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    offset = dynamic if layout.offset is None else layout.offset
    offsets = [memref.ExtractStridedMetadataOp(value).results[1]] if layout.offset is None else []
    return memref.reinterpret_cast(flat_type(type_), value, offsets, [], [], [offset], [layout.span], [1])


def flat_type(type_: Any) -> Any:
    """Returns the type of `flatten`'s result for a memref of `type_`."""
    layout = layout_of(type_)
    mark = "" if layout.offset == 0 else f", strided<[1], offset: {'?' if layout.offset is None else layout.offset}>"
    space = f", {type_.memory_space}" if type_.memory_space is not None else ""
    return ir.Type.parse(f"memref<{layout.span}x{type_.element_type}{mark}{space}>")


@dataclass(frozen=True)
class Loop:
    """One loop of a structured op: its size, the stride of each operand (0 if constant), whether it is a reduction.

    `dims` are the dims of the op's iteration space that were merged into it.
    """

    size: int
    strides: tuple[int, ...]
    reduction: bool
    dims: tuple[int, ...]
    used: tuple[bool, ...]


def loops_of(
    sizes: Sequence[int], reductions: Sequence[bool], maps: Sequence[Any], layouts: Sequence[MemrefLayout]
) -> list[Loop]:
    """Returns the loops of an op whose operands are indexed by linear combinations of loops, given by `maps`.

    Raises `UnsupportedError` for other maps.
    """
    strides = [[0] * len(sizes) for _ in maps]
    used = [[False] * len(sizes) for _ in maps]
    for operand, (map_, layout) in enumerate(zip(maps, layouts, strict=True)):
        for expression, stride in zip(map_.results, layout.strides, strict=True):
            for loop, factor in _terms(expression):
                strides[operand][loop] += stride * factor
                used[operand][loop] = True
    return [
        Loop(size, tuple(s[d] for s in strides), reductions[d], (d,), tuple(u[d] for u in used))
        for d, size in enumerate(sizes)
    ]


def _terms(expression: Any) -> list[tuple[int, int]]:
    """Returns (loop, factor) for each term of a linear index such as `2 * h + kh`."""
    if isinstance(expression, ir.AffineDimExpr):
        return [(expression.position, 1)]
    if isinstance(expression, ir.AffineAddExpr):
        return [*_terms(expression.lhs), *_terms(expression.rhs)]
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        return [(loop, factor * expression.rhs.value) for loop, factor in _terms(expression.lhs)]
    if isinstance(expression, ir.AffineConstantExpr) and expression.value == 0:
        return []
    raise UnsupportedError(f"index {expression} is not a sum of loop indices")


def loop_sizes(dims: int, maps: Sequence[Any], layouts: Sequence[MemrefLayout]) -> list[int]:
    """Returns the size of each of `dims` loops, from the operands' shapes.

    Raises `UnsupportedError` if no operand determines it.
    """
    sizes: list[int | None] = [None] * dims
    for map_, layout in zip(maps, layouts, strict=True):
        for expression, size in zip(map_.results, layout.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    known = [size for size in sizes if size is not None]
    if len(known) != dims:
        raise UnsupportedError("a loop's size does not follow from the operands' shapes")
    return known


def merge(loops: Sequence[Loop], keep: frozenset[int] = frozenset()) -> list[Loop]:
    """Merges neighbouring loops that are contiguous in every operand, and drops loops of size 1.

    Loops over a dim in `keep` are not merged (a body that reads its index needs it).
    """
    merged: list[Loop] = []
    for loop in loops:
        if loop.size == 1 and not keep.intersection(loop.dims):
            continue
        if merged and not keep.intersection(loop.dims + merged[-1].dims) and _continues(merged[-1], loop):
            outer = merged.pop()
            loop = replace(loop, size=outer.size * loop.size, dims=outer.dims + loop.dims)
        merged.append(loop)
    return merged


def _continues(outer: Loop, inner: Loop) -> bool:
    return (
        outer.reduction == inner.reduction
        and outer.used == inner.used
        and all(a == b * inner.size for a, b in zip(outer.strides, inner.strides, strict=True))
    )
