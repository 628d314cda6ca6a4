"""A cache of lines of the engine's texts, which fetches them by pages in the background.

A view that asks for a line which is not cached gets `None`, and is notified when the line has been fetched.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from buddy.app.session.requests import UnavailableError
from buddy.compiler.protocol import Lines, SearchResult

if TYPE_CHECKING:
    import asyncio

# The number of lines of a page, and the maximum number of cached pages.
PAGE_LINES = 256
MAX_PAGES = 48
# At most this many pages wait to be fetched besides the newest one. Older ones, which were scrolled past, are dropped.
MAX_WAITING_PAGES = 4
# The maximum number of requests for pages at a time.
MAX_PARALLEL_FETCHES = 3
# At least this many lines before and after a line are prefetched: two screens.
PREFETCH_LINES = 100
# The lines that a held key scrolls: 30 screens of 50 lines per second. As many lines are prefetched as are scrolled
# during a fetch, so a slow connection prefetches more.
SCROLLED_LINES_PER_SECOND = 1500

# Called with the hash of a text, the first line and the number of lines.
FetchLines = Callable[[str, int, int], Awaitable[Lines]]
# Called with the hash of a text, a pattern, whether it is a regular expression, and whether the case is ignored.
SearchText = Callable[[str, str, bool, bool], Awaitable[SearchResult]]


@dataclass(frozen=True)
class AnnotatedLine:
    """The text of a line, and the stable names of the nodes that it comes from.

    `derived_nodes` are those of `nodes` that were derived, because a pass had dropped the location.
    `machine_code` is the encoding of an instruction in hexadecimal. `is_full` means that no constant is abbreviated.
    """

    text: str
    nodes: tuple[str, ...] = ()
    derived_nodes: tuple[str, ...] = ()
    machine_code: str = ""
    is_full: bool = False

    # These properties are cached: the line of a function may come from hundreds of nodes, and each step of the cursor
    # reads them for every line on the screen.

    @cached_property
    def own_nodes(self) -> tuple[str, ...]:
        """The nodes that the line names itself, without the derived ones."""
        derived = frozenset(self.derived_nodes)
        return tuple(node for node in self.nodes if node not in derived) if derived else self.nodes

    @cached_property
    def node_set(self) -> frozenset[str]:
        """The nodes that the line comes from."""
        return frozenset(self.nodes)

    @cached_property
    def own_node_set(self) -> frozenset[str]:
        """The nodes that the line names itself."""
        return frozenset(self.own_nodes)


class LineCache:
    """Caches lines of the engine's texts, by pages. A text is identified by the hash of its content.

    `fetch` and `search` send requests to the engine, and raise `UnavailableError` if there is no answer. `on_arrival`
    is called with the hash of the text when a page has been fetched that `get` did not find.
    """

    def __init__(self, fetch: FetchLines, on_arrival: Callable[[str], None], search: SearchText | None = None) -> None:
        self._fetch = fetch
        self._search = search
        self._on_arrival = on_arrival
        # A page is identified by the hash of its text and its number.
        self._pages: OrderedDict[tuple[str, int], list[AnnotatedLine]] = OrderedDict()
        # The pages to fetch, the next one last.
        self._waiting: list[tuple[str, int]] = []
        # The pages that `get` did not find, whose arrival is reported.
        self._missed: set[tuple[str, int]] = set()
        # The pages that are being fetched.
        self._loading: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._line_counts: dict[str, int] = {}
        self._prefetch_lines = PREFETCH_LINES

    def get(self, text_hash: str, index: int) -> AnnotatedLine | None:
        """Returns line `index` (from 0) of a text, and prefetches the lines around it.

        If the line is not cached, returns `None` and fetches it in the background. A line after the end is empty.
        """
        number, offset = divmod(index, PAGE_LINES)
        page = self._pages.get((text_hash, number))
        if page is None:
            self._missed.add((text_hash, number))
            self._enqueue((text_hash, number))
            return None
        self._prefetch_around(text_hash, number, index)
        return page[offset] if offset < len(page) else AnnotatedLine("")

    def _prefetch_around(self, text_hash: str, number: int, index: int) -> None:
        """Prefetches the pages around line `index`, on page `number`, that scrolling may reach during a fetch.

        The nearest page is enqueued last, because the newest page is fetched first.
        """
        last = min(index + self._prefetch_lines, self._line_counts[text_hash] - 1) // PAGE_LINES
        first = max(0, index - self._prefetch_lines) // PAGE_LINES
        for other in (*range(first, number), *range(last, number, -1)):
            self._enqueue((text_hash, other))

    def prefetch(self, text_hash: str, index: int) -> None:
        """Fetches the page of line `index` in the background, unless it is cached."""
        self._enqueue((text_hash, index // PAGE_LINES))

    async def load(self, text_hash: str, start: int, count: int) -> None:
        """Waits until `count` lines from line `start` are cached. Raises `UnavailableError`."""
        numbers = range(start // PAGE_LINES, (start + max(count, 1) - 1) // PAGE_LINES + 1)
        missing = [(text_hash, number) for number in numbers if (text_hash, number) not in self._pages]
        import asyncio  # imported late, because headless verbs import this module and need no event loop

        await asyncio.gather(*map(self._fetch_page, missing))

    async def find(self, text_hash: str, pattern: str, regex: bool, ignore_case: bool) -> SearchResult:
        """Searches a whole text for a pattern. Raises `UnavailableError`."""
        if self._search is None:
            raise UnavailableError("this text cannot be searched")
        return await self._search(text_hash, pattern, regex, ignore_case)

    def add(self, lines: Lines) -> None:
        """Caches `lines`, which must start at a multiple of `PAGE_LINES`: a page in the answer to another request."""
        self._store((lines.text, lines.start // PAGE_LINES), lines)

    def clear(self) -> None:
        """Drops all lines, because another engine has been started."""
        self._pages.clear()
        self._waiting.clear()
        self._missed.clear()

    def _enqueue(self, key: tuple[str, int]) -> None:
        """Fetches the page `key` (text and page number) next, unless it is cached or being fetched."""
        if key in self._pages or key in self._loading:
            return
        if key in self._waiting:
            self._waiting.remove(key)
        self._waiting = [*self._waiting[-MAX_WAITING_PAGES:], key]
        if len(self._tasks) < MAX_PARALLEL_FETCHES:
            import asyncio

            task = asyncio.get_running_loop().create_task(self._fetch_waiting())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch_waiting(self) -> None:
        """Fetches the waiting pages, the newest first."""
        while self._waiting:
            key = self._waiting.pop()
            if key in self._pages or key in self._loading:
                continue
            try:
                await self._fetch_page(key)
            except UnavailableError:
                self._waiting.clear()
                return
            if key in self._missed:
                self._missed.discard(key)
                self._on_arrival(key[0])

    async def _fetch_page(self, key: tuple[str, int]) -> None:
        """Fetches a page and caches it. The time that it takes decides how many lines are prefetched from now on."""
        text_hash, number = key
        self._loading.add(key)
        start_time = time.monotonic()
        try:
            lines = await self._fetch(text_hash, number * PAGE_LINES, PAGE_LINES)
        finally:
            self._loading.discard(key)
        scrolled_lines = (time.monotonic() - start_time) * SCROLLED_LINES_PER_SECOND
        self._prefetch_lines = round(min(2 * PAGE_LINES, max(PREFETCH_LINES, scrolled_lines)))
        self._store(key, lines)

    def _store(self, key: tuple[str, int], lines: Lines) -> None:
        """Stores a page, and drops the oldest pages beyond `MAX_PAGES`."""
        self._pages[key] = _annotated_lines(lines)
        self._line_counts[lines.text] = lines.line_count
        self._pages.move_to_end(key)
        while len(self._pages) > MAX_PAGES:
            (dropped_hash, _), _ = self._pages.popitem(last=False)
            if all(text_hash != dropped_hash for text_hash, _ in self._pages):
                self._line_counts.pop(dropped_hash, None)


def _annotated_lines(frame: Lines) -> list[AnnotatedLine]:
    """Returns the lines of a frame with the names of their nodes."""
    derived = frozenset(frame.derived)
    line_count = len(frame.lines)
    # For each line, its nodes and its derived nodes. A text without nodes has none in its frames.
    nodes_of_lines = [
        (node_names(frame, nodes), node_names(frame, derived.intersection(nodes))) for nodes in frame.nodes
    ]
    nodes_of_lines += [((), ())] * (line_count - len(nodes_of_lines))
    machine_codes = frame.machine or ("",) * line_count
    return [
        AnnotatedLine(text, nodes, derived_nodes, machine_code)
        for text, (nodes, derived_nodes), machine_code in zip(frame.lines, nodes_of_lines, machine_codes, strict=True)
    ]


def node_names(frame: Lines, indices: Iterable[int]) -> tuple[str, ...]:
    """Returns the nodes at these indices of a frame's names."""
    return tuple(frame.names[index] for index in indices)
