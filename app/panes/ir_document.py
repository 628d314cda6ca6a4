"""The text of a stage as rows: its lines without the folded ones, or a diff with another stage. No Textual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from buddy.app.reports.text.differences import DiffRows, Layout
from buddy.app.reports.text.folds import Expansions, Folds, TextFold, unfold_line
from buddy.app.session.stages import AnnotatedLine, LineCache, StageRow
from buddy.app.session.state import TEXTS, keep_newest
from buddy.compiler.protocol import Stage, Symbol

How = Literal["off", "line", "structural"]
# The minimum width for two texts side by side: 70 columns of each.
BESIDE_FROM = 150


class IrView(Protocol):
    """The widget that shows an `IrDocument`: what the components of the IR pane use of the pane."""

    cursor: int
    wrapped: bool

    @property
    def width(self) -> int:
        """The number of columns."""

    @property
    def first_row(self) -> int:
        """The first row on the screen."""

    @property
    def line_number(self) -> int:
        """The line of the stage's own text at the cursor, or the line before which something was removed."""

    def rows_on_screen(self) -> range:
        """The rows on the screen."""

    def refresh(self) -> object:
        """Draw everything again."""

    def refresh_row(self, row: int) -> None:
        """Draw a row again."""

    def refresh_edges(self) -> None:
        """Draw the lines above and below the text again."""

    def rows_changed(self) -> None:
        """Measure and draw again."""

    def redraw_lines(self) -> None:
        """Discard the drawn lines, and draw again with the cursor at the same place on the screen."""

    def keep_cursor_at(self, offset: int) -> None:
        """Scroll so that the cursor is `offset` rows below the first row on the screen."""

    def center(self, row: int) -> None:
        """Move the cursor to `row`. If the row is not on the screen, scroll it to the middle."""

    def row_of(self, line: int) -> int:
        """The row of a line of the stage's own text. Unfolds the line if necessary."""

    def place_line(self, line: int, offset: int) -> None:
        """Draw changed folds, with the cursor on `line`, `offset` rows below the first row on the screen."""

    def open_stage(self) -> None:
        """Load the lines of the chosen stage, then draw them."""

    def choose(self, row: StageRow) -> None:
        """Show the stage of `row`."""

    def show_line(self, row: StageRow, line: int) -> None:
        """Show a line of the stage of `row`."""


class IrContent(NamedTuple):
    """What is drawn: a text or its difference from the text `other`, limited to the function `only` if it is set."""

    text: str
    other: str = ""
    how: How = "off"
    only: str = ""


NO_CONTENT = IrContent("")


def layout_at(width: int) -> Layout:
    """The layout of a diff in a pane of that width."""
    return "beside" if width >= BESIDE_FROM else "unified"


class IrDocument:
    """Maps rows to lines of texts, and lines to rows.

    `text` names the stage's own text, which has `lines` lines. Its rows are the lines that `folds` shows, or, if
    `diff` is set, the rows of the diff with the stage `other`. `only` is the function that is shown alone, "" for all;
    with `all_folded`, the functions of a text are folded when it is shown for the first time. `content` is what the
    pane has drawn from the document.
    """

    def __init__(self, cache: LineCache) -> None:
        self._cache = cache
        self.content = NO_CONTENT
        self.expansions = Expansions()
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
        """Set the text to that of another stage, with its folds or its diff with `other`."""
        self.text, self.language, self.lines = stage.text, stage.language, stage.lines
        self.diff, self.other, self.folds = diff, other, folds

    def clear(self) -> None:
        """Remove the text, the folds of all texts and the expanded constants."""
        self.text, self.lines, self.diff, self.folds = "", 0, None, Folds(0)
        self.content = NO_CONTENT
        self._folded.clear()
        self.expansions.clear()

    # ---- rows and lines ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self.folds.count if self.diff is None else self.diff.count

    @property
    def digits(self) -> int:
        """The number of digits of line numbers."""
        other = self.other.lines if self.diff is not None and self.other is not None else 0
        return max(3, len(str(max(self.lines, other))))

    def line_of(self, row: int) -> int:
        """The line of the stage's own text on a row, or the line before which something was removed."""
        return self.folds.line_of(row) if self.diff is None else self.diff.line_of(row)

    def own_line(self, row: int) -> int:
        """The line of the stage's own text that is drawn on `row`, -1 for none."""
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
        """Whether a fold or `only` hides a line of a text that is not compared."""
        return self.diff is None and self.folds.hides(line)

    # ---- cached lines --------------------------------------------------------------------------------------------

    def line_of_text(self, text: str, number: int) -> AnnotatedLine | None:
        """A line with its expanded constants; `None` until it is cached."""
        return self.expansions.apply(text, number, self._cache.get(text, number))

    def line_at(self, row: int) -> AnnotatedLine | None:
        """The line on `row`; a removed line is a line of the other text."""
        if not self.text or not 0 <= row < self.row_count:
            return None
        source = self.source_of(row)
        return self.line_of_text(*source) if source is not None else AnnotatedLine("")

    def own_text_line(self, line: int) -> AnnotatedLine | None:
        """Line `line` of the stage's own text."""
        return self.line_of_text(self.text, line)

    def other_text_line(self, line: int) -> AnnotatedLine | None:
        """Line `line` of the text that the stage is compared with."""
        return self.line_of_text(self.other.text, line) if self.other is not None else None

    def fetch_ahead(self, start: int, page: int) -> None:
        """Prefetch `page` rows of the diff from `start` on: below a fold they are far from the lines on the screen."""
        assert self.diff is not None
        assert self.other is not None
        for number in range(start, min(start + page, self.diff.count), 8):
            row = self.diff.row(number)
            for text, line in ((self.text, max(row.after, 0)), (self.other.text, max(row.before, 0))):
                if line:
                    self._cache.ahead(text, line)

    # ---- folds ---------------------------------------------------------------------------------------------------

    @property
    def is_narrowed(self) -> bool:
        """Whether a part of the text or of the diff is hidden."""
        return self.folds.count < self.lines if self.diff is None else self.diff.is_narrowed

    @property
    def folded(self) -> set[TextFold]:
        """The regions of the stage's text that are folded."""
        return self._folded.get(self.text, set())

    def forget_folds(self) -> None:
        """Reset the folds of every text to their initial state when the text is shown next."""
        self._folded.clear()

    def folds_of(self, stage: Stage, symbols: Sequence[Symbol]) -> Folds:
        """The rows of a stage with these functions: as they were shown last, or in their initial state."""
        if stage.text not in self._folded:
            self._folded[stage.text] = set(_regions(symbols)) if self.all_folded else set()
            keep_newest(self._folded, TEXTS)
        return Folds(stage.lines, self._folded[stage.text], self._window(symbols))

    def refold(self, folded: Iterable[TextFold]) -> None:
        """Fold these regions of the text, and no others."""
        self._folded[self.text] = set(folded)
        self.folds = Folds(self.lines, self._folded[self.text], (self.folds.start, self._end - 1))

    def reveal(self, line: int) -> bool:
        """Unfold a line. If the line is outside `only`, show the whole text, and return true."""
        outside = not self.folds.start <= line < self._end
        if outside:
            self._show_all()
            self.folds = Folds(self.lines)
        self.refold(unfold_line(self.folded, line))
        return outside

    def _show_all(self) -> None:
        self.only = ""
        self.content = self.content._replace(only="")

    @property
    def _end(self) -> int:
        """The line after the text, or after the function `only`."""
        folds = self.folds
        return folds.start + folds.count + sum(folds.hidden_count(fold.first) for fold in folds.visible_folds)

    def _window(self, symbols: Sequence[Symbol]) -> tuple[int, int] | None:
        return next(((one.first, one.last) for one in symbols if one.name == self.only), None)

    # ---- diffs ---------------------------------------------------------------------------------------------------

    def narrow(self, diff: DiffRows, symbols: Sequence[Symbol]) -> None:
        """Limit a diff to the function `only`, and fold functions if `all_folded` is set."""
        diff.narrow(self._window(symbols), list(_regions(symbols)) if self.all_folded else [])

    def reveal_in_diff(self, diff: DiffRows, line: int) -> tuple[int, bool]:
        """The row of a line, which is unfolded if necessary. If the line is outside `only`, shows the whole diff.

        Returns the row, and whether the line was outside `only`.
        """
        outside = not diff.holds(line)
        if outside:
            self._show_all()
            diff.widen()
        return (diff.reveal(max(0, min(line, self.lines - 1))) if self.lines else 0), outside


def region_of(symbol: Symbol) -> TextFold:
    """The region of a function, to fold it."""
    return TextFold(symbol.first, symbol.last)


def _regions(symbols: Iterable[Symbol]) -> Iterable[TextFold]:
    return (region_of(symbol) for symbol in symbols if symbol.last > symbol.first)
