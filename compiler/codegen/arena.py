"""Assigns buffers to offsets in one arena; those that are not live at the same time may overlap. Uses no MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.support.target import CACHE_LINE

ALIGNMENT = CACHE_LINE


@dataclass(frozen=True)
class Span:
    """`size` bytes that are live from step `first` to step `last` of a function."""

    size: int
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.first <= other.last and other.first <= self.last


def aligned(size: int) -> int:
    """Returns `size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class ArenaSlot:
    """The position of a span: a byte offset in the arena, or in a room, given by its number."""

    offset: int
    room: int | None = None


def place_spans(spans: Sequence[Span], rooms: Sequence[Span] = ()) -> tuple[list[ArenaSlot], int]:
    """Returns places and the arena's size: the largest span first, each at the lowest offset that is free in its range.

    `rooms` are existing memory that must not be written during their own spans; they are used where that makes the
    arena smaller. This is "greedy by size" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net
    Inference (2020).
    """
    alone = _greedy(spans, ())
    shared = _greedy(spans, rooms) if rooms else alone
    return shared if shared[1] < alone[1] else alone


def _greedy(spans: Sequence[Span], rooms: Sequence[Span]) -> tuple[list[ArenaSlot], int]:
    found: dict[int, ArenaSlot] = {}
    by_size = sorted(range(len(rooms)), key=lambda number: rooms[number].size)
    for i in sorted(range(len(spans)), key=lambda i: -spans[i].size):
        fitting = (
            ArenaSlot(offset, number)
            for number in by_size
            if not rooms[number].meets(spans[i])
            and (offset := _lowest(spans, found, i, number)) + spans[i].size <= rooms[number].size
        )
        found[i] = next(fitting, None) or ArenaSlot(_lowest(spans, found, i, None))
    used = (found[i].offset + span.size for i, span in enumerate(spans) if found[i].room is None)
    return [found[i] for i in range(len(spans))], max(used, default=0)


def _lowest(spans: Sequence[Span], found: dict[int, ArenaSlot], i: int, room: int | None) -> int:
    """Returns the lowest offset of a room, or of the arena, that is free while span number `i` is live."""
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


def peak_bytes(spans: Sequence[Span]) -> int:
    """Returns the maximum of the bytes that are live at one step, a lower bound of the arena's size."""
    return max(
        (sum(s.size for s in spans if s.first <= step <= s.last) for step in {s.first for s in spans}), default=0
    )
