"""Which lines of a text hold a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from buddy.compiler.text.lines import IndexedText


class PatternError(ValueError):
    """A regular expression that cannot be read; the text says where it goes wrong."""


def search(
    text: IndexedText, pattern: str, *, regex: bool = False, ignore_case: bool = False, limit: int = 10_000
) -> tuple[list[int], bool]:
    """The numbers of the first `limit` lines that hold `pattern`, and whether there are more.

    Raises `PatternError` for a regular expression that is none.
    """
    hits = _hits(text, _matcher(pattern, regex, ignore_case)) if pattern else iter(())
    found = list(islice(hits, limit + 1))
    return found[:limit], len(found) > limit


def is_literal(pattern: str) -> bool:
    """Whether a regular expression means no more than its own characters."""
    return re.escape(pattern) == pattern


def check(pattern: str) -> None:
    """Raise `PatternError` unless `pattern` is a regular expression."""
    _matcher(pattern, True, False)


def _hits(text: IndexedText, matches: Callable[[str], object]) -> Iterator[int]:
    for first, piece in text.chunks():
        if matches(piece) is False:
            continue
        for number, line in enumerate(piece.split("\n"), first):
            if matches(line):
                yield number


def _matcher(pattern: str, regex: bool, ignore_case: bool) -> Callable[[str], object]:
    """What tells whether a string holds the pattern.

    It answers `False`, rather than `None`, only where a string without a match has no line with one either.
    """
    if not regex and not ignore_case:
        return lambda line: pattern in line
    source = pattern if regex else re.escape(pattern)
    try:
        return re.compile(source, re.IGNORECASE if ignore_case else 0).search
    except re.error as error:
        where = f" at position {error.pos}" if error.pos is not None else ""
        raise PatternError(f"{error.msg}{where} in the pattern {pattern!r}") from error
