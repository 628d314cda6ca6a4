"""What is shown of a text: folds, abbreviations, elided constants, wrapped lines."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from buddy.app.session.stages import AnnotatedLine
from buddy.app.session.state import MAX_CACHED_TEXTS, keep_newest
from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.texts import INSIDE

# Shorter texts are not worth abbreviating.
LONGEST_TYPE = 16
_INNER = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>){{{LONGEST_TYPE},}}>"
)
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * LONGEST_TYPE},}}\}}")


def abbreviate_types(line: str, ellipsis: str) -> str:
    """`line` with layouts, struct types, inline maps and attribute dictionaries reduced to their names."""
    if line[:1] in "#!":
        # The definition of an alias stays in full.
        return line
    short = _INNER.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)


class TypeNames:
    """Names such as `!T1` for long types. A type has the same name in all texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._types: dict[str, tuple[LongType, ...]] = {}
        self._shown: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def knows(self, text: str) -> bool:
        """Whether the types of a text are known."""
        return text in self._types

    def take(self, text: str, types: Sequence[LongType]) -> None:
        """Give names to the types of a text that have none."""
        self._types[text] = tuple(types)
        keep_newest(self._types, MAX_CACHED_TEXTS)
        for one in types:
            self._names.setdefault(one.text, f"!T{len(self._names) + 1}")

    def show(self, *texts: str) -> bool:
        """Set the texts that are shown. Returns whether they have changed."""
        shown = tuple(text for text in texts if text in self._types)
        if shown != self._shown:
            types = {one.text for text in shown for one in self._types[text]}
            # The longest first, so that a type is not matched by a prefix.
            ordered = sorted(types, key=len, reverse=True)
            self._shown, self._pattern = shown, re.compile("|".join(map(re.escape, ordered))) if ordered else None
            return True
        return False

    def of(self, text: str) -> list[tuple[str, LongType]]:
        """The types of a text with their names, in text order."""
        return [(self._names[one.text], one) for one in self._types.get(text, ())]

    def inside(self, line: str) -> dict[str, str]:
        """The full types of the names on a line, in line order."""
        if self._pattern is None or line[:1] in "#!":
            return {}
        return {self._names[found]: found for found in self._pattern.findall(line)}

    def named(self, line: str) -> str:
        """`line` with names for its types."""
        if self._pattern is None or line[:1] in "#!":
            # The definition of an alias stays in full.
            return line
        return self._pattern.sub(lambda match: self._names[match[0]], line)


# Maximum number of characters expanded, so that lexing and wrapping stay fast.
LONGEST_EXPANSION = 16_000
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


class TextFold(NamedTuple):
    """Line `first` stays visible; the lines after it up to `last` are hidden."""

    first: int
    last: int


class Folds:
    """The rows of a text of `lines` lines: the lines in `window` that no fold hides."""

    def __init__(self, lines: int, folds: Iterable[TextFold] = (), window: tuple[int, int] | None = None) -> None:
        self.start, last = window if window is not None else (0, lines - 1)
        inside = [fold for fold in folds if self.start <= fold.first < min(fold.last, last)]
        self.shown = _outermost(inside)
        hidden = [min(fold.last, last) - fold.first for fold in self.shown]
        self._before = [0, *accumulate(hidden)]
        # The row of the first line of each fold.
        pairs = zip(self.shown, self._before, strict=False)
        self._rows = [fold.first - self.start - before for fold, before in pairs]
        self._firsts = [fold.first for fold in self.shown]
        self.count = max(0, last - self.start + 1 - self._before[-1])

    def line_of(self, row: int) -> int:
        """The line at `row`."""
        return self.start + row + self._before[bisect_left(self._rows, row)]

    def row_of(self, line: int) -> int:
        """The row of `line`, or of the fold that hides it; the nearest row for a line outside the window."""
        place = bisect_right(self._firsts, line) - 1
        if place >= 0 and line <= self.shown[place].last:
            return self._rows[place]
        row = line - self.start - self._before[place + 1]
        return max(0, min(row, self.count - 1))

    def hides(self, line: int) -> bool:
        """Whether `line` has no row."""
        return not self.count or self.line_of(self.row_of(line)) != line

    def behind(self, line: int) -> int:
        """The number of lines folded under `line`."""
        place = bisect_left(self._firsts, line)
        if place == len(self._firsts) or self._firsts[place] != line:
            return 0
        return self._before[place + 1] - self._before[place]


def _outermost(folds: Iterable[TextFold]) -> list[TextFold]:
    """The outermost folds, in order."""
    kept: list[TextFold] = []
    for fold in sorted(set(folds), key=lambda fold: (fold.first, -fold.last)):
        if not kept or fold.first > kept[-1].last:
            kept.append(fold)
    return kept


def unfold_line(folds: Iterable[TextFold], line: int) -> set[TextFold]:
    """The folds without those that hide `line`."""
    return {fold for fold in folds if not fold.first < line <= fold.last}


# Indentation of continuation pieces, relative to the line, if there is room.
CONTINUED = 4
# Maximum share of a piece that a break between words may leave empty.
LEAST_FILLED = 0.6


class WrappedSegment(NamedTuple):
    """Characters `first` to `last` of a line, indented by `indent` columns."""

    first: int
    last: int
    indent: int


def wrap_segments(text: str, room: int) -> list[WrappedSegment]:
    """`text` in pieces of at most `room` columns, broken after a space or a comma if one is near the end."""
    if len(text) <= room or room <= 0:
        return [WrappedSegment(0, len(text), 0)]
    indent = min(len(text) - len(text.lstrip(" ")) + CONTINUED, room // 3)
    found: list[WrappedSegment] = []
    start, left = 0, 0
    while len(text) - start > room - left:
        end = _break(text, start, start + room - left)
        found.append(WrappedSegment(start, end, left))
        start, left = end, indent
    return [*found, WrappedSegment(start, len(text), left)]


def _break(text: str, start: int, end: int) -> int:
    """The end of a piece that is limited to `end`."""
    least = start + int((end - start) * LEAST_FILLED)
    return max(text.rfind(" ", least, end), text.rfind(",", least, end)) + 1 or end
