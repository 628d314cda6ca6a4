"""Long constants, which the engine elides where it prints a line, put back one at a time. No Textual."""

from __future__ import annotations

import re
from typing import NamedTuple

from buddy.app.session.lines import Line

# Characters of a constant that are put back: lexing and wrapping them stays quicker than anyone notices.
LONGEST = 16_000
_GAP = re.compile(r"… \(([\d,]+) more characters\)")


class Gap(NamedTuple):
    """What was elided of a line: `missing` characters from `start` on, in the line as it is in full.

    `tail`: the line was cut there, so that `missing` is what there would be if its constants were elided.
    """

    start: int
    missing: int
    tail: bool = False


def gaps(line: str) -> list[Gap]:
    """The gaps of an elided line, in order."""
    found: list[Gap] = []
    gained = 0
    for match in _GAP.finditer(line):
        count = int(match[1].replace(",", ""))
        found.append(Gap(match.start() + gained, count, match.end() == len(line)))
        gained += count - len(match[0])
    return found


class Expansions:
    """Which gaps of which lines are filled, and with what, and which lines are drawn in full among those in short."""

    def __init__(self) -> None:
        self._filled: dict[tuple[str, int], dict[int, str]] = {}
        self._full: set[tuple[str, int]] = set()

    def clear(self) -> None:
        self._filled.clear()
        self._full.clear()

    def draw_full(self, text: str, number: int) -> None:
        """Have a line drawn in full, until it is closed."""
        self._full.add((text, number))

    def next_gap(self, text: str, number: int, line: str) -> tuple[int, Gap] | None:
        """The first gap of a line, as the engine gives it, that is not filled, and its place among the gaps."""
        filled = self._filled.get((text, number), {})
        return next(((place, gap) for place, gap in enumerate(gaps(line)) if place not in filled), None)

    def fill(self, text: str, number: int, place: int, content: str, rest: int) -> None:
        """Put `content` into a gap, and say that `rest` characters are left out."""
        more = f"… ({rest:,} more characters)" if rest > 0 else ""
        self._filled.setdefault((text, number), {})[place] = content + more

    def close(self, text: str, number: int) -> bool:
        """Elide again what was filled on a line, and draw it in short; whether anything was otherwise."""
        full = (text, number) in self._full
        self._full.discard((text, number))
        return self._filled.pop((text, number), None) is not None or full

    def applied(self, text: str, number: int, line: Line | None) -> Line | None:
        """The line with its gaps filled."""
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
