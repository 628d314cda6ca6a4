"""Analyses ops for row-wise fusion: the outer loops that they share, and the elements that each accesses per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import VIEW_OPS, element_bytes, is_unaliased, root_of
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, layout_of
from buddy.compiler.passes.kernels.structured import Structured

# The numbers of iterations of no row loop (1), of the first one, of the first two together, and so on: loops of the
# sizes 2, 3 and 4 have the bounds (1, 2, 6, 24). Ops whose loops are split at the same bounds have the same row loops.
Bounds = tuple[int, ...]


@dataclass(frozen=True)
class OperandAccess:
    """An op's access to element `offset + row indices · row_strides + inner indices · inner_strides` of `buffer`.

    Offsets and strides are in elements.
    """

    value: Any  # the operand, a view of `buffer`
    buffer: Any
    offset: int
    row_strides: tuple[int, ...]
    inner_strides: tuple[int, ...]
    span: int  # elements from the first to the last one of a row, with those in between
    written: bool

    def overlaps_in_other_rows(self, other: OperandAccess, sizes: Sequence[int]) -> bool:
        """True if a row of this access may overlap another row of `other`, in the same buffer.

        `sizes` are those of the row loops.
        """
        if self.row_strides != other.row_strides:
            return True
        start = min(self.offset, other.offset)
        extent = max(self.offset + self.span, other.offset + other.span) - start
        # Rows are disjoint if each stride is at least the extent of all rows along the loops with smaller strides.
        for stride, size in sorted(zip(self.row_strides, sizes, strict=True)):
            if stride < extent:
                return True
            extent += stride * (size - 1)
        return False


@dataclass(frozen=True)
class RowOp:
    """A structured op as `row_loops` around `inner_loops`, with an access for each operand."""

    structured: Structured
    row_loops: tuple[Loop, ...]
    inner_loops: tuple[Loop, ...]
    accesses: tuple[OperandAccess, ...]


def leading_rows(op: Structured) -> int:
    """Returns the product of the sizes of the parallel loops before the first reduction loop of `op`."""
    count = 1
    for loop in op.loops:
        if loop.reduction:
            break
        count *= loop.size
    return count


def refine_bounds(bounds: Bounds, op: Structured) -> Bounds | None:
    """Returns `bounds` with those of the loops of `op` added, up to the last bound.

    Returns `None` if a bound does not divide the next one.
    """
    iterations, refined = 1, set(bounds)
    for loop in op.loops:
        if iterations * loop.size >= bounds[-1]:
            break
        iterations *= loop.size
        refined.add(iterations)
    ordered = tuple(sorted(refined))
    return ordered if all(b % a == 0 for a, b in pairwise(ordered)) else None


def split_rows(op: Structured, bounds: Bounds) -> RowOp:
    """Splits the loops of `op`: the outer ones, with `bounds[-1]` iterations, become row loops, the others inner loops.

    Raises `UnsupportedError` if a loop cannot be split there, if a row loop would be a reduction, if an inner loop has
    no stride, or if an operand's offset is not known.
    """
    rows: list[Loop] = []
    inner: list[Loop] = []
    iterations = 1
    for loop in op.loops:
        remaining = loop.size
        for lower, upper in pairwise(bounds):
            # Only the row loop that begins where the loops before end takes a part of this loop.
            if lower != iterations or remaining == 1:
                continue
            size = upper // lower
            if loop.reduction or remaining % size:
                raise UnsupportedError("its outer loops do not match the rows")
            remaining //= size
            rows.append(replace(loop, size=size, strides=tuple(stride * remaining for stride in loop.strides)))
            iterations = upper
        if remaining > 1:
            inner.append(replace(loop, size=remaining))
    if iterations != bounds[-1]:
        raise UnsupportedError("its outer loops do not match the rows")
    if any(not any(loop.strides) for loop in inner):
        raise UnsupportedError("a loop within a row has no stride in any operand")
    accesses = tuple(_access(op, number, rows, inner) for number in range(len(op.operands)))
    return RowOp(op, tuple(rows), tuple(inner), accesses)


def _access(op: Structured, number: int, rows: Sequence[Loop], inner: Sequence[Loop]) -> OperandAccess:
    """Returns the access of `op` to operand `number`."""
    value = op.operands[number]
    strides = tuple(loop.strides[number] for loop in inner)
    span = 1 + sum(stride * (loop.size - 1) for stride, loop in zip(strides, inner, strict=True))
    buffer, offset = _buffer_and_offset(value)
    row_strides = tuple(loop.strides[number] for loop in rows)
    return OperandAccess(value, buffer, offset, row_strides, strides, span, number >= op.inputs)


def _buffer_and_offset(value: ir.Value) -> tuple[ir.Value, int]:
    """Returns the buffer of `value`, and the offset of `value` in it, in elements.

    Raises `UnsupportedError` if the buffer is a part of an arena, or if the buffer or the offset is not known.
    """
    layout = layout_of(value.type)
    while isinstance(value, ir.OpResult) and value.owner.name in VIEW_OPS:
        if value.owner.name == "memref.view":
            raise UnsupportedError("its buffers already share an arena")
        value = value.owner.operands[0]
    if layout.offset is None or layout_of(value.type).offset != 0 or root_of(value) != value:
        raise UnsupportedError("the offset of an operand in its buffer is not known")
    return value, layout.offset


def row_conflict(left: RowOp, right: RowOp, bounds: Bounds) -> str | None:
    """Returns why `left` and `right` may not be interleaved row by row; `None` if they may."""
    sizes = [b // a for a, b in pairwise(bounds)]
    for a, b in _writing_pairs(left.accesses, right.accesses):
        if a.buffer != b.buffer:
            if not (is_unaliased(a.buffer) or is_unaliased(b.buffer)):
                return "two of their buffers may overlap"
        elif a.overlaps_in_other_rows(b, sizes):
            return "one may access what the other writes in another row"
    return None


def _writing_pairs(
    left: Sequence[OperandAccess], right: Sequence[OperandAccess]
) -> Iterator[tuple[OperandAccess, OperandAccess]]:
    return ((a, b) for a in left for b in right if a.written or b.written)


def row_bytes(op: RowOp) -> int:
    """Returns the bytes of the largest part of a buffer that `op` accesses in one row."""
    return max(access.span * element_bytes(access.value.type.element_type) for access in op.accesses)
