"""A cache of stage lines, fetched by pages in the background. No Textual.

A view requests a line to draw and gets it, or `None` and a later call of `arrived`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from buddy.compiler.protocol import Lines

PAGE = 256
KEEP = 48
WANTED = 4
AHEAD = 100
# On a slow connection, the lines that a held key passes meanwhile are prefetched: 30 screens per second.
SCROLL = 1500
LANES = 3

Fetch = Callable[[str, int, int], Awaitable[Lines]]


class UnavailableError(Exception):
    """The engine has no answer. The text is the reason; `cancelled` is true if the request was cancelled."""

    def __init__(self, why: str, cancelled: bool = False) -> None:
        super().__init__(why)
        self.cancelled = cancelled


class AnnotatedLine(NamedTuple):
    """The text of a line, and the stable names of the nodes that it comes from, directly or `derived`.

    `machine` is its machine code in hexadecimal; `full` means that nothing is abbreviated.
    """

    text: str
    nodes: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    machine: str = ""
    full: bool = False


class LineCache:
    """A cache of the engine's texts.

    `fetch(text, start, count)` returns lines or raises `UnavailableError`; `arrived(text)` is called afterwards.
    """

    def __init__(self, fetch: Fetch, arrived: Callable[[str], None]) -> None:
        self._fetch = fetch
        self._arrived = arrived
        self._pages: OrderedDict[tuple[str, int], list[AnnotatedLine]] = OrderedDict()
        self._wanted: list[tuple[str, int]] = []
        self._missed: set[tuple[str, int]] = set()
        self._loading: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._totals: dict[str, int] = {}
        self._prefetch_lines = AHEAD

    def get(self, text: str, index: int) -> AnnotatedLine | None:
        """Line `index` of `text` if it is cached; otherwise fetches it. Its neighbours are prefetched."""
        number, offset = divmod(index, PAGE)
        page = self._pages.get((text, number))
        if page is None:
            self._missed.add((text, number))
            self._enqueue((text, number))
            return None
        self._prefetch_around(text, number, index)
        return page[offset] if offset < len(page) else AnnotatedLine("")

    def _prefetch_around(self, text: str, number: int, index: int) -> None:
        """Prefetch the pages that scrolling would reach before their lines could arrive, the nearest first."""
        last = min(index + self._prefetch_lines, self._totals[text] - 1) // PAGE
        first = max(0, index - self._prefetch_lines) // PAGE
        for other in (*range(first, number), *range(last, number, -1)):
            self._enqueue((text, other))

    def ahead(self, text: str, index: int) -> None:
        """Prefetch line `index` of `text`."""
        self._enqueue((text, index // PAGE))

    async def load(self, text: str, start: int, count: int) -> None:
        """Wait until lines `start` to `start + count` are cached."""
        numbers = range(start // PAGE, (start + max(count, 1) - 1) // PAGE + 1)
        missing = [(text, number) for number in numbers if (text, number) not in self._pages]
        await asyncio.gather(*map(self._fetch_page, missing))

    def take(self, lines: Lines) -> None:
        """Cache a page from another answer."""
        self._store((lines.text, lines.start // PAGE), lines)

    def forget(self) -> None:
        """Clear the cache after the engine has exited."""
        self._pages.clear()
        self._wanted.clear()
        self._missed.clear()

    def _enqueue(self, key: tuple[str, int]) -> None:
        if key in self._pages or key in self._loading:
            return
        if key in self._wanted:
            self._wanted.remove(key)
        self._wanted = [*self._wanted[-WANTED:], key]
        if len(self._tasks) < LANES:
            task = asyncio.get_running_loop().create_task(self._fetch_wanted())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch_wanted(self) -> None:
        while self._wanted:
            key = self._wanted.pop()
            if key in self._pages or key in self._loading:
                continue
            try:
                await self._fetch_page(key)
            except UnavailableError:
                self._wanted.clear()
                return
            if key in self._missed:
                self._missed.discard(key)
                self._arrived(key[0])

    async def _fetch_page(self, key: tuple[str, int]) -> None:
        text, number = key
        self._loading.add(key)
        started = time.monotonic()
        try:
            lines = await self._fetch(text, number * PAGE, PAGE)
        finally:
            self._loading.discard(key)
        self._prefetch_lines = round(min(2 * PAGE, max(AHEAD, (time.monotonic() - started) * SCROLL)))
        self._store(key, lines)

    def _store(self, key: tuple[str, int], lines: Lines) -> None:
        self._pages[key] = _lines(lines)
        self._totals[lines.text] = lines.total
        self._pages.move_to_end(key)
        while len(self._pages) > KEEP:
            (gone, _), _ = self._pages.popitem(last=False)
            if all(name != gone for name, _ in self._pages):
                self._totals.pop(gone, None)


def _lines(frame: Lines) -> list[AnnotatedLine]:
    marked = frozenset(frame.derived)
    sets = [(node_names(frame, nodes), node_names(frame, marked.intersection(nodes))) for nodes in frame.nodes]
    sets += [((), ())] * (len(frame.lines) - len(sets))
    machine = frame.machine or ("",) * len(frame.lines)
    return [AnnotatedLine(text, *nodes, code) for text, nodes, code in zip(frame.lines, sets, machine, strict=True)]


def node_names(frame: Lines, places: Iterable[int]) -> tuple[str, ...]:
    """The nodes at these indices of a frame's names."""
    return tuple(frame.names[place] for place in places)
