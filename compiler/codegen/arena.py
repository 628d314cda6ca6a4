"""Room for buffers in one arena: those that do not live at the same time may share it. Knows no MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.support.target import CACHE_LINE

ALIGNMENT = CACHE_LINE


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


@dataclass(frozen=True)
class Place:
    """Where a span lies: at a byte offset of the arena, or of a room, by its number."""

    offset: int
    room: int | None = None


def place(spans: Sequence[Span], rooms: Sequence[Span] = ()) -> tuple[list[Place], int]:
    """Places, and the arena's size: the largest first, each at the lowest place free while it lives.

    `rooms` are memory that is there anyhow and must not be touched while they live themselves; they are used where the
    arena gets smaller by it. This is "greedy by size" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural
    Net Inference (2020).
    """
    alone = _greedy(spans, ())
    shared = _greedy(spans, rooms) if rooms else alone
    return shared if shared[1] < alone[1] else alone


def _greedy(spans: Sequence[Span], rooms: Sequence[Span]) -> tuple[list[Place], int]:
    found: dict[int, Place] = {}
    by_size = sorted(range(len(rooms)), key=lambda number: rooms[number].size)
    for i in sorted(range(len(spans)), key=lambda i: -spans[i].size):
        fitting = (
            Place(offset, number)
            for number in by_size
            if not rooms[number].meets(spans[i])
            and (offset := _lowest(spans, found, i, number)) + spans[i].size <= rooms[number].size
        )
        found[i] = next(fitting, None) or Place(_lowest(spans, found, i, None))
    used = (found[i].offset + span.size for i, span in enumerate(spans) if found[i].room is None)
    return [found[i] for i in range(len(spans))], max(used, default=0)


def _lowest(spans: Sequence[Span], found: dict[int, Place], i: int, room: int | None) -> int:
    """The lowest offset of a room, or of the arena, that is free while span number `i` lives."""
    busy = sorted(
        (place.offset, place.offset + spans[j].size)
        for j, place in found.items()
        if place.room == room and spans[i].meets(spans[j])
    )
    offset = 0
    for start, end in busy:
        if offset + spans[i].size <= start:
            break
        offset = max(offset, aligned(end))
    return offset


def peak(spans: Sequence[Span]) -> int:
    """The most bytes that are needed at one step: no arena can be smaller."""
    return max(
        (sum(s.size for s in spans if s.first <= step <= s.last) for step in {s.first for s in spans}), default=0
    )
