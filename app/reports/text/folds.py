"""Hidden lines of a text: folded regions, and lines outside the shown function. No Textual."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple


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
