"""Expands long constants, which the engine elides, one at a time. No Textual."""

from __future__ import annotations

import re
from typing import NamedTuple

from buddy.app.session.lines import AnnotatedLine

# Maximum number of characters expanded, so that lexing and wrapping stay fast.
LONGEST = 16_000
_GAP = re.compile(r"… \(([\d,]+) more characters\)")


class ConstantGap(NamedTuple):
    """An elided part of a line: `missing` characters from `start` on, in the full line.

    With `tail`, the line was truncated there, and `missing` counts the rest with its constants elided.
    """

    start: int
    missing: int
    tail: bool = False


def find_gaps(line: str) -> list[ConstantGap]:
    """The gaps of a line, in order."""
    found: list[ConstantGap] = []
    gained = 0
    for match in _GAP.finditer(line):
        count = int(match[1].replace(",", ""))
        found.append(ConstantGap(match.start() + gained, count, match.end() == len(line)))
        gained += count - len(match[0])
    return found


class Expansions:
    """The filled gaps of lines with their contents, and the lines that are not abbreviated."""

    def __init__(self) -> None:
        self._filled: dict[tuple[str, int], dict[int, str]] = {}
        self._full: set[tuple[str, int]] = set()

    def clear(self) -> None:
        self._filled.clear()
        self._full.clear()

    def draw_full(self, text: str, number: int) -> None:
        """Show a line without abbreviations, until it is closed."""
        self._full.add((text, number))

    def next_gap(self, text: str, number: int, line: str) -> tuple[int, ConstantGap] | None:
        """The first gap of a line that is not filled, and its index."""
        filled = self._filled.get((text, number), {})
        return next(((place, gap) for place, gap in enumerate(find_gaps(line)) if place not in filled), None)

    def fill(self, text: str, number: int, place: int, content: str, rest: int) -> None:
        """Fill a gap with `content`, and mark that `rest` characters are still missing."""
        more = f"… ({rest:,} more characters)" if rest > 0 else ""
        self._filled.setdefault((text, number), {})[place] = content + more

    def close(self, text: str, number: int) -> bool:
        """Restore the elided and abbreviated form of a line. Returns whether it was changed."""
        full = (text, number) in self._full
        self._full.discard((text, number))
        return self._filled.pop((text, number), None) is not None or full

    def applied(self, text: str, number: int, line: AnnotatedLine | None) -> AnnotatedLine | None:
        """The line with its filled gaps."""
        if line is not None and (text, number) in self._full:
            line = line._replace(full=True)
        filled = self._filled.get((text, number))
        if not filled or line is None:
            return line
        parts, start = [], 0
        for place, match in enumerate(_GAP.finditer(line.text)):
            parts += [line.text[start : match.start()], filled.get(place, match[0])]
            start = match.end()
        return line._replace(text="".join([*parts, line.text[start:]]))
