"""Parts of a text that are not shown: abbreviated types, elided constants, folds. Also wraps long lines."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.session.state import MAX_CACHED_TEXTS, keep_newest
from buddy.compiler.protocol import LongType
from buddy.compiler.protocol.text.lines import INSIDE

# The minimum number of characters between the brackets of a type that is abbreviated.
MIN_ABBREVIATED = 16
_PARAMETERS = re.compile(
    r"(?P<head>\b(?:strided|affine_map|affine_set|array|dense|distinct|spirv\.\w+)|!llvm\.struct|#[\w.]+)"
    rf"<(?:{INSIDE}|<(?:{INSIDE}|<(?:{INSIDE})*>)*>){{{MIN_ABBREVIATED},}}>"
)
_DICTIONARY = re.compile(rf"\{{[^{{}}\n]{{{2 * MIN_ABBREVIATED},}}\}}")


def abbreviate_types(line: str, ellipsis: str) -> str:
    """Replaces the content of layouts, struct types, inline maps and attribute dictionaries by `ellipsis`."""
    if line[:1] in "#!":
        # The definition of an alias stays in full.
        return line
    short = _PARAMETERS.sub(lambda match: f"{match['head']}<{ellipsis}>", line)
    return _DICTIONARY.sub(lambda match: f"{{{ellipsis}}}", short)


class TypeNames:
    """Names such as `!T1` for long types. A type has the same name in all texts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # The long types of each text.
        self._types: dict[str, tuple[LongType, ...]] = {}
        self._shown_texts: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None

    def has_types_of(self, text: str) -> bool:
        """Whether the types of a text were added."""
        return text in self._types

    def add(self, text: str, types: Sequence[LongType]) -> None:
        """Add the types of a text, and give names to those that have none."""
        self._types[text] = tuple(types)
        keep_newest(self._types, MAX_CACHED_TEXTS)
        for long_type in types:
            self._names.setdefault(long_type.text, f"!T{len(self._names) + 1}")

    def show(self, *texts: str) -> bool:
        """Set the texts whose types are replaced by names. Returns whether they have changed."""
        shown = tuple(text for text in texts if text in self._types)
        if shown == self._shown_texts:
            return False
        types = {long_type.text for text in shown for long_type in self._types[text]}
        # The longest types first: otherwise a type that is a prefix of another one would match in its place.
        ordered = sorted(types, key=len, reverse=True)
        self._shown_texts = shown
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        return True

    def types_of(self, text: str) -> list[tuple[str, LongType]]:
        """The types of a text with their names, in text order."""
        return [(self._names[long_type.text], long_type) for long_type in self._types.get(text, ())]

    def types_on(self, line: str) -> dict[str, str]:
        """Maps the names that replace the types on `line`, in line order, to the types."""
        if self._pattern is None or line[:1] in "#!":
            return {}
        return {self._names[long_type]: long_type for long_type in self._pattern.findall(line)}

    def abbreviate(self, line: str) -> str:
        """Replaces the long types on `line` by their names."""
        if self._pattern is None or line[:1] in "#!":
            # The definition of an alias stays in full.
            return line
        return self._pattern.sub(lambda match: self._names[match[0]], line)


# The maximum number of characters of a constant that are expanded at a time, so that lexing and wrapping stay fast.
MAX_EXPANDED = 16_000
_GAP = re.compile(r"… \(([\d,]+) more characters\)")


class ConstantGap(NamedTuple):
    """An elided part of a line: the `missing` characters of the full line from `start` on.

    With `at_end`, it is the end of a truncated line. Then `missing` counts the constants in it as elided.
    """

    start: int
    missing: int
    at_end: bool = False


def find_gaps(line: str) -> list[ConstantGap]:
    """The gaps of a line, in order."""
    gaps: list[ConstantGap] = []
    # The difference between an offset in the full line and in `line`.
    shift = 0
    for match in _GAP.finditer(line):
        count = int(match[1].replace(",", ""))
        gaps.append(ConstantGap(match.start() + shift, count, match.end() == len(line)))
        shift += count - len(match[0])
    return gaps


class Expansions:
    """The contents of the gaps that the user has filled, and the lines that are shown without abbreviations."""

    def __init__(self) -> None:
        # By text and line: the content of each filled gap, by its index.
        self._filled: dict[tuple[str, int], dict[int, str]] = {}
        self._full: set[tuple[str, int]] = set()

    def clear(self) -> None:
        self._filled.clear()
        self._full.clear()

    def show_full(self, text: str, number: int) -> None:
        """Show a line without abbreviations, until `collapse`."""
        self._full.add((text, number))

    def next_gap(self, text: str, number: int, line: str) -> tuple[int, ConstantGap] | None:
        """The index of the first gap of a line that is not filled, and the gap."""
        filled = self._filled.get((text, number), {})
        return next(((index, gap) for index, gap in enumerate(find_gaps(line)) if index not in filled), None)

    def fill(self, text: str, number: int, index: int, content: str, rest: int) -> None:
        """Fill gap `index` with `content`, followed by a note that `rest` characters are still missing."""
        note = f"… ({rest:,} more characters)" if rest > 0 else ""
        self._filled.setdefault((text, number), {})[index] = content + note

    def collapse(self, text: str, number: int) -> bool:
        """Restore the elided and abbreviated form of a line. Returns whether the line had another form."""
        was_full = (text, number) in self._full
        self._full.discard((text, number))
        return self._filled.pop((text, number), None) is not None or was_full

    def apply(self, text: str, number: int, line: AnnotatedLine | None) -> AnnotatedLine | None:
        """The line with its filled gaps, marked as full if it is shown without abbreviations."""
        if line is not None and (text, number) in self._full:
            line = replace(line, is_full=True)
        filled = self._filled.get((text, number))
        if not filled or line is None:
            return line
        parts, start = [], 0
        for index, match in enumerate(_GAP.finditer(line.text)):
            parts += [line.text[start : match.start()], filled.get(index, match[0])]
            start = match.end()
        return replace(line, text="".join([*parts, line.text[start:]]))


class TextFold(NamedTuple):
    """A folded region: its line `first` stays visible, the lines after it up to `last` are hidden."""

    first: int
    last: int


class Folds:
    """Maps the lines of a text to rows. Rows are the lines in `window` (first, last) that no fold hides.

    `visible_folds` are the folds whose first line has a row, in order.
    """

    def __init__(self, lines: int, folds: Iterable[TextFold] = (), window: tuple[int, int] | None = None) -> None:
        self.start, last = window if window is not None else (0, lines - 1)
        in_window = [fold for fold in folds if self.start <= fold.first < min(fold.last, last)]
        self.visible_folds = _outermost(in_window)
        hidden = [min(fold.last, last) - fold.first for fold in self.visible_folds]
        # The number of lines that are hidden before each fold; the last entry is the total.
        self._hidden_before = [0, *accumulate(hidden)]
        # The row of the first line of each fold.
        pairs = zip(self.visible_folds, self._hidden_before, strict=False)
        self._rows = [fold.first - self.start - hidden_before for fold, hidden_before in pairs]
        self._firsts = [fold.first for fold in self.visible_folds]
        self.count = max(0, last - self.start + 1 - self._hidden_before[-1])

    def line_of(self, row: int) -> int:
        """The line at `row`."""
        return self.start + row + self._hidden_before[bisect_left(self._rows, row)]

    def row_of(self, line: int) -> int:
        """The row of `line`, or of the fold that hides it; the nearest row for a line outside the window."""
        index = bisect_right(self._firsts, line) - 1
        if index >= 0 and line <= self.visible_folds[index].last:
            return self._rows[index]
        row = line - self.start - self._hidden_before[index + 1]
        return max(0, min(row, self.count - 1))

    def hides(self, line: int) -> bool:
        """Whether `line` has no row."""
        return not self.count or self.line_of(self.row_of(line)) != line

    def hidden_count(self, line: int) -> int:
        """The number of lines that are folded under `line`; 0 if it is not the first line of a fold."""
        index = bisect_left(self._firsts, line)
        if index == len(self._firsts) or self._firsts[index] != line:
            return 0
        return self._hidden_before[index + 1] - self._hidden_before[index]


def _outermost(folds: Iterable[TextFold]) -> list[TextFold]:
    """The outermost folds, in order."""
    outermost: list[TextFold] = []
    for fold in sorted(set(folds), key=lambda fold: (fold.first, -fold.last)):
        if not outermost or fold.first > outermost[-1].last:
            outermost.append(fold)
    return outermost


def unfold_line(folds: Iterable[TextFold], line: int) -> set[TextFold]:
    """The folds without those that hide `line`."""
    return {fold for fold in folds if not fold.first < line <= fold.last}


# The indentation of the segments of a wrapped line after the first one, relative to the line, if it fits.
CONTINUATION_INDENT = 4
# A line is broken between words only if this share of the segment is filled; otherwise within a word.
MIN_FILLED_SHARE = 0.6


class WrappedSegment(NamedTuple):
    """The characters from `start` to `end` (exclusive) of a line, drawn `indent` columns to the right."""

    start: int
    end: int
    indent: int


def wrap_segments(text: str, columns: int) -> list[WrappedSegment]:
    """Splits `text` into segments of at most `columns` columns, after a space or a comma if one is near the end."""
    if len(text) <= columns or columns <= 0:
        return [WrappedSegment(0, len(text), 0)]
    indent = min(len(text) - len(text.lstrip(" ")) + CONTINUATION_INDENT, columns // 3)
    segments: list[WrappedSegment] = []
    start, segment_indent = 0, 0
    while len(text) - start > columns - segment_indent:
        end = _segment_end(text, start, start + columns - segment_indent)
        segments.append(WrappedSegment(start, end, segment_indent))
        start, segment_indent = end, indent
    return [*segments, WrappedSegment(start, len(text), segment_indent)]


def _segment_end(text: str, start: int, limit: int) -> int:
    """The end of the segment that starts at `start`: after the last space or comma before `limit`, or `limit`."""
    first_break = start + int((limit - start) * MIN_FILLED_SHARE)
    return max(text.rfind(" ", first_break, limit), text.rfind(",", first_break, limit)) + 1 or limit
