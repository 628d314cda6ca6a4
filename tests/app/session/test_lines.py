"""Lines of text fetched by pages in the background."""

from __future__ import annotations

import asyncio

import pytest

from buddy.app.session.line_cache import MAX_PAGES, PAGE_LINES, AnnotatedLine, LineCache
from buddy.app.session.requests import UnavailableError
from buddy.compiler.protocol import Lines

TOTAL = PAGE_LINES * (MAX_PAGES + 10)


async def fetched(cache: LineCache) -> None:
    """Wait until all requested lines have arrived."""
    while cache._tasks:
        await asyncio.sleep(0)


class Source:
    """A text whose line `k` is `line k`, and the requests for its lines."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gone = False

    async def fetch(self, text: str, start: int, count: int) -> Lines:
        await asyncio.sleep(0)
        if self.gone:
            raise UnavailableError("gone")
        self.asked.append(start // PAGE_LINES)
        numbers = range(start, min(start + count, TOTAL))
        nodes = tuple((0,) if number % 2 else (0, 1) for number in numbers)
        return Lines(1, text, start, tuple(f"line {k}" for k in numbers), TOTAL, nodes, ("mm", "add"))


@pytest.fixture
def source() -> Source:
    return Source()


async def test_a_missing_line_is_fetched_and_its_arrival_reported(source: Source) -> None:
    told = asyncio.Event()
    cache = LineCache(source.fetch, lambda text: told.set())
    assert cache.get("t", 3) is None
    await asyncio.wait_for(told.wait(), 60)
    assert cache.get("t", 3) == AnnotatedLine("line 3", ("mm",))
    assert cache.get("t", 4) == AnnotatedLine("line 4", ("mm", "add"))
    assert source.asked == [0]


async def test_loading_waits_for_every_page_in_the_range(source: Source) -> None:
    cache = LineCache(source.fetch, lambda text: None)
    await cache.load("t", PAGE_LINES - 2, 5)
    assert source.asked == [0, 1]
    await cache.load("t", 0, PAGE_LINES)
    assert source.asked == [0, 1]


async def test_after_a_long_scroll_only_the_last_places_are_fetched_newest_first(source: Source) -> None:
    cache = LineCache(source.fetch, lambda text: None)
    for page in range(20):
        cache.get("t", page * PAGE_LINES)
    await fetched(cache)
    assert source.asked[0] == 19
    assert len(source.asked) <= 5


async def test_old_pages_are_dropped(source: Source) -> None:
    cache = LineCache(source.fetch, lambda text: None)
    for page in range(MAX_PAGES + 3):
        await cache.load("t", page * PAGE_LINES, 1)
    assert cache.get("t", 0) is None
    assert cache.get("t", (MAX_PAGES + 2) * PAGE_LINES) is not None


async def test_texts_have_separate_pages_and_can_be_dropped(source: Source) -> None:
    cache = LineCache(source.fetch, lambda text: None)
    await cache.load("one", 0, 1)
    assert cache.get("two", 0) is None
    cache.clear()
    assert cache.get("one", 0) is None


async def test_a_lost_engine_ends_fetching_without_an_error(source: Source) -> None:
    source.gone = True
    cache = LineCache(source.fetch, lambda text: pytest.fail("nothing came"))
    assert cache.get("t", 0) is None
    await fetched(cache)
    with pytest.raises(UnavailableError):
        await cache.load("t", 0, 1)


async def test_prefetched_lines_are_not_reported(source: Source) -> None:
    told: list[str] = []
    cache = LineCache(source.fetch, told.append)
    cache.prefetch("t", 5 * PAGE_LINES + 3)
    cache.prefetch("t", 5 * PAGE_LINES + 9)
    await fetched(cache)
    assert source.asked == [5]
    assert cache.get("t", 5 * PAGE_LINES + 3) is not None
    assert told == []


async def test_on_a_slow_connection_several_pages_are_prefetched_at_once() -> None:
    slow, under_way, most = Source(), 0, 0

    async def fetch(text: str, start: int, count: int) -> Lines:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.3)
        under_way -= 1
        return await slow.fetch(text, start, count)

    cache = LineCache(fetch, lambda text: None)
    await cache.load("t", 10 * PAGE_LINES, 1)
    cache.get("t", 10 * PAGE_LINES + PAGE_LINES // 2)
    while set(slow.asked) != {8, 9, 10, 11, 12}:
        await asyncio.sleep(0.05)
    assert most > 1


async def test_a_page_in_another_answer_is_cached(source: Source) -> None:
    cache = LineCache(source.fetch, lambda text: None)
    cache.add(await source.fetch("t", PAGE_LINES, PAGE_LINES))
    await cache.load("t", PAGE_LINES, PAGE_LINES)
    assert source.asked == [1]


async def test_nothing_is_requested_beyond_the_end_of_a_text(source: Source) -> None:
    cache = LineCache(source.fetch, lambda text: None)
    await cache.load("t", TOTAL - 1, 1)
    cache.get("t", TOTAL - 1)
    await fetched(cache)
    assert max(source.asked) == TOTAL // PAGE_LINES - 1
