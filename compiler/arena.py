"""Room for buffers in one arena: those that do not live at the same time may share it. Knows no MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class Span:
    """`size` bytes that are needed from step `first` to step `last` of a function."""

    size: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.first <= other.last and other.first <= self.last


def aligned(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Byte offsets, and the arena's size: the largest first, each at the lowest place free while it lives.

    This is "greedy by size" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference (2020).
    """
    offsets = [0] * len(spans)
    placed: list[int] = []
    for i in sorted(range(len(spans)), key=lambda i: -spans[i].size):
        busy = sorted((offsets[j], offsets[j] + spans[j].size) for j in placed if spans[i].meets(spans[j]))
        offset = 0
        for start, end in busy:
            if offset + spans[i].size <= start:
                break
            offset = max(offset, aligned(end))
        offsets[i] = offset
        placed.append(i)
    return offsets, max((offset + span.size for offset, span in zip(offsets, spans, strict=True)), default=0)


def peak(spans: Sequence[Span]) -> int:
    """The most bytes that are needed at one step: no arena can be smaller."""
    return max(
        (sum(s.size for s in spans if s.first <= step <= s.last) for step in {s.first for s in spans}), default=0
    )
