"""Answers requests about stage texts: windows of lines, full texts, searches, differences.

Long work runs in threads. Comparisons and searches for regular expressions run in separate processes that can be
killed: Python's `re` holds the GIL during a match, and some patterns take arbitrarily long.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buddy.compiler.protocol import (
    Characters,
    Compare,
    Compared,
    Diagnostic,
    FetchCharacters,
    FetchLines,
    FetchText,
    FindMainLine,
    FindNode,
    FindRegion,
    FoundEach,
    Hits,
    Lines,
    ListSymbols,
    ListTypes,
    Progress,
    Region,
    Search,
    SearchEach,
    SearchResult,
    Symbol,
    Symbols,
    Text,
    Types,
)
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.text import structure
from buddy.compiler.protocol.text.diff import Difference, DiffMode, difference
from buddy.compiler.protocol.text.lines import IndexedText, elide, long_types
from buddy.compiler.protocol.text.store import (
    PatternError,
    SearchHits,
    TextStore,
    check_pattern,
    is_literal,
    search_each,
)
from buddy.compiler.protocol.texts import BOUNDARY_LINE
from buddy.compiler.support.processes.interpreters import TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


# ---- comparisons and searches in separate processes ------------------------------------------------------------------


# The time limits of a comparison and of a search, in seconds.
DIFF_TIMEOUT, SEARCH_TIMEOUT = 60.0, 10.0
# Maximum number of cached differences.
_MAX_DIFFERENCES = 32
# Two texts that together have at most this many characters are compared in a thread. The comparison takes a few
# milliseconds, less than the start of a process.
_MAX_CHARACTERS_IN_THREAD = 1 << 16


class DiffTooLong(BuddyError):
    """The comparison of two texts was stopped at the time limit."""


@dataclass(frozen=True)
class DiffRequest:
    """Two texts to compare, in the form sent to the process."""

    before: str
    after: str
    how: DiffMode
    language: str


class DiffCache:
    """A cache of differences, keyed by the names of the two texts."""

    def __init__(self) -> None:
        self._differences: OrderedDict[tuple[str, str, str, str], Difference] = OrderedDict()

    async def find_or_compute(self, names: tuple[str, str], request: DiffRequest) -> Difference:
        """Returns the difference of the texts called `names`. Cancelling ends the process.

        Raises `DiffTooLong` if the comparison takes longer than `DIFF_TIMEOUT`.
        """
        key = (*names, request.how, request.language)
        if key not in self._differences:
            self._differences[key] = await _difference(request)
        self._differences.move_to_end(key)
        while len(self._differences) > _MAX_DIFFERENCES:
            self._differences.popitem(last=False)
        return self._differences[key]


async def _difference(request: DiffRequest) -> Difference:
    if len(request.before) + len(request.after) <= _MAX_CHARACTERS_IN_THREAD:
        return await asyncio.to_thread(compute_difference, request)
    try:
        return await call_in_process(f"{__name__}:compute_difference", request, Difference, DIFF_TIMEOUT)
    except TookTooLong:
        raise DiffTooLong(f"the two texts were not compared within {DIFF_TIMEOUT:g} s") from None


def compute_difference(request: DiffRequest) -> Difference:
    """Computes the difference; runs in the separate process."""
    return difference(request.before, request.after, request.how, request.language)


class SearchTooLong(BuddyError):
    """A search was stopped at the time limit."""


@dataclass(frozen=True)
class SearchRequest:
    """A search for a regular expression, in the form sent to the process."""

    pattern: str
    ignore_case: bool
    limit: int
    contents: tuple[str, ...]


async def search_in_process(request: SearchRequest, timeout: float = SEARCH_TIMEOUT) -> list[SearchHits]:
    """Returns the result of `buddy.compiler.protocol.text.store.search_each`, without blocking the event loop.

    Raises `SearchTooLong` after `timeout` seconds. Cancelling ends the process.
    """
    try:
        return await call_in_process(f"{__name__}:run_search", request, list[SearchHits], timeout)
    except TookTooLong:
        raise SearchTooLong(f"the pattern was not matched against every line within {timeout:g} s") from None


def run_search(request: SearchRequest) -> list[SearchHits]:
    """Searches the texts; runs in the separate process."""
    return search_each(
        request.contents, request.pattern, regex=True, ignore_case=request.ignore_case, limit=request.limit
    )


# ---- requests --------------------------------------------------------------------------------------------------------


# Longer texts are indexed in a thread.
_MAX_UNINDEXED_CHARACTERS = 1 << 18
# The largest window of lines, and of the characters of one line, in one answer; the length of an excerpt of a line.
_MAX_WINDOW_LINES = 10_000
_MAX_CHARACTERS = 1 << 20
_EXCERPT_CHARACTERS = 240
# Texts that a search reads from files are searched in batches of about this many characters.
_BATCH_CHARACTERS = 16 << 20
_PROGRESS_SECONDS = 0.2


class TextHandler:
    """Answers requests about the texts in the store."""

    def __init__(self, store: TextStore, send: Callable[[Frame], None]) -> None:
        self._store, self._send = store, send
        self._differences = DiffCache()

    async def fetch_lines(self, frame: FetchLines, job: Job) -> None:
        text = self._find(frame.text)
        if not text.is_indexed and len(text.content) > _MAX_UNINDEXED_CHARACTERS:
            await asyncio.to_thread(lambda: text.ends)  # indexes the lines
        self._send(_window(job, frame.text, text, frame.start, min(frame.count, _MAX_WINDOW_LINES)))

    async def find_main_line(self, frame: FindMainLine, job: Job) -> None:
        """Sends the pages around the line that represents a node, then the number of the line."""
        text = self._find(frame.text)
        line = await asyncio.to_thread(_representing_line, text, (frame.node, *frame.otherwise))
        page = max(1, min(frame.page, _MAX_WINDOW_LINES))
        first = max(0, line - frame.around) // page
        last = min(max(0, line) + frame.around, text.line_count - 1) // page
        for number in range(first, min(last, first + _MAX_WINDOW_LINES // page) + 1):
            self._send(_window(job, frame.text, text, number * page, page))
        self._send(SearchResult(job.request, frame.text, (line,) if line >= 0 else ()))

    async def fetch_text(self, frame: FetchText, job: Job) -> None:
        self._send(Text(job.request, frame.text, self._find(frame.text).content))

    async def search(self, frame: Search, job: Job) -> None:
        text = self._find(frame.text)
        ((lines, more),) = await _search_contents([text.content], frame)
        self._send(SearchResult(job.request, frame.text, tuple(lines), more))

    async def search_each(self, frame: SearchEach, job: Job) -> None:
        hits: list[Hits] = []
        async for batch in self._batches(tuple(dict.fromkeys(frame.texts)), job):
            matches = await _search_contents([text.content for _, text in batch], frame)
            hits += await asyncio.to_thread(_add_excerpts, batch, matches, frame.excerpts)
        self._send(FoundEach(job.request, tuple(hits)))

    async def _batches(self, names: Sequence[str], job: Job) -> AsyncIterator[list[tuple[str, IndexedText]]]:
        """Yields names and texts in batches of about `_BATCH_CHARACTERS` from files; texts in memory do not count.

        Sends the progress after each batch but the last.
        """
        batch: list[tuple[str, IndexedText]] = []
        size, start = 0, time.monotonic()
        for number, name in enumerate(names):
            is_stored = name in self._store
            content = self._store.content(name) if is_stored else await asyncio.to_thread(self._store.content, name)
            if content is None:
                continue
            batch.append((name, IndexedText(content)))
            size += 0 if is_stored else len(content)  # texts in memory need no further memory
            if size >= _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
                if time.monotonic() - start >= _PROGRESS_SECONDS:
                    start = time.monotonic()
                    self._send(
                        Progress(job.request, f"searched {number:,} of {len(names):,} stages", number / len(names))
                    )
        if batch:
            yield batch

    async def list_symbols(self, frame: ListSymbols, job: Job) -> None:
        symbols = await asyncio.to_thread(structure.symbols, self._find(frame.text), frame.language)
        self._send(Symbols(job.request, frame.text, tuple(Symbol(*symbol) for symbol in symbols)))

    async def list_types(self, frame: ListTypes, job: Job) -> None:
        types = await asyncio.to_thread(long_types, self._find(frame.text))
        self._send(Types(job.request, frame.text, tuple(types)))

    async def find_region(self, frame: FindRegion, job: Job) -> None:
        lines = await asyncio.to_thread(structure.region_at, self._find(frame.text), frame.line)
        self._send(Region(job.request, frame.text, *(lines or ())))

    async def fetch_characters(self, frame: FetchCharacters, job: Job) -> None:
        text = self._find(frame.text)
        line = text.line(frame.line) if 0 <= frame.line < text.line_count else ""
        part = line[frame.start : frame.start + min(frame.count, _MAX_CHARACTERS)]
        self._send(Characters(job.request, frame.text, frame.line, frame.start, part, len(line)))

    async def find_node(self, frame: FindNode, job: Job) -> None:
        text = self._find(frame.text)
        lines, more = await asyncio.to_thread(text.lines_of_node, frame.node, frame.limit)
        self._send(SearchResult(job.request, frame.text, tuple(lines), more))

    async def compare(self, frame: Compare, job: Job) -> None:
        before, after = self._find(frame.before), self._find(frame.after)
        diff_request = DiffRequest(before.content, after.content, frame.how, frame.language)
        try:
            difference = await self._differences.find_or_compute((frame.before, frame.after), diff_request)
        except DiffTooLong as error:
            todo = "compare stages with fewer passes between them"
            raise JobFailed(Diagnostic(str(error), "the comparison", todo)) from error
        hunks, line_counts = tuple(difference.hunks), (difference.before, difference.after)
        self._send(Compared(job.request, frame.before, frame.after, hunks, *line_counts, difference.aliases))

    def _find(self, name: str) -> IndexedText:
        return stored_text(self._store, name)


def stored_text(store: TextStore, name: str) -> IndexedText:
    """Returns the text called `name`. Raises `JobFailed` if it is no longer stored."""
    text = store.get(name)
    if text is None:
        what = f"the text {name!r} is no longer stored"
        raise JobFailed(Diagnostic(what, "the engine's store", "compile that recipe again"))
    return text


def excerpt_of(text: IndexedText, line: int) -> str:
    """Returns the start of a line, without indentation, for lists of lines."""
    return elide(text.line(line)).strip()[:_EXCERPT_CHARACTERS]


def _representing_line(text: IndexedText, nodes: Sequence[str]) -> int:
    """Returns the line of the first of `nodes` whose line is not a boundary of a function or module.

    If all lines are boundaries, returns the line of the first node, or -1 if no line comes from that node.
    """
    first_node_line = -1
    for index, node in enumerate(nodes):
        line = text.own_line(node)
        if line >= 0 and not BOUNDARY_LINE.match(text.line(line)):
            return line
        if index == 0:
            first_node_line = line
    return first_node_line


def _window(job: Job, name: str, text: IndexedText, start: int, count: int) -> Lines:
    """Returns the answer with `count` lines of a text from line `start`, and the nodes that these lines come from."""
    window = text.window(start, count)
    origins = (window.nodes, window.names, window.derived)
    return Lines(job.request, name, window.start, window.lines, text.line_count, *origins, window.machine)


async def _search_contents(contents: list[str], frame: Search | SearchEach) -> list[SearchHits]:
    """Returns the matches in each text. A search for a regular expression may never end, so it runs in a process."""
    try:
        if not frame.regex or is_literal(frame.pattern):
            return await asyncio.to_thread(
                search_each, contents, frame.pattern, ignore_case=frame.ignore_case, limit=frame.limit
            )
        check_pattern(frame.pattern)
        return await search_in_process(SearchRequest(frame.pattern, frame.ignore_case, frame.limit, tuple(contents)))
    except (PatternError, SearchTooLong) as error:
        todo = "change the pattern, or search for plain text"
        raise JobFailed(Diagnostic(str(error), "the search", todo)) from error


def _add_excerpts(
    stored_texts: list[tuple[str, IndexedText]], matches: list[SearchHits], count: int
) -> tuple[Hits, ...]:
    """Returns the hits in each text that has matches, with excerpts of the first `count` matching lines."""
    hits = []
    for (name, text), (lines, more) in zip(stored_texts, matches, strict=True):
        excerpts = tuple(excerpt_of(text, line) for line in lines[:count])
        if lines:
            hits.append(Hits(name, tuple(lines), excerpts, more))
    return tuple(hits)
