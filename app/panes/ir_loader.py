"""Loads the chosen stage of the IR pane: its generic form, its diff or its folds, and the lines on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_comparison import IrComparison
from buddy.app.panes.ir_document import NO_CONTENT, IrContent, IrDocument, IrView
from buddy.app.panes.ir_folds import IrFolds
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.differences import DiffRows
from buddy.app.reports.text.folds import Folds
from buddy.app.session.stages import PAGE_LINES, Key, StageRow
from buddy.compiler.protocol import Stage


class LoadedView(IrView, Protocol):
    """A view whose text the loader replaces."""

    @property
    def page(self) -> int:
        """The number of rows on the screen."""

    def draw_stage(self, cursor: int, top: int) -> None:
        """Draw another text of the document, with the cursor on row `cursor`, from row `top` on."""


class IrRows(NamedTuple):
    """The rows of a stage that will be shown: lines that `folds` does not hide, or rows of the diff from `other`."""

    stage: Stage
    diff: DiffRows | None
    other: Stage | None
    folds: Folds

    def lines_on(self, top: int, page: int) -> list[tuple[str, int]]:
        """The lines, each with the name of its text, to load before `page` rows from row `top` on can be drawn."""
        stage, diff, other, folds = self
        if diff is None or other is None:
            numbers = [folds.line_of(row) for row in range(top, min(top + page, folds.count))] or [0]
            # Loading a line loads its page, so one line of each page is enough.
            return [(stage.text, number) for number in {number // PAGE_LINES: number for number in numbers}.values()]
        to_load: dict[tuple[str, int], None] = {}
        for number in range(top, min(top + page, diff.count)):
            row = diff.row(number)
            lines = [(stage.text, row.after), (other.text, row.before)]
            if row.kind in ("removed", "added"):
                # The words that differ from the partner line are highlighted.
                lines = [(stage.text, max(row.after, row.partner)), (other.text, max(row.before, row.partner))]
            to_load |= dict.fromkeys((text, line) for text, line in lines if line >= 0)
        return list(to_load)

    def cursor_and_top(self, line: int, offset: int, page: int) -> tuple[int, int]:
        """The row of the cursor and the first row on the screen, so that `line` is `offset` rows below the first row.

        If the line is folded in a diff, the cursor is on the next change instead.
        """
        line = max(0, min(line, self.stage.lines - 1))
        if self.diff is None:
            return self.folds.row_of(line), max(0, self.folds.row_of(line) - offset)
        cursor = self.diff.row_of(line) if self.diff.count and line < self.stage.lines else 0
        if self.diff.changes and self.diff.row(cursor).kind == "fold":
            cursor = self.diff.change_after(cursor) or 0
            return cursor, _first_row_around(cursor, page)
        return cursor, max(0, cursor - offset)


class IrLoader:
    """Loads stages in the background, and remembers the position of the cursor in each of them."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: LoadedView,
        document: IrDocument,
        stages: IrStages,
        comparison: IrComparison,
        folds: IrFolds,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._comparison, self._folds = stages, comparison, folds
        # The key of the stage that is drawn.
        self._drawn_key: Key | None = None
        self._requested: tuple[Key, IrContent] | None = None
        # For each stage: the line of the cursor, and its distance in rows from the first row on the screen.
        self._positions: dict[Key, tuple[int, int]] = {}

    # ---- positions -----------------------------------------------------------------------------------------------

    def remember_position(self) -> None:
        """Remember the position of the cursor in the chosen stage."""
        if self._stages.key is not None:
            self._positions[self._stages.key] = (self._view.line_number, self._view.cursor - self._view.first_row)

    def set_line(self, key: Key, line: int) -> None:
        """Set the line at which the stage with that key is shown next, and force it to be loaded again."""
        self._positions[key] = (line, self._view.page // 2)
        self._drawn_key, self._document.content = None, NO_CONTENT

    def clear(self) -> None:
        """Forget the positions in the stages of the previous graph."""
        self._positions.clear()
        self._drawn_key = self._requested = None

    # ---- loading -------------------------------------------------------------------------------------------------

    def load(self, row: StageRow) -> bool:
        """Start to load a stage, unless it is shown or being loaded.

        Returns false if its generic form must be printed first; the view then opens the stage again.
        """
        texts_to_print = self._stages.texts_to_print(row.stage, self._comparison.other_of(row))
        if texts_to_print:
            self._context.jobs.begin("ir-form", self._print_generic, texts_to_print)
            return False
        content = self._comparison.content_of(row)
        if content != self._document.content and (row.key, content) != self._requested:
            self._requested = (row.key, content)
            self._context.jobs.begin("ir-load", self._load, row)
        return True

    async def _print_generic(self, texts: Sequence[str]) -> None:
        await self._stages.print_generic(texts)
        self._view.open_stage()

    async def _load(self, row: StageRow) -> None:
        stage, content, other = row.stage, self._comparison.content_of(row), self._comparison.other_of(row)
        try:
            diff = await self._comparison.compare(stage, other)
            if diff is not None and content.text != content.other:
                await self._folds.narrow(diff, stage)
            folds = await self._folds.folds_of(stage) if diff is None else Folds(stage.lines)
            rows = IrRows(stage, diff, other, folds)
            cursor, top = await self._cursor_and_top(row.key, rows)
            if await self._load_lines(rows, top) and self._stages.key == row.key:
                self._document.show(*rows)
                self._document.content = content
                self._drawn_key = row.key
                self._view.draw_stage(cursor, top)
        finally:
            if self._requested == (row.key, content):
                self._requested = None
        if self._stages.key == row.key and self._comparison.content_of(row) != content:
            self._view.open_stage()

    async def _cursor_and_top(self, key: Key, rows: IrRows) -> tuple[int, int]:
        """The row of the cursor and the first row on the screen.

        The cursor has its last position in the stage. If the stage was not shown before, the cursor is on the main line
        of the selected node; in a diff, on the first line or, if that is folded, on the first change.
        """
        view, context = self._view, self._context
        line, offset = self._positions.get(key, (-1, 0))
        if key == self._drawn_key:
            line, offset = view.line_number, view.cursor - view.first_row
        if line < 0 and rows.diff is None:
            node_line = await context.queries.find_main_line(rows.stage.text, context.selection.node)
            row = rows.folds.row_of(max(0, node_line))
            return row, _first_row_around(row, view.page)
        return rows.cursor_and_top(line, offset, view.page)

    async def _load_lines(self, rows: IrRows, top: int) -> bool:
        """Load the lines of the rows on the screen. Returns whether all requests have succeeded."""
        queries = self._context.queries
        return all([await queries.load_lines(text, line, 1) for text, line in rows.lines_on(top, self._view.page)])


def _first_row_around(row: int, page: int) -> int:
    """The first row on the screen that shows `row` in the middle; 0 if the first page shows it."""
    return 0 if row < page else row - page // 2
