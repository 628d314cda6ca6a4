"""Structured ops on buffers with dynamic sizes: their loops, and tiles of static size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, memref
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.structured import maps_of

Index = Any  # an int if the value is known, else an MLIR value of type `index`


@dataclass(frozen=True)
class DynamicLoop:
    """A loop of `size` iterations, `None` if dynamic.

    `static_strides` means that each operand has a static stride along the loop. `uses` are the dims that it indexes,
    as (operand, dim).
    """

    size: int | None
    static_strides: bool
    uses: tuple[tuple[int, int], ...]


def is_dynamic(op: Any) -> bool:
    """True if an operand of `op` is a buffer with `?` dims."""
    kinds = (value.type for value in op.operands)
    return any(isinstance(kind, ir.MemRefType) and not kind.has_static_shape for kind in kinds)


def buffers_of(op: Any) -> list[Any]:
    return [value for value in op.operands if isinstance(value.type, ir.MemRefType)]


def loops_of(op: Any) -> list[DynamicLoop]:
    """Returns the loops of `op`, an op on buffers.

    Raises `UnsupportedError` if a dynamic size or stride belongs to a sum of loop indices.
    """
    buffers = buffers_of(op)
    maps, kinds = maps_of(op, tuple(buffers))
    uses: list[list[tuple[int, int]]] = [[] for _ in kinds]
    sizes: list[int | None] = [1] * len(kinds)
    even = [True] * len(kinds)
    for number, (value, map_) in enumerate(zip(buffers, maps, strict=True)):
        for dim, (expression, size, stride) in enumerate(zip(map_.results, *_layout(value), strict=True)):
            if isinstance(expression, ir.AffineDimExpr):
                loop = expression.position
                uses[loop].append((number, dim))
                sizes[loop], even[loop] = size, even[loop] and stride is not None
            elif size is None or (stride is None and size != 1):
                raise UnsupportedError(f"a dynamic size or stride is indexed by {expression}")
    inside = {loop: None for map_ in maps for e in map_.results for loop in _in_sums(e)}
    if any(sizes[loop] is None or not (even[loop] or sizes[loop] == 1) for loop in inside):
        raise UnsupportedError("a loop with a dynamic size or stride is part of a sum")
    return [
        DynamicLoop(None if any(_layout(buffers[n])[0][d] is None for n, d in used) else size, flat, tuple(used))
        for size, flat, used in zip(sizes, even, uses, strict=True)
    ]


def slides(op: Any) -> bool:
    """True if an operand of `op` is indexed by sums of loops, as a window on an image."""
    return any(_in_sums(e) for map_ in maps_of(op, tuple(buffers_of(op)))[0] for e in map_.results)


def _in_sums(expression: Any) -> list[int]:
    if isinstance(expression, ir.AffineDimExpr) or not isinstance(expression, ir.AffineBinaryExpr):
        return []
    sides = [expression.lhs, expression.rhs]
    return [loop for e in sides for loop in ([e.position] if isinstance(e, ir.AffineDimExpr) else _in_sums(e))]


def _layout(value: Any) -> tuple[list[int | None], list[int | None]]:
    """Returns sizes and strides of a buffer, `None` for dynamic ones."""
    kind = ir.MemRefType(value.type)
    strides, _ = kind.get_strides_and_offset()
    marks = ir.ShapedType.get_dynamic_size(), ir.ShapedType.get_dynamic_stride_or_offset()
    sizes = [None if size == marks[0] else size for size in kind.shape]
    return sizes, [None if stride == marks[1] else stride for stride in strides]


def size_of(op: Any, loop: DynamicLoop) -> Any:
    """Returns the number of iterations of `loop` as a value; emitted at the insertion point."""
    if loop.size is not None:
        return constant(loop.size)
    buffers = buffers_of(op)
    number, dim = next((n, d) for n, d in loop.uses if _layout(buffers[n])[0][d] is None)
    return memref.DimOp(buffers[number], constant(dim)).result


def tile(value: Any, starts: Sequence[Index], sizes: Sequence[int]) -> Any:
    """Returns the part of a buffer at `starts`, of static sizes, as a view, or `value` itself if it is all of it.

    Raises `UnsupportedError` if the stride along a dim of more than one element is dynamic.
    """
    known, strides = _layout(value)
    if any(stride is None and size != 1 for stride, size in zip(strides, sizes, strict=True)):
        raise UnsupportedError("a tile needs static strides")
    if list(sizes) == known and None not in strides and all(isinstance(start, int) and start == 0 for start in starts):
        return value
    found = memref.ExtractStridedMetadataOp(value)
    own = list(found.results)[2 + len(known) :]
    offset = found.results[1]
    for start, stride, moving in zip(starts, strides, own, strict=True):
        if not isinstance(start, int) or start:
            step = moving if stride is None else constant(stride)
            offset = arith.addi(offset, arith.muli(constant(start) if isinstance(start, int) else start, step))
    dense = _dense(sizes)
    steps = [step if n == 1 or own is None else own for step, n, own in zip(dense, sizes, strides, strict=True)]
    mark = f"strided<[{', '.join(map(str, steps))}], offset: ?>"
    kind = ir.Type.parse(f"memref<{''.join(f'{size}x' for size in sizes)}{value.type.element_type}, {mark}>")
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    return memref.reinterpret_cast(kind, found.results[0], [offset], [], [], [dynamic], list(sizes), steps)


def part(value: Any, starts: Sequence[Index], sizes: Sequence[Index]) -> Any:
    """Returns a subview as `tile` does, with sizes that may be values."""
    rank = len(sizes)
    mark = ir.ShapedType.get_dynamic_size()
    _, strides = _layout(value)
    moved, counts = ([n for n in ns if not isinstance(n, int)] for ns in (starts, sizes))
    fixed, known = ([n if isinstance(n, int) else mark for n in ns] for ns in (starts, sizes))
    steps = ", ".join("?" if stride is None else str(stride) for stride in strides)
    shape = "".join(f"{'?' if not isinstance(n, int) else n}x" for n in sizes)
    # The verifier requires a static offset of 0 where possible.
    begin = 0 if not moved and not any(starts) and ir.MemRefType(value.type).get_strides_and_offset()[1] == 0 else "?"
    kind = ir.Type.parse(f"memref<{shape}{value.type.element_type}, strided<[{steps}], offset: {begin}>>")
    return memref.SubViewOp(kind, value, moved, counts, [], fixed, known, [1] * rank).result


def _dense(sizes: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return strides[::-1]


def constant(number: int) -> Any:
    return arith.constant(ir.IndexType.get(), number)
