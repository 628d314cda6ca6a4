"""Compares stage texts, and searches in them, in separate processes that can be killed.

Python's `re` holds the GIL during a match, and some patterns take arbitrarily long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.text.diff import Difference, DiffMode, difference
from buddy.compiler.protocol.text.store import SearchHits, search_each
from buddy.compiler.support.processes.interpreters import TookTooLong, call_in_process

# The time limits of a comparison and of a search, in seconds.
DIFF_TIMEOUT, SEARCH_TIMEOUT = 60.0, 10.0
# Maximum number of cached differences.
_MAX_DIFFERENCES = 32
# Two texts of this many characters together are compared in a few milliseconds: a process takes longer to start.
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

    async def of(self, names: tuple[str, str], request: DiffRequest) -> Difference:
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
