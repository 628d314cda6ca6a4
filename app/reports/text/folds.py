"""Folded regions of a text: which lines are hidden, and at which rows the others are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple


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
        """Returns the line at `row`."""
        return self.start + row + self._hidden_before[bisect_left(self._rows, row)]

    def row_of(self, line: int) -> int:
        """Returns the row of `line`, or of the fold that hides it; the nearest row for a line outside the window."""
        index = bisect_right(self._firsts, line) - 1
        if index >= 0 and line <= self.visible_folds[index].last:
            return self._rows[index]
        row = line - self.start - self._hidden_before[index + 1]
        return max(0, min(row, self.count - 1))

    def hides(self, line: int) -> bool:
        """Whether `line` has no row."""
        return not self.count or self.line_of(self.row_of(line)) != line

    def hidden_count(self, line: int) -> int:
        """Returns the number of lines that are folded under `line`; 0 if it is not the first line of a fold."""
        index = bisect_left(self._firsts, line)
        if index == len(self._firsts) or self._firsts[index] != line:
            return 0
        return self._hidden_before[index + 1] - self._hidden_before[index]


def _outermost(folds: Iterable[TextFold]) -> list[TextFold]:
    """Returns the outermost folds, in order."""
    outermost: list[TextFold] = []
    for fold in sorted(set(folds), key=lambda fold: (fold.first, -fold.last)):
        if not outermost or fold.first > outermost[-1].last:
            outermost.append(fold)
    return outermost


def unfold_line(folds: Iterable[TextFold], line: int) -> set[TextFold]:
    """Returns the folds without those that hide `line`."""
    return {fold for fold in folds if not fold.first < line <= fold.last}
