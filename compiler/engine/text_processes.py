"""Differences of stage texts, and searches in them, in separate processes that can be killed.

Python's `re` holds the GIL during a match, and some patterns take arbitrarily long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from buddy.compiler.protocol.text.diff import Difference, How, difference
from buddy.compiler.protocol.text.store import Found, search_each
from buddy.compiler.support.processes.interpreters import TookTooLong, call_in_process

DIFF_TIMEOUT = 60.0
MAX_DIFFERENCES = 32
# Two texts of this many characters are compared in a few milliseconds, less than the start of a process.
_SMALL = 1 << 16


class DiffTooLong(Exception):
    """The comparison of two texts was stopped at the time limit."""


@dataclass(frozen=True)
class DiffRequest:
    """Two texts to compare, in the form sent to the process."""

    before: str
    after: str
    how: How
    language: str


class DiffCache:
    """A cache of differences, keyed by the names of the two texts."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str, str], Difference] = OrderedDict()

    async def of(self, names: tuple[str, str], question: DiffRequest) -> Difference:
        """Returns the difference of the texts called `names`. Cancelling ends the process.

        Raises `DiffTooLong` after `TIMEOUT` seconds.
        """
        key = (*names, question.how, question.language)
        if key not in self._kept:
            self._kept[key] = await _difference(question)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_DIFFERENCES:
            self._kept.popitem(last=False)
        return self._kept[key]


async def _difference(question: DiffRequest) -> Difference:
    if len(question.before) + len(question.after) <= _SMALL:
        return await asyncio.to_thread(compute_difference, question)
    try:
        return await call_in_process(f"{__name__}:compute_difference", question, Difference, DIFF_TIMEOUT)
    except TookTooLong:
        raise DiffTooLong(f"the two texts were not compared within {DIFF_TIMEOUT:g} s") from None


def compute_difference(question: DiffRequest) -> Difference:
    """Runs in the other process."""
    return difference(question.before, question.after, question.how, question.language)


SEARCH_TIMEOUT = 10.0


class SearchTooLong(Exception):
    """A search was stopped at the time limit."""


@dataclass(frozen=True)
class SearchRequest:
    """A search for a regular expression, in the form sent to the process."""

    pattern: str
    ignore_case: bool
    limit: int
    contents: tuple[str, ...]


async def search_in_process(question: SearchRequest, timeout: float = SEARCH_TIMEOUT) -> list[Found]:
    """Returns the result of `buddy.compiler.protocol.text.store.search_each`, without blocking the event loop.

    Raises `SearchTooLong` after `timeout` seconds. Cancelling ends the process.
    """
    try:
        return await call_in_process(f"{__name__}:run_search", question, list[Found], timeout)
    except TookTooLong:
        raise SearchTooLong(f"the pattern was not matched against every line within {timeout:g} s") from None


def run_search(question: SearchRequest) -> list[Found]:
    """Runs in the other process."""
    return search_each(
        question.contents, question.pattern, regex=True, ignore_case=question.ignore_case, limit=question.limit
    )
