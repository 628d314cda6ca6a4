"""The values of a run, page by page: outputs, eager's outputs, their difference, inputs, and difference maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from buddy.app.panes.outputs import difference_level, distribution_lines
from buddy.app.reports import formatting
from buddy.app.reports.value_pages import CELL, COLUMNS, ROWS, ValuePages, ViewedTensor, entries_of, role_of, value_text
from buddy.app.screens.modal import ListScreen
from buddy.app.session.requests import Requester
from buddy.app.session.session import Session
from buddy.app.widgets.background import start_worker
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cut_cells
from buddy.app.widgets.prompt import Prompt
from buddy.compiler.protocol import (
    DifferenceMap,
    FetchValues,
    ListValues,
    MapDifferences,
    OutputReport,
    Request,
    Which,
)

Answer = TypeVar("Answer")
_NAME = 12
_MAP_ROWS = 200


class ValueGrid(CursorView):
    """A table of values with a cursor on a cell, or a difference map with a cursor on a block."""

    def __init__(self, tell: Callable[[], object], want: Callable[[], object]) -> None:
        super().__init__()
        self._update_text, self._request_missing = tell, want
        self.side: Which = "output"
        self.pages = ValuePages()
        self.map: DifferenceMap | None = None
        self.worst = 0.0
        self.column, self.first = 0, 0

    # ---- content -------------------------------------------------------------------------------------------------

    def show(self, side: Which, pages: ValuePages, worst: float) -> None:
        self.side, self.pages, self.worst, self.map = side, pages, worst, None
        self.redraw_values()

    def go_home(self) -> None:
        """Move to the first value."""
        self.cursor, self.column, self.first = 0, 0, 0

    def show_map(self, found: DifferenceMap) -> None:
        self.map = found
        self.go_home()
        self.redraw_values()

    def redraw_values(self) -> None:
        """Redraw after values redraw_values."""
        self.column = max(0, min(self.column, self.columns - 1))
        self.first = min(self.first, self.column)
        self.rows_changed()
        self._update_text()

    @property
    def row_count(self) -> int:
        return len(self.map.blocks) if self.map is not None else self.pages.height

    @property
    def columns(self) -> int:
        """The number of columns."""
        if self.map is not None:
            return len(self.map.column_starts) - 1
        return self.pages.width

    @property
    def visible_columns(self) -> int:
        """The number of columns that fit on the screen."""
        room = max(self.width - _NAME - 2, CELL)
        return room if self.map is not None else room // CELL

    def head(self, width: int) -> list[Cells]:
        if self.map is not None:
            return [[(f"{'':{_NAME + 2}}one character per block, darker is worse; enter shows the values", "dim")]]
        names = (self.pages.column_name(column) for column in self._visible())
        return [[(f"{'':{_NAME + 2}}", "dim"), ("".join(f"{name:>{CELL - 1}} " for name in names), "dim")]]

    def _visible(self) -> range:
        return range(self.first, min(self.first + self.visible_columns, self.columns))

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        if self.map is not None:
            return [marker, *self._map_cells(self.map, row)]
        cells: Cells = [marker, (f"{self.pages.row_name(row)[-_NAME:]:>{_NAME}} ", "number")]
        for column in self._visible():
            value = self.pages.cell(row, column)
            here = row == self.cursor and column == self.column
            cells.append(
                (f"{value_text(value):>{CELL - 1}}", "match" if here else role_of(value, self.side, self.worst))
            )
            cells.append((" ", "text"))
        return cells

    def _map_cells(self, found: DifferenceMap, row: int) -> Cells:
        greatest = max((v for line in found.blocks for v in line if math.isfinite(v)), default=0.0) or 1.0
        levels = self.glyphs.levels
        cells: Cells = [(f"{found.row_starts[row]:>{_NAME}} ", "number")]
        for column in self._visible():
            level = difference_level(found.blocks[row][column] / greatest, len(levels) - 1)
            here = row == self.cursor and column == self.column
            cells.append((levels[level], "match" if here else "bad"))
        return cells

    # ---- moving --------------------------------------------------------------------------------------------------

    def move_to(self, row: int, *, tell: bool = True) -> None:
        super().move_to(row, tell=tell)
        self._request_missing()
        self._update_text()

    def move_across(self, by: int) -> None:
        """Move to another column, and scroll to it."""
        self.column = max(0, min(self.column + by, self.columns - 1))
        self.first = max(min(self.first, self.column), self.column - self.visible_columns + 1, 0)
        self._request_missing()
        self._update_text()
        self.rows_changed()

    def move_page_across(self, by: int) -> None:
        self.move_across(by * self.visible_columns)


class ValuesScreen(ListScreen[None]):
    """Shows the values of the latest run of a graph. `reports` are the reports of its outputs.

    With `as_map`, the difference map is shown first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c,f1,question_mark", "close", "Close", show=False, priority=True),
        Binding("l,right", "across(1)", show=False),
        Binding("h,left", "across(-1)", show=False),
        Binding("greater_than_sign", "page_across(1)", show=False),
        Binding("less_than_sign", "page_across(-1)", show=False),
        Binding("tab,d", "turn_side", show=False),
        Binding("n,right_square_bracket", "turn(1)", show=False),
        Binding("p,left_square_bracket", "turn(-1)", show=False),
        Binding("colon,s", "ask_slices", show=False),
        Binding("m", "toggle_map", show=False),
        Binding("enter", "enter_block", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(
        self, graph: int, reports: tuple[OutputReport, ...], session: Session, *, as_map: bool = False
    ) -> None:
        self._grid = ValueGrid(self._update_text, self._request_missing)
        super().__init__("Values", "", self._grid)
        self._graph, self._session, self._as_map = graph, session, as_map
        self._reports = {report.name: report for report in reports}
        self._entries: list[ViewedTensor] = []
        self._number = 0
        self._slices = ""
        self._problem = ""
        self._pages: dict[tuple[int, str, str], ValuePages] = {}
        self._line = ValueLine(self._detail_lines)

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="plot"):
            yield self._grid
            yield self._line
            yield Prompt()

    def on_mount(self) -> None:
        start_worker(self, "values", self._begin)

    def fit(self) -> None:
        """Give the box most of the screen, regardless of its content."""

    async def _begin(self) -> None:
        found = await self._request(ListValues(0, self._graph))
        self._entries = entries_of(found.tensors) if found else []
        if self._entries:
            self._show()
            if self._as_map:
                self.action_toggle_map()
        elif found:
            self._problem = "the graph has neither inputs nor outputs"
        self._update_text()

    async def _request(self, frame: Request[Answer]) -> Answer | None:
        """The engine's answer, or `None` with an error shown under the table."""
        self._problem = ""
        return await Requester(self._session, self._tell_problem).request(frame)

    def _tell_problem(self, problem: str) -> None:
        self._problem = problem
        self._update_text()

    # ---- content -------------------------------------------------------------------------------------------------

    @property
    def entry(self) -> ViewedTensor:
        return self._entries[self._number]

    def _show(self, side: Which | None = None) -> None:
        """Show one side of the entry with the current slices, from the cached pages."""
        sides = self.entry.sides
        side = side or (self._grid.side if self._grid.side in sides else sides[0])
        report = self._reports.get(self.entry.tensor.name)
        pages = self._pages.setdefault((self._number, side, self._slices), ValuePages(*self._known_size()))
        self._grid.show(side, pages, report.max_abs if report else 0.0)
        self._request_missing()
        self._update_titles()

    def _known_size(self) -> tuple[int, int]:
        """The height and width of the sliced tensor, if known from another side, else zeros."""
        known = (self._pages.get((self._number, side, self._slices)) for side in self.entry.sides)
        return next(((pages.height, pages.width) for pages in known if pages and pages.known), (0, 0))

    def _update_titles(self) -> None:
        box, side = self.query_one("#box"), "difference map" if self._grid.map is not None else self._grid.side
        several = f" ({self._number + 1} of {len(self._entries)})"
        box.border_title = f"{side} of {self.entry.title}{f'[{self._slices}]' if self._slices else ''}{several}"
        keys = ["tab side", "n p tensors", ": slice", "m map", "h l < > columns", "y copies", "q closes"]
        box.border_subtitle = formatting.join_fitting(keys, ", ", max(self.app.size.width - 8, 20))

    def _request_missing(self) -> None:
        """Request the values on the screen that are not cached."""
        if self._entries and self._grid.map is None:
            start_worker(self, "values", self._fetch)

    async def _fetch(self) -> None:
        grid, pages = self._grid, self._grid.pages
        places = pages.missing(
            max(grid.first_row, grid.cursor - grid.page + 1), grid.page, grid.first, grid.visible_columns
        )
        for row, column in places:
            found = await self._request(self._frame(row, column))
            if found is None:
                return
            pages.take(found)
            grid.redraw_values()

    def _frame(self, row: int, column: int) -> FetchValues:
        name, side = self.entry.tensor.name, self._grid.side
        return FetchValues(0, self._graph, side, name, self._slices, row, ROWS, column, COLUMNS)

    # ---- lines under the table -----------------------------------------------------------------------------------

    def _update_text(self) -> None:
        self._line.refresh()

    def _detail_lines(self, width: int) -> list[Cells]:
        """The value under the cursor, and the distribution of the tensor's values."""
        if self._problem:
            return [[(f" {self._problem}", "warn")]]
        if not self._entries:
            return [[(" reading", "dim")]]
        report = self._reports.get(self.entry.tensor.name)
        lines = [self._under_cursor()]
        lines += distribution_lines(report, self._grid.glyphs) if report and self._grid.side != "input" else []
        return [cut_cells(line, width) for line in lines]

    def _under_cursor(self) -> Cells:
        grid = self._grid
        if grid.map is not None and grid.map.blocks:
            found, row, column = grid.map, grid.cursor, grid.column
            where = f"rows {_span(found.row_starts, row)}, columns {_span(found.column_starts, column)}"
            return [(f" {where}  ", "dim"), (f"max|{grid.glyphs.delta}| {found.blocks[row][column]:.6g}", "accent")]
        value = grid.pages.cell(grid.cursor, grid.column) if grid.pages.width and grid.pages.height else None
        if value is None:
            return [(" no differences" if grid.map is not None else "", "dim")]
        name = ",".join(
            part for part in (grid.pages.row_name(grid.cursor), grid.pages.column_name(grid.column)) if part
        )
        return [(f" [{name}]  ", "dim"), (repr(value) if not isinstance(value, str) else value, "accent")]

    # ---- keys ----------------------------------------------------------------------------------------------------

    def action_close(self) -> None:
        """Close the input line if it is open, else the screen."""
        prompt = self.query_one(Prompt)
        if prompt.display:
            prompt.action_cancel()
        else:
            self.dismiss(None)

    def action_across(self, by: int) -> None:
        self._grid.move_across(by)

    def action_page_across(self, by: int) -> None:
        self._grid.move_page_across(by)

    def action_turn_side(self) -> None:
        if self._entries:
            sides = self.entry.sides
            place = sides.index(self._grid.side) if self._grid.side in sides else -1
            self._show(sides[(place + 1) % len(sides)])

    def action_turn(self, by: int) -> None:
        if self._entries:
            self._number = (self._number + by) % len(self._entries)
            self._slices = ""
            self._grid.go_home()
            self._show()

    def action_ask_slices(self) -> None:
        if self._entries:
            self.query_one(Prompt).ask("slice", self._slices, self._slice)

    def _slice(self, text: str) -> None:
        self._slices = text.strip().removeprefix("[").removesuffix("]").strip()
        self._grid.go_home()
        self._show()

    def action_toggle_map(self) -> None:
        if not self._entries:
            return
        if self._grid.map is not None:
            self._show()
        elif "difference" in self.entry.sides:
            start_worker(self, "values", self._fetch_map)
        else:
            self._problem = "only outputs can be compared with eager"
            self._update_text()

    async def _fetch_map(self) -> None:
        name, grid = self.entry.tensor.name, self._grid
        columns = max(grid.width - _NAME - 2, CELL)
        rows = min(max(grid.size.height - 1, 4), _MAP_ROWS)
        found = await self._request(MapDifferences(0, self._graph, name, self._slices, rows, columns))
        if found is not None:
            grid.show_map(found)
            self._update_titles()

    def action_enter_block(self) -> None:
        """Go from a block of the map to its values."""
        grid, found = self._grid, self._grid.map
        if found is None or not found.blocks:
            return
        row, column = found.row_starts[grid.cursor], found.column_starts[grid.column]
        self._show("difference")
        if not grid.pages.known:
            grid.pages.height, grid.pages.width = found.row_starts[-1], found.column_starts[-1]
        grid.rows_changed()
        grid.center(row)
        grid.move_across(column - grid.column)

    def action_copy(self) -> None:
        """Copy the cached values of the row."""
        if self._grid.map is None and self._grid.row_count:
            self.app.copy_to_clipboard("\t".join(map(str, self._grid.pages.row_values(self._grid.cursor))))


class ValueLine(CursorView, can_focus=False):
    """The two lines under the table."""

    def __init__(self, lines: Callable[[int], list[Cells]]) -> None:
        super().__init__()
        self._lines = lines

    @property
    def row_count(self) -> int:
        return 2

    def row_cells(self, row: int, width: int) -> Cells:
        lines = self._lines(width)
        return lines[row] if row < len(lines) else []

    def background(self, row: int) -> str:
        return ""


def _span(starts: tuple[int, ...], place: int) -> str:
    first, last = starts[place], starts[place + 1] - 1
    return str(first) if first == last else f"{first}:{last + 1}"
