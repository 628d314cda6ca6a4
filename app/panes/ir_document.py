"""A stage's text as rows: its lines without folded ones, or a diff with another stage. Needs no screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from buddy.app.reports.text.differences import DiffRows
from buddy.app.reports.text.folds import Folds, TextFold, unfold_line
from buddy.app.session.bounded import TEXTS, keep_newest
from buddy.compiler.protocol import Stage, Symbol


class IrDocument:
    """Which line of which text stands on a row, and which row a line is on.

    `text` names the stage's own text, which has `lines` lines. Its rows are the lines that `folds` leaves, or, where
    `diff` is set, the rows of the diff with the stage `other`. `only` is the function that alone is shown, "" for all;
    with `all_folded`, the functions of a text are folded when it is first shown.
    """

    def __init__(self) -> None:
        self.text = ""
        self.language = ""
        self.lines = 0
        self.diff: DiffRows | None = None
        self.other: Stage | None = None
        self.folds = Folds(0)
        self.only = ""
        self.all_folded = False
        self._folded: dict[str, set[TextFold]] = {}

    def show(self, stage: Stage, diff: DiffRows | None, other: Stage | None, folds: Folds) -> None:
        """Take the text of another stage, with its folds, or its diff with `other`."""
        self.text, self.language, self.lines = stage.text, stage.language, stage.lines
        self.diff, self.other, self.folds = diff, other, folds

    def clear(self) -> None:
        """Have no text, and forget the folds of all."""
        self.text, self.lines, self.diff, self.folds = "", 0, None, Folds(0)
        self._folded.clear()

    # ---- rows and lines ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self.folds.count if self.diff is None else self.diff.count

    @property
    def digits(self) -> int:
        """How many digits the line numbers have."""
        other = self.other.lines if self.diff is not None and self.other is not None else 0
        return max(3, len(str(max(self.lines, other))))

    def line_of(self, row: int) -> int:
        """The line of the stage's own text on a row, or before which something was removed."""
        return self.folds.line_of(row) if self.diff is None else self.diff.line_of(row)

    def own_line(self, row: int) -> int:
        """The line of the stage's own text that is drawn on `row`, -1 where there is none."""
        if self.diff is None:
            return self.folds.line_of(row)
        found = self.diff.row(row)
        return -1 if found.kind == "fold" else found.after

    def source_of(self, row: int) -> tuple[str, int] | None:
        """The text and the line that are drawn on a row; `None` for folded equal lines of a diff."""
        if self.diff is None:
            return self.text, self.folds.line_of(row)
        found = self.diff.row(row)
        if found.kind == "fold":
            return None
        if found.after >= 0 or self.other is None:
            return self.text, found.after
        return self.other.text, found.before

    def hides(self, line: int) -> bool:
        """Whether a fold, or `only`, keeps a line from the rows of a text that is not compared."""
        return self.diff is None and self.folds.hides(line)

    # ---- folds ---------------------------------------------------------------------------------------------------

    @property
    def narrowed(self) -> bool:
        """Whether something of the text or of the diff is on no row."""
        return self.folds.count < self.lines if self.diff is None else self.diff.narrowed

    @property
    def folded(self) -> set[TextFold]:
        """The regions of the stage's text that are folded."""
        return self._folded.get(self.text, set())

    def forget_folds(self) -> None:
        """Have the folds of each text made anew when it is next shown."""
        self._folded.clear()

    def folds_of(self, stage: Stage, symbols: Sequence[Symbol]) -> Folds:
        """The rows of a stage that has these functions: as they were when it was last shown, or as at first."""
        if stage.text not in self._folded:
            self._folded[stage.text] = set(_regions(symbols)) if self.all_folded else set()
            keep_newest(self._folded, TEXTS)
        return Folds(stage.lines, self._folded[stage.text], self._window(symbols))

    def refold(self, folded: Iterable[TextFold]) -> None:
        """Fold these regions of the text, and no others."""
        self._folded[self.text] = set(folded)
        self.folds = Folds(self.lines, self._folded[self.text], (self.folds.start, self._end - 1))

    def reveal(self, line: int) -> bool:
        """Unfold what hides a line, and show the whole text where the line is outside of `only`; whether it was."""
        outside = not self.folds.start <= line < self._end
        if outside:
            self.only = ""
            self.folds = Folds(self.lines)
        self.refold(unfold_line(self.folded, line))
        return outside

    @property
    def _end(self) -> int:
        """The line behind the text, or behind the function that alone is shown."""
        folds = self.folds
        return folds.start + folds.count + sum(folds.behind(fold.first) for fold in folds.shown)

    def _window(self, symbols: Sequence[Symbol]) -> tuple[int, int] | None:
        return next(((one.first, one.last) for one in symbols if one.name == self.only), None)

    # ---- diffs ---------------------------------------------------------------------------------------------------

    def narrow(self, diff: DiffRows, symbols: Sequence[Symbol]) -> None:
        """Leave of a diff the function that alone is to be shown, and fold functions where that is asked for."""
        diff.narrow(self._window(symbols), list(_regions(symbols)) if self.all_folded else [])

    def reveal_in_diff(self, diff: DiffRows, line: int) -> tuple[int, bool]:
        """The row of a line, unfolded if need be; and whether the line was outside of `only`, which is over then."""
        outside = not diff.holds(line)
        if outside:
            self.only = ""
            diff.widen()
        return (diff.reveal(max(0, min(line, self.lines - 1))) if self.lines else 0), outside


def region_of(symbol: Symbol) -> TextFold:
    """A function as a region to fold."""
    return TextFold(symbol.first, symbol.last)


def _regions(symbols: Iterable[Symbol]) -> Iterable[TextFold]:
    return (region_of(symbol) for symbol in symbols if symbol.last > symbol.first)
