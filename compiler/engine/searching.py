"""Searches for regular expressions in a separate process, which can be killed.

Python's `re` holds the GIL during a match, and some patterns take arbitrarily long.
"""

from __future__ import annotations

from dataclasses import dataclass

from buddy.compiler.protocol.text.search import Found, search_each
from buddy.compiler.support.processes.interpreters import TookTooLong, call_in_process

TIMEOUT = 10.0


class SearchTooLong(Exception):
    """A search was stopped at the time limit."""


@dataclass(frozen=True)
class SearchRequest:
    """A search for a regular expression, in the form sent to the process."""

    pattern: str
    ignore_case: bool
    limit: int
    contents: tuple[str, ...]


async def search_apart(question: SearchRequest, timeout: float = TIMEOUT) -> list[Found]:
    """The result of `buddy.compiler.protocol.text.search.search_each`, without blocking the event loop.

    Raises `SearchTooLong` after `timeout` seconds. Cancelling ends the process.
    """
    try:
        return await call_in_process(f"{__name__}:found", question, list[Found], timeout)
    except TookTooLong:
        raise SearchTooLong(f"the pattern was not matched against every line within {timeout:g} s") from None


def found(question: SearchRequest) -> list[Found]:
    """The work of the process."""
    return search_each(
        question.contents, question.pattern, regex=True, ignore_case=question.ignore_case, limit=question.limit
    )
