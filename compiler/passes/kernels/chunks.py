"""Loops over independent rows, divided into chunks that are large enough for a thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.mlir.memory import element_bytes
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, nanoseconds
from buddy.compiler.passes.kernels.structured import Structured

CHUNK = 16 << 10  # bytes: some microseconds of work, and small enough to get many chunks


def rows_in_chunk(rows: int, row_bytes: int) -> int:
    """Returns the rows per chunk."""
    return max(1, min(rows, CHUNK // max(1, row_bytes)))


def for_chunk(e: KernelEmitter, number: Index, chunk: int, size: int, body: Callable[[Index], None]) -> None:
    """Emits `body(index)` for the indices below `size` of chunk `number`."""
    lower = e.mul(number, chunk)
    upper = e.add(lower, chunk)
    if size % chunk:
        upper = e.minimum(upper, size)

    def each(index: Index, _: list[Any]) -> Sequence[Any]:
        body(index)
        return ()

    e.loop(lower, upper, 1, each)


def for_rows(
    e: KernelEmitter, sizes: Sequence[int], row_bytes: int, work: float, body: Callable[[list[Index]], None]
) -> None:
    """Emits `KernelEmitter.nest` with independent iterations; threads share chunks if `work` is large enough."""
    if not sizes or not e.shares(work):
        e.nest(sizes, body)
        return
    *outer, last = sizes
    chunk = rows_in_chunk(last, row_bytes)

    def one(indices: list[Index]) -> None:
        *before, number = indices
        for_chunk(e, number, chunk, last, lambda index: body([*before, index]))

    e.parallel([*outer, -(-last // chunk)], one, work)


def work_of(op: Structured) -> float:
    """Returns a rough time of `op` on one thread in nanoseconds."""
    return nanoseconds(len(op.block.operations) * math.prod(loop.size for loop in op.loops), moved_bytes(op))


def moved_bytes(op: Structured, without: int = 1) -> int:
    """Returns the bytes that `op` reads and writes, each element once, in one of `without` equal parts."""
    total = 0
    for number, value in enumerate(op.operands):
        elements = math.prod(loop.size for loop in op.loops if loop.strides[number])
        total += elements * element_bytes(value.type.element_type)
    return total // max(1, without)
