"""Assigns offsets in one arena to buffers; buffers that are not live at the same time may overlap. Uses no MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.support.target import CACHE_LINE

ALIGNMENT = CACHE_LINE  # bytes


@dataclass(frozen=True)
class Span:
    """`size` bytes that are live from step `first` to step `last` of a function, both included."""

    size: int
    first: int
    last: int

    def overlaps(self, other: Span) -> bool:
        """Returns whether both spans are live at the same step."""
        return self.first <= other.last and other.first <= self.last


def aligned(size: int) -> int:
    """Returns `size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class ArenaSlot:
    """The position of a span: a byte offset in existing buffer number `buffer`; in the arena if `buffer` is `None`."""

    offset: int
    buffer: int | None = None


def place_spans(spans: Sequence[Span], existing: Sequence[Span] = ()) -> tuple[list[ArenaSlot], int]:
    """Returns the slot of each span, and the size of the arena in bytes.

    The largest span is placed first, each at the lowest offset that is free while the span is live. `existing` are
    buffers that may hold spans while not live themselves; they are used if the arena becomes smaller. This is
    "greedy by size" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference (2020).
    """
    slots, size = _place_greedily(spans, ())
    if existing:
        slots_in_both, smaller_size = _place_greedily(spans, existing)
        if smaller_size < size:
            return slots_in_both, smaller_size
    return slots, size


def _place_greedily(spans: Sequence[Span], existing: Sequence[Span]) -> tuple[list[ArenaSlot], int]:
    """Returns the slot of each span, and the size of the arena.

    A span is placed in the smallest existing buffer with enough free memory, otherwise in the arena.
    """
    slots: dict[int, ArenaSlot] = {}
    smallest_first = sorted(range(len(existing)), key=lambda number: existing[number].size)
    for i in sorted(range(len(spans)), key=lambda i: -spans[i].size):
        slot = None
        for number in smallest_first:
            if existing[number].overlaps(spans[i]):
                continue
            offset = _lowest_offset(spans, slots, i, number)
            if offset + spans[i].size <= existing[number].size:
                slot = ArenaSlot(offset, number)
                break
        slots[i] = slot or ArenaSlot(_lowest_offset(spans, slots, i, None))
    ends = (slots[i].offset + span.size for i, span in enumerate(spans) if slots[i].buffer is None)
    return [slots[i] for i in range(len(spans))], max(ends, default=0)


def _lowest_offset(spans: Sequence[Span], slots: dict[int, ArenaSlot], i: int, buffer: int | None) -> int:
    """Returns the lowest offset of an existing buffer, or of the arena, that is free while span number `i` is live."""
    occupied = sorted(
        (slot.offset, slot.offset + spans[j].size)
        for j, slot in slots.items()
        if slot.buffer == buffer and spans[i].overlaps(spans[j])
    )
    offset = 0
    for start, end in occupied:
        if offset + spans[i].size <= start:
            break
        offset = max(offset, aligned(end))
    return offset


def place_after(spans: Sequence[Span], earlier: Sequence[Span]) -> list[ArenaSlot | None]:
    """Returns for each span a position in one of the buffers `earlier`, whose last step is before the span's first one.

    A span lies in the buffer with which it shares the most memory; its slot is `None` if it would share none. The
    caller has to enlarge a buffer in which a span does not fit. The largest span is placed first. All spans are live
    until the last step, so those in one buffer are placed one after another.
    """
    slots: list[ArenaSlot | None] = [None] * len(spans)
    free = [buffer.size for buffer in earlier]
    for i in sorted(range(len(spans)), key=lambda i: -spans[i].size):
        size = spans[i].size
        candidates = [
            number for number, buffer in enumerate(earlier) if buffer.last < spans[i].first and free[number] > 0
        ]
        if candidates:
            # The buffer that shares the most memory with the span; among equals, the one with the least free memory.
            number = max(candidates, key=lambda number: (min(size, free[number]), -free[number]))
            slots[i] = ArenaSlot(earlier[number].size - free[number], number)
            free[number] -= aligned(size)
    return slots


def peak_bytes(spans: Sequence[Span]) -> int:
    """Returns the maximum number of bytes that are live at one step: a lower bound of the arena's size."""
    # The number of live bytes only grows at steps at which a span becomes live.
    steps = {span.first for span in spans}
    return max((sum(span.size for span in spans if span.first <= step <= span.last) for step in steps), default=0)
