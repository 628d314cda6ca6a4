"""Places in an arena: no two that live together overlap, and what is there anyhow is used first."""

from __future__ import annotations

import random

import pytest

from buddy.compiler.codegen.arena import ALIGNMENT, ArenaSlot, Span, aligned, peak_bytes, place_after, place_spans


def overlapping(a: ArenaSlot, b: ArenaSlot, s: Span, t: Span) -> bool:
    return a.buffer == b.buffer and a.offset < b.offset + t.size and b.offset < a.offset + s.size


@pytest.mark.parametrize("seed", range(20))
def test_what_lives_together_lies_apart_and_aligned(seed: int) -> None:
    r = random.Random(seed)
    spans = [
        Span(r.randrange(1, 5000), first, first + r.randrange(8)) for first in (r.randrange(40) for _ in range(30))
    ]
    buffers = [Span(r.randrange(100, 9000), 25, 40), Span(r.randrange(100, 9000), 30, 40)]
    places, size = place_spans(spans, buffers)
    for i, (found, span) in enumerate(zip(places, spans, strict=True)):
        assert found.offset % ALIGNMENT == 0
        buffer = buffers[found.buffer] if found.buffer is not None else None
        assert found.offset + span.size <= (size if buffer is None else buffer.size)
        assert buffer is None or not buffer.overlaps(span)
        for other, found_other in zip(spans[:i], places[:i], strict=True):
            assert not (span.overlaps(other) and overlapping(found, found_other, span, other))
    assert size <= place_spans(spans)[1]
    assert peak_bytes(spans) <= place_spans(spans)[1] <= 1.3 * sum(aligned(span.size) for span in spans)


def test_what_follows_each_other_shares_memory() -> None:
    places, size = place_spans([Span(64, 0, 1), Span(64, 2, 3), Span(64, 1, 2)])
    assert ([found.offset for found in places], size) == ([0, 0, 64], 128)


def test_memory_that_is_there_is_used_until_it_is_needed_itself() -> None:
    spans = [Span(1000, 0, 3), Span(1000, 4, 5), Span(1000, 4, 6)]
    assert place_spans(spans, [Span(1500, 5, 9)])[1] == aligned(1000) + 1000, "from step 5 on the buffer is not free"
    places, size = place_spans(spans[:2], [Span(1500, 6, 9)])
    assert (size, {found.buffer for found in places}) == (0, {0})


def test_nothing_needs_nothing() -> None:
    assert place_spans([]) == ([], 0)
    assert peak_bytes([]) == 0


def test_a_span_lies_in_a_buffer_that_is_no_longer_in_use() -> None:
    earlier = [Span(1000, 0, 3), Span(600, 0, 5), Span(4000, 0, 8)]
    assert place_after([Span(500, 3, 9)], earlier) == [None], "at step 3, all buffers are in use"
    assert place_after([Span(500, 4, 9)], earlier) == [ArenaSlot(0, 0)]
    assert place_after([Span(500, 6, 9)], earlier) == [ArenaSlot(0, 1)], "the smallest buffer that is large enough"


def test_a_buffer_is_enlarged_if_none_is_large_enough() -> None:
    assert place_after([Span(5000, 6, 9)], [Span(1000, 0, 3), Span(600, 0, 5)]) == [ArenaSlot(0, 0)]


def test_spans_in_one_buffer_do_not_overlap() -> None:
    slots = place_after([Span(300, 4, 9), Span(500, 4, 9), Span(300, 4, 9)], [Span(800, 0, 3)])
    assert slots == [ArenaSlot(512, 0), ArenaSlot(0, 0), None], "the first two fill the buffer"
