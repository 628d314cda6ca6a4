"""Structured ops on buffers with dynamic sizes: their loops, and tiles of static size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.mlir.bindings import arith, ir, memref
from buddy.compiler.passes.kernels.access import UnsupportedError, row_major_strides
from buddy.compiler.passes.kernels.emit import Index
from buddy.compiler.passes.kernels.structured import maps_of


@dataclass(frozen=True)
class DynamicLoop:
    """A loop of an op on buffers, of `size` iterations (`None` if the trip count is dynamic).

    `static_strides` means that each operand has a static stride along the loop. `uses` has (operand, dim) of each dim
    that the loop alone indexes.
    """

    size: int | None
    static_strides: bool
    uses: tuple[tuple[int, int], ...]


def is_dynamic(op: ir.Operation) -> bool:
    """True if an operand of `op` is a buffer with `?` dims."""
    types = (value.type for value in op.operands)
    return any(isinstance(type_, ir.MemRefType) and not type_.has_static_shape for type_ in types)


def buffers_of(op: ir.Operation) -> list[ir.Value]:
    return [value for value in op.operands if isinstance(value.type, ir.MemRefType)]


def dynamic_loops_of(op: ir.Operation) -> list[DynamicLoop]:
    """Returns the loops of `op`, an op on buffers.

    Raises `UnsupportedError` if a dynamic size or stride belongs to a sum of loop indices.
    """
    buffers = buffers_of(op)
    maps, reductions = maps_of(op, tuple(buffers))
    uses: list[list[tuple[int, int]]] = [[] for _ in reductions]
    sizes: list[int | None] = [1] * len(reductions)
    static_strides = [True] * len(reductions)
    for number, (value, map_) in enumerate(zip(buffers, maps, strict=True)):
        for dim, (expression, size, stride) in enumerate(zip(map_.results, *_layout(value), strict=True)):
            if isinstance(expression, ir.AffineDimExpr):
                loop = expression.position
                uses[loop].append((number, dim))
                # One operand may have a static size where another one has a dynamic size.
                sizes[loop] = None if sizes[loop] is None else size
                static_strides[loop] = static_strides[loop] and stride is not None
            elif size is None or (stride is None and size != 1):
                raise UnsupportedError(f"a dynamic size or stride is indexed by {expression}")
    loops_in_sums = {loop for map_ in maps for e in map_.results for loop in _loops_in_sum(e)}
    if any(sizes[loop] is None or not (static_strides[loop] or sizes[loop] == 1) for loop in loops_in_sums):
        raise UnsupportedError("a loop with a dynamic size or stride is part of a sum")
    return [
        DynamicLoop(None if _dynamic_dim(buffers, loop_uses) is not None else size, is_static, tuple(loop_uses))
        for size, is_static, loop_uses in zip(sizes, static_strides, uses, strict=True)
    ]


def _dynamic_dim(buffers: Sequence[ir.Value], uses: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Returns the first (operand, dim) in `uses` whose size is dynamic, or `None`."""
    return next(((number, dim) for number, dim in uses if _layout(buffers[number])[0][dim] is None), None)


def has_window(op: ir.Operation) -> bool:
    """True if an operand of `op` is indexed by sums of loops, as the image of a convolution is."""
    return any(_loops_in_sum(e) for map_ in maps_of(op, tuple(buffers_of(op)))[0] for e in map_.results)


def _loops_in_sum(expression: ir.AffineExpr) -> list[int]:
    """Returns the loops in an index expression that is a sum or product; none if it is a single loop or constant."""
    if isinstance(expression, ir.AffineDimExpr) or not isinstance(expression, ir.AffineBinaryExpr):
        return []
    terms = [expression.lhs, expression.rhs]
    return [loop for e in terms for loop in ([e.position] if isinstance(e, ir.AffineDimExpr) else _loops_in_sum(e))]


def _layout(value: ir.Value) -> tuple[list[int | None], list[int | None]]:
    """Returns sizes and strides of a buffer, `None` for dynamic ones."""
    type_ = ir.MemRefType(value.type)
    strides, _ = type_.get_strides_and_offset()
    dynamic_size, dynamic_stride = ir.ShapedType.get_dynamic_size(), ir.ShapedType.get_dynamic_stride_or_offset()
    sizes = [None if size == dynamic_size else size for size in type_.shape]
    return sizes, [None if stride == dynamic_stride else stride for stride in strides]


def size_of(op: ir.Operation, loop: DynamicLoop) -> ir.Value:
    """Emits the number of iterations of `loop` as a value of type `index`."""
    if loop.size is not None:
        return constant(loop.size)
    buffers = buffers_of(op)
    use = _dynamic_dim(buffers, loop.uses)
    assert use is not None, "a loop of dynamic size indexes a dim of dynamic size"
    number, dim = use
    return memref.DimOp(buffers[number], constant(dim)).result


def tile(value: ir.Value, starts: Sequence[Index], sizes: Sequence[int]) -> ir.Value:
    """Returns a view of the part of a buffer at `starts` with static `sizes` and strides.

    Returns `value` itself if the part is the whole buffer. Raises `UnsupportedError` if the stride along a dim of more
    than one element is dynamic.
    """
    shape, strides = _layout(value)
    if any(stride is None and size != 1 for stride, size in zip(strides, sizes, strict=True)):
        raise UnsupportedError("a tile needs static strides")
    if list(sizes) == shape and None not in strides and all(isinstance(start, int) and start == 0 for start in starts):
        return value
    metadata = memref.ExtractStridedMetadataOp(value)
    # The op's results: base buffer, offset, sizes, strides.
    base, offset, stride_values = metadata.results[0], metadata.results[1], list(metadata.results)[2 + len(shape) :]
    for start, stride, stride_value in zip(starts, strides, stride_values, strict=True):
        if not isinstance(start, int) or start:
            factor = stride_value if stride is None else constant(stride)
            offset = arith.addi(offset, arith.muli(constant(start) if isinstance(start, int) else start, factor))
    # The stride of a unit dim has no effect, and may be dynamic in `value`.
    view_strides = [
        dense if size == 1 or stride is None else stride
        for dense, size, stride in zip(row_major_strides(sizes, 1), sizes, strides, strict=True)
    ]
    layout = f"strided<[{', '.join(map(str, view_strides))}], offset: ?>"
    type_ = ir.Type.parse(f"memref<{''.join(f'{size}x' for size in sizes)}{value.type.element_type}, {layout}>")
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    return memref.reinterpret_cast(type_, base, [offset], [], [], [dynamic], list(sizes), view_strides)


def subview(value: ir.Value, starts: Sequence[Index], sizes: Sequence[Index]) -> ir.Value:
    """Returns a subview of the part of a buffer at `starts`, with `sizes` that may be MLIR values."""
    rank = len(sizes)
    dynamic = ir.ShapedType.get_dynamic_size()
    _, strides = _layout(value)
    start_values, size_values = ([i for i in indices if not isinstance(i, int)] for indices in (starts, sizes))
    static_starts, static_sizes = (
        [i if isinstance(i, int) else dynamic for i in indices] for indices in (starts, sizes)
    )
    stride_text = ", ".join("?" if stride is None else str(stride) for stride in strides)
    shape = "".join(f"{size if isinstance(size, int) else '?'}x" for size in sizes)
    # The verifier requires a static offset of 0 where possible.
    has_zero_start = not start_values and not any(starts)
    offset = 0 if has_zero_start and ir.MemRefType(value.type).get_strides_and_offset()[1] == 0 else "?"
    type_ = ir.Type.parse(f"memref<{shape}{value.type.element_type}, strided<[{stride_text}], offset: {offset}>>")
    return memref.SubViewOp(type_, value, start_values, size_values, [], static_starts, static_sizes, [1] * rank).result


def constant(number: int) -> ir.Value:
    """Emits a constant of type `index`."""
    return arith.constant(ir.IndexType.get(), number)
