"""The text of a stage as rows: its lines that are not folded, or a diff. Does not import Textual.

Texts stay in the engine. The name of a text is the hash of its content: equal stages have the same text. `text` as an
attribute or a parameter is always such a name; lines are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from buddy.app.reports.text.abbreviations import Expansions
from buddy.app.reports.text.rows import DiffLayout, DiffRows, Folds, TextFold, unfold_line
from buddy.app.session.line_cache import AnnotatedLine, LineCache
from buddy.app.session.stages import StageRow
from buddy.app.session.state import MAX_CACHED_TEXTS, keep_newest
from buddy.compiler.protocol import Stage, Symbol

DiffMode = Literal["off", "line", "structural"]
# The minimum width of the pane, in cells, for two texts side by side: it leaves about 70 for each text.
MIN_SIDE_BY_SIDE_WIDTH = 150
# The lines of every eighth row of a diff are prefetched, because fetching a line also fetches the lines around it.
PREFETCH_STRIDE = 8


class IrView(Protocol):
    """The members of the IR pane that its components use. The pane shows an `IrDocument`."""

    cursor: int
    wrapped: bool

    @property
    def width(self) -> int:
        """The number of columns of the pane."""

    @property
    def first_row(self) -> int:
        """The first row on the screen."""

    @property
    def line_number(self) -> int:
        """The number of the line of the stage's text at the cursor; at a removed line, of the line after it."""

    def rows_on_screen(self) -> range:
        """The rows on the screen."""

    def refresh(self) -> object:
        """Draws everything again."""

    def refresh_row(self, row: int) -> None:
        """Draws a row again."""

    def refresh_edges(self) -> None:
        """Draws the lines above and below the text again."""

    def rows_changed(self) -> None:
        """Updates the layout and draws again."""

    def redraw_lines(self) -> None:
        """Discards the cached drawn lines, and draws again with the cursor on the same screen line."""

    def keep_cursor_at(self, offset: int) -> None:
        """Scrolls so that the cursor is `offset` rows below the first row on the screen."""

    def center(self, row: int) -> None:
        """Moves the cursor to `row`. If the row is not on the screen, scrolls it to the middle."""

    def row_of(self, line: int) -> int:
        """The row of a line of the stage's text. Unfolds the line if necessary."""

    def place_line(self, line: int, offset: int) -> None:
        """Draws after a change of folds, with the cursor on `line`, `offset` rows below the first row on the screen."""

    def open_stage(self) -> None:
        """Loads the lines of the chosen stage, then draws them."""

    def copy_lines_of_stage(self, first: int, stop: int, description: str = "") -> None:
        """Copies lines `first` to `stop` (exclusive) of the stage's text. The message calls them `description`."""

    def choose(self, row: StageRow) -> None:
        """Shows the stage of `row`."""

    def show_line(self, row: StageRow, line: int) -> None:
        """Shows a line of the stage of `row`; -1 is the first change of its diff."""


class IrContent(NamedTuple):
    """Identifies what is drawn: a text, or its diff from the text `other`.

    `mode` is the mode of the diff. If `only_function` is not empty, only the function with that name is drawn.
    """

    text: str
    other: str = ""
    mode: DiffMode = "off"
    only_function: str = ""


NO_CONTENT = IrContent("")


def diff_layout_at(width: int) -> DiffLayout:
    """Returns the layout of a diff in a pane with `width` columns."""
    return "side-by-side" if width >= MIN_SIDE_BY_SIDE_WIDTH else "unified"


class IrDocument:
    """Maps rows to lines of texts, and lines to rows.

    `text` is the name of the stage's text, which has `line_count` lines. The rows are the lines that `folds` does not
    hide, or, if `diff` is set, the rows of the diff from the stage `other`. `only_function` is the function that is
    shown alone, "" for all. With `all_folded`, a text that is shown for the first time has all functions folded.
    `content` identifies what the pane has drawn. `expansions` are the constants that the user has expanded.
    """

    def __init__(self, cache: LineCache) -> None:
        self._cache = cache
        self.content = NO_CONTENT
        self.expansions = Expansions()
        self.text = ""
        self.language = ""
        self.line_count = 0
        self.diff: DiffRows | None = None
        self.other: Stage | None = None
        self.folds = Folds(0)
        self.only_function = ""
        self.all_folded = False
        # The folded regions of each text.
        self._folded: dict[str, set[TextFold]] = {}

    def show(self, stage: Stage, diff: DiffRows | None, other: Stage | None, folds: Folds) -> None:
        """Sets the text to that of another stage, with its folds or its diff from `other`."""
        self.text, self.language, self.line_count = stage.text, stage.language, stage.lines
        self.diff, self.other, self.folds = diff, other, folds

    def clear(self) -> None:
        """Removes the text, the folds of all texts and the expanded constants."""
        self.text, self.line_count, self.diff, self.folds = "", 0, None, Folds(0)
        self.content = NO_CONTENT
        self._folded.clear()
        self.expansions.clear()

    # ---- rows and lines ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self.folds.count if self.diff is None else self.diff.count

    @property
    def line_number_width(self) -> int:
        """The number of columns for line numbers, at least 3."""
        other = self.other.lines if self.diff is not None and self.other is not None else 0
        return max(3, len(str(max(self.line_count, other))))

    def line_of(self, row: int) -> int:
        """The number of the line of the stage's text on a row; for a removed line, of the line after it."""
        return self.folds.line_of(row) if self.diff is None else self.diff.line_of(row)

    def own_line(self, row: int) -> int:
        """The number of the line of the stage's text on a row; -1 for a removed line or folded equal lines."""
        if self.diff is None:
            return self.folds.line_of(row)
        diff_row = self.diff.row(row)
        return -1 if diff_row.kind == "fold" else diff_row.after

    def source_of(self, row: int) -> tuple[str, int] | None:
        """The name of the text and the number of the line on a row; `None` for folded equal lines of a diff."""
        if self.diff is None:
            return self.text, self.folds.line_of(row)
        diff_row = self.diff.row(row)
        if diff_row.kind == "fold":
            return None
        if diff_row.after >= 0 or self.other is None:
            return self.text, diff_row.after
        return self.other.text, diff_row.before

    def hides(self, line: int) -> bool:
        """Whether a fold or `only_function` hides a line. Always false in a diff."""
        return self.diff is None and self.folds.hides(line)

    # ---- cached lines --------------------------------------------------------------------------------------------

    def line_of_text(self, text: str, number: int) -> AnnotatedLine | None:
        """Line `number` of a text, with its expanded constants; `None` if it is not cached."""
        return self.expansions.apply(text, number, self._cache.get(text, number))

    def line_at(self, row: int) -> AnnotatedLine | None:
        """The line on `row`; `None` if it is not cached. A removed line is a line of the other text."""
        if not self.text or not 0 <= row < self.row_count:
            return None
        source = self.source_of(row)
        return self.line_of_text(*source) if source is not None else AnnotatedLine("")

    def own_text_line(self, line: int) -> AnnotatedLine | None:
        """A line of the stage's text; `None` if it is not cached."""
        return self.line_of_text(self.text, line)

    def other_text_line(self, line: int) -> AnnotatedLine | None:
        """A line of the text that the stage is compared with; `None` if it is not cached."""
        return self.line_of_text(self.other.text, line) if self.other is not None else None

    def fetch_ahead(self, start: int, page: int) -> None:
        """Prefetches the lines of `page` rows of the diff from row `start` on.

        The cache itself prefetches only lines that directly follow those on the screen, not the lines below a fold.
        """
        assert self.diff is not None
        assert self.other is not None
        for number in range(start, min(start + page, self.diff.count), PREFETCH_STRIDE):
            row = self.diff.row(number)
            for text, line in ((self.text, row.after), (self.other.text, row.before)):
                # The cache has the first line of each text already.
                if line > 0:
                    self._cache.prefetch(text, line)

    # ---- folds ---------------------------------------------------------------------------------------------------

    @property
    def is_narrowed(self) -> bool:
        """Whether a part of the text or of the diff is hidden."""
        return self.folds.count < self.line_count if self.diff is None else self.diff.is_narrowed

    @property
    def folded(self) -> set[TextFold]:
        """The folded regions of the stage's text."""
        return self._folded.get(self.text, set())

    def forget_folds(self) -> None:
        """Discards the folds of all texts. A text gets its initial folds again when it is shown next."""
        self._folded.clear()

    def folds_of(self, stage: Stage, symbols: Sequence[Symbol]) -> Folds:
        """The folds of a stage with the functions `symbols`: the folds that it had last, or else its initial folds."""
        if stage.text not in self._folded:
            self._folded[stage.text] = set(_regions(symbols)) if self.all_folded else set()
            keep_newest(self._folded, MAX_CACHED_TEXTS)
        return Folds(stage.lines, self._folded[stage.text], self._shown_lines(symbols))

    def refold(self, folded: Iterable[TextFold]) -> None:
        """Folds the regions `folded` of the text, and no others."""
        self._folded[self.text] = set(folded)
        self.folds = Folds(self.line_count, self._folded[self.text], (self.folds.start, self._end_line - 1))

    def reveal(self, line: int) -> bool:
        """Unfolds a line. Returns whether it is outside of `only_function`; if so, shows all functions."""
        outside = not self.folds.start <= line < self._end_line
        if outside:
            self._show_all()
            self.folds = Folds(self.line_count)
        self.refold(unfold_line(self.folded, line))
        return outside

    def _show_all(self) -> None:
        """Shows all functions instead of one, in this text and in those shown later."""
        self.only_function = ""
        # The pane draws this text itself: it must not load the stage again.
        self.content = self.content._replace(only_function="")

    @property
    def _end_line(self) -> int:
        """The line after the last one of the text, or of the function `only_function`."""
        folds = self.folds
        return folds.start + folds.count + sum(folds.hidden_count(fold.first) for fold in folds.visible_folds)

    def _shown_lines(self, symbols: Sequence[Symbol]) -> tuple[int, int] | None:
        """The first and the last line of the function `only_function`, `None` if there is no such function."""
        named = (symbol for symbol in symbols if symbol.name == self.only_function)
        return next(((symbol.first, symbol.last) for symbol in named), None)

    # ---- diffs ---------------------------------------------------------------------------------------------------

    def narrow(self, diff: DiffRows, symbols: Sequence[Symbol]) -> None:
        """Limits a diff to the function `only_function`, if it is set. With `all_folded`, folds the functions."""
        diff.narrow(self._shown_lines(symbols), list(_regions(symbols)) if self.all_folded else [])

    def reveal_in_diff(self, diff: DiffRows, line: int) -> tuple[int, bool]:
        """Unfolds a line of a diff. If the line is outside of `only_function`, shows the whole diff.

        Returns the row of the line, and whether it was outside.
        """
        outside = not diff.is_shown(line)
        if outside:
            self._show_all()
            diff.widen()
        row = diff.reveal(max(0, min(line, self.line_count - 1))) if self.line_count else 0
        return row, outside


def region_of(symbol: Symbol) -> TextFold:
    """Returns the region to fold for a function: all of its lines."""
    return TextFold(symbol.first, symbol.last)


def _regions(symbols: Iterable[Symbol]) -> Iterable[TextFold]:
    """Returns the regions to fold of the symbols that have several lines."""
    return (region_of(symbol) for symbol in symbols if symbol.last > symbol.first)
