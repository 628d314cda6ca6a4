"""The values of a run, fetched block by block: inputs, outputs, eager's outputs, differences, and difference maps.

A side is one kind of values of a tensor (`ValueKind`): an output has the sides "output", "eager" and "difference". A
difference map has a character for each block of values: the darker, the larger the greatest difference in the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from buddy.app.panes.outputs import difference_level, distribution_lines
from buddy.app.reports import formatting
from buddy.app.reports.value_pages import (
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    CELL_WIDTH,
    ValuePages,
    ViewedTensor,
    value_role,
    value_text,
    viewed_tensors,
)
from buddy.app.screens.modal import ListScreen
from buddy.app.session.requests import Requester
from buddy.app.session.session import Session
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cut_cells
from buddy.app.widgets.prompt import Prompt
from buddy.app.widgets.textual_helpers import start_worker
from buddy.compiler.protocol import (
    DifferenceMap,
    FetchValues,
    ListValues,
    MapDifferences,
    OutputReport,
    Request,
    ValueKind,
)

Answer = TypeVar("Answer")
# The width of a row name, in cells. A marker comes before it, a space after it.
_NAME_WIDTH = 12
# The maximum number of rows of a difference map.
_MAX_MAP_ROWS = 200


class ValueGrid(CursorView):
    """A table of values with a cursor on a value, or a difference map with a cursor on a block.

    After the cursor has moved, calls `request_missing` to fetch the values on the screen, and `update_text`.
    """

    searchable = False  # Only the values on the screen are in this process.

    def __init__(self, update_text: Callable[[], object], request_missing: Callable[[], object]) -> None:
        super().__init__()
        self._update_text, self._request_missing = update_text, request_missing
        self.side: ValueKind = "output"
        self.pages = ValuePages()
        self.map: DifferenceMap | None = None
        # The largest difference of the tensor.
        self.max_error = 0.0
        # The column of the cursor, and the first column on the screen.
        self.column, self.first_column = 0, 0

    # ---- content -------------------------------------------------------------------------------------------------

    def show(self, side: ValueKind, pages: ValuePages, max_error: float) -> None:
        """Shows the values of a side of a tensor instead of the current values or map."""
        self.side, self.pages, self.max_error, self.map = side, pages, max_error, None
        self.redraw_values()

    def go_home(self) -> None:
        """Sets the cursor and the scroll position to the first value, without drawing."""
        self.cursor, self.column, self.first_column = 0, 0, 0

    def show_map(self, difference_map: DifferenceMap) -> None:
        self.map = difference_map
        self.go_home()
        self.redraw_values()

    def redraw_values(self) -> None:
        """Updates the layout and draws again, after values have arrived or another tensor or map is shown."""
        self.column = max(0, min(self.column, self.columns - 1))
        self.first_column = min(self.first_column, self.column)
        self.rows_changed()
        self._update_text()

    @property
    def row_count(self) -> int:
        return len(self.map.blocks) if self.map is not None else self.pages.height

    @property
    def columns(self) -> int:
        """The number of columns of values, or of blocks of the map."""
        if self.map is not None:
            return len(self.map.column_starts) - 1
        return self.pages.width

    @property
    def visible_columns(self) -> int:
        """The number of columns that fit on the screen."""
        width = max(self.width - _NAME_WIDTH - 2, CELL_WIDTH)
        return width if self.map is not None else width // CELL_WIDTH

    def head(self, width: int) -> list[Cells]:
        if self.map is not None:
            legend = "one character per block, darker is worse; enter shows the values"
            return [[(f"{'':{_NAME_WIDTH + 2}}{legend}", "dim")]]
        names = [f"{self.pages.column_name(column):>{CELL_WIDTH - 1}} " for column in self._visible_range()]
        return [[(f"{'':{_NAME_WIDTH + 2}}", "dim"), ("".join(names), "dim")]]

    def _visible_range(self) -> range:
        return range(self.first_column, min(self.first_column + self.visible_columns, self.columns))

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        if self.map is not None:
            return [marker, *self._map_cells(self.map, row)]
        cells: Cells = [marker, (f"{self.pages.row_name(row)[-_NAME_WIDTH:]:>{_NAME_WIDTH}} ", "number")]
        for column in self._visible_range():
            value = self.pages.cell(row, column)
            at_cursor = row == self.cursor and column == self.column
            role = "match" if at_cursor else value_role(value, self.side, self.max_error)
            cells += [(f"{value_text(value):>{CELL_WIDTH - 1}}", role), (" ", "text")]
        return cells

    def _map_cells(self, difference_map: DifferenceMap, row: int) -> Cells:
        """The name of a row of the difference map, and a character for each visible block."""
        blocks, levels = difference_map.blocks, self.glyphs.levels
        finite_differences = [block for block_row in blocks for block in block_row if math.isfinite(block)]
        greatest = max(finite_differences, default=0.0) or 1.0
        cells: Cells = [(f"{difference_map.row_starts[row]:>{_NAME_WIDTH}} ", "number")]
        for column in self._visible_range():
            level = difference_level(blocks[row][column] / greatest, len(levels) - 1)
            at_cursor = row == self.cursor and column == self.column
            cells.append((levels[level], "match" if at_cursor else "bad"))
        return cells

    # ---- moving --------------------------------------------------------------------------------------------------

    def move_to(self, row: int, *, notify: bool = True) -> None:
        super().move_to(row, notify=notify)
        self._request_missing()
        self._update_text()

    def move_across(self, by: int) -> None:
        """Moves the cursor by `by` columns, and scrolls to its column."""
        self.column = max(0, min(self.column + by, self.columns - 1))
        leftmost = max(self.column - self.visible_columns + 1, 0)
        self.first_column = max(min(self.first_column, self.column), leftmost)
        self._request_missing()
        self._update_text()
        self.rows_changed()

    def move_page_across(self, by: int) -> None:
        """Moves the cursor by `by` screens to the right."""
        self.move_across(by * self.visible_columns)


class ValuesScreen(ListScreen[None]):
    """Shows the values of the latest run of graph number `graph`. `reports` are the reports of its outputs.

    With `as_map`, the screen opens with the difference map of the first output.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l,right", "across(1)", show=False),
        Binding("h,left", "across(-1)", show=False),
        Binding("greater_than_sign", "page_across(1)", show=False),
        Binding("less_than_sign", "page_across(-1)", show=False),
        Binding("tab,d", "next_side", show=False),
        Binding("n,right_square_bracket", "next_tensor(1)", show=False),
        Binding("p,left_square_bracket", "next_tensor(-1)", show=False),
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
        self._tensors: list[ViewedTensor] = []
        self._tensor_index = 0
        # The slice of the current tensor as the user has typed it, without brackets; "" for the whole tensor.
        self._slices = ""
        self._problem = ""
        # The cached values, by index of the tensor, side and slices.
        self._pages: dict[tuple[int, str, str], ValuePages] = {}
        self._details = ValueDetails(self._detail_lines)

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="plot"):
            yield self._grid
            yield self._details
            yield Prompt()

    def on_mount(self) -> None:
        start_worker(self, "values", self._list_tensors)

    def fit(self) -> None:
        """Does nothing: the style of the box gives it most of the screen, regardless of its content."""

    async def _list_tensors(self) -> None:
        """Requests the list of tensors, and shows the values of the first one."""
        answer = await self._request(ListValues(0, self._graph))
        self._tensors = viewed_tensors(answer.tensors) if answer else []
        if self._tensors:
            self._show()
            if self._as_map:
                self.action_toggle_map()
        elif answer:
            self._problem = "the graph has neither inputs nor outputs"
        self._update_text()

    async def _request(self, frame: Request[Answer]) -> Answer | None:
        """Returns the engine's answer. If the request fails, shows the error under the table and returns `None`."""
        self._problem = ""
        return await Requester(self._session, self._show_problem).request(frame)

    def _show_problem(self, problem: str) -> None:
        self._problem = problem
        self._update_text()

    # ---- content -------------------------------------------------------------------------------------------------

    @property
    def current_tensor(self) -> ViewedTensor:
        return self._tensors[self._tensor_index]

    def _show(self, side: ValueKind | None = None) -> None:
        """Shows a side (`None`: the last shown or else the first one) of the current tensor with the current slices."""
        sides = self.current_tensor.sides
        side = side or (self._grid.side if self._grid.side in sides else sides[0])
        report = self._reports.get(self.current_tensor.tensor.name)
        pages = self._pages.setdefault((self._tensor_index, side, self._slices), ValuePages(*self._known_size()))
        self._grid.show(side, pages, report.max_abs if report else 0.0)
        self._request_missing()
        self._update_titles()

    def _known_size(self) -> tuple[int, int]:
        """The height and width of the sliced tensor if pages of any side are cached, else (0, 0)."""
        pages_of_sides = (
            self._pages.get((self._tensor_index, side, self._slices)) for side in self.current_tensor.sides
        )
        return next(((pages.height, pages.width) for pages in pages_of_sides if pages and pages.has_size), (0, 0))

    def _update_titles(self) -> None:
        """Shows the side, the tensor and the slices in the title, and the keys that fit at the bottom."""
        box = self.query_one("#box")
        # A tensor may be named `output`. The side "output" is called "compiled", so that the title is not
        # `output: output`.
        side_title = "compiled" if self._grid.side == "output" else self._grid.side
        side = "difference map" if self._grid.map is not None else side_title
        position = f" ({self._tensor_index + 1} of {len(self._tensors)})"
        slices = f"[{self._slices}]" if self._slices else ""
        box.border_title = f"{side}: {self.current_tensor.title}{slices}{position}"
        keys = ["tab side", "n p tensors", ": slice", "m map", "h l < > columns", "y copies", "q closes"]
        box.border_subtitle = formatting.join_fitting(keys, ", ", max(self.app.size.width - 8, 20))

    def _request_missing(self) -> None:
        """Requests the values on the screen that are not cached."""
        if self._tensors and self._grid.map is None:
            start_worker(self, "values", self._fetch_blocks)

    async def _fetch_blocks(self) -> None:
        """Requests the blocks of values on the screen that are not cached, and draws each when it arrives."""
        grid, pages = self._grid, self._grid.pages
        first_row = max(grid.first_row, grid.cursor - grid.page + 1)
        for row, column in pages.missing_blocks(first_row, grid.page, grid.first_column, grid.visible_columns):
            values = await self._request(self._block_request(row, column))
            if values is None:
                return
            pages.add(values)
            grid.redraw_values()

    def _block_request(self, row: int, column: int) -> FetchValues:
        """The request for the block of values that starts at `row` and `column`."""
        name, side = self.current_tensor.tensor.name, self._grid.side
        return FetchValues(0, self._graph, side, name, self._slices, row, BLOCK_ROWS, column, BLOCK_COLUMNS)

    # ---- lines under the table -----------------------------------------------------------------------------------

    def _update_text(self) -> None:
        self._details.refresh()

    def _detail_lines(self, width: int) -> list[Cells]:
        """The value under the cursor, and the distribution of the tensor's values."""
        if self._problem:
            return [[(f" {self._problem}", "warn")]]
        if not self._tensors:
            return [[(" reading", "dim")]]
        report = self._reports.get(self.current_tensor.tensor.name)
        lines = [self._cursor_line()]
        lines += distribution_lines(report, self._grid.glyphs) if report and self._grid.side != "input" else []
        return [cut_cells(line, width) for line in lines]

    def _cursor_line(self) -> Cells:
        """The index and the value under the cursor; in a map, the range of the block and its largest difference."""
        grid = self._grid
        if grid.map is not None and grid.map.blocks:
            rows = _block_range(grid.map.row_starts, grid.cursor)
            columns = _block_range(grid.map.column_starts, grid.column)
            error = f"max|{grid.glyphs.delta}| {grid.map.blocks[grid.cursor][grid.column]:.6g}"
            return [(f" rows {rows}, columns {columns}  ", "dim"), (error, "accent")]
        value = grid.pages.cell(grid.cursor, grid.column) if grid.pages.width and grid.pages.height else None
        if value is None:
            return [(" no differences" if grid.map is not None else "", "dim")]
        names = (grid.pages.row_name(grid.cursor), grid.pages.column_name(grid.column))
        index = ",".join(filter(None, names))
        return [(f" [{index}]  ", "dim"), (value if isinstance(value, str) else repr(value), "accent")]

    # ---- keys ----------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        """Shows what to use instead of a search: this process has only the values on the screen."""
        self._show_problem("values cannot be searched: m shows the largest differences, : selects a slice")

    def action_across(self, by: int) -> None:
        self._grid.move_across(by)

    def action_page_across(self, by: int) -> None:
        self._grid.move_page_across(by)

    def action_next_side(self) -> None:
        if self._tensors:
            sides = self.current_tensor.sides
            index = sides.index(self._grid.side) if self._grid.side in sides else -1
            self._show(sides[(index + 1) % len(sides)])

    def action_next_tensor(self, by: int) -> None:
        if self._tensors:
            self._tensor_index = (self._tensor_index + by) % len(self._tensors)
            self._slices = ""
            self._grid.go_home()
            self._show()

    def action_ask_slices(self) -> None:
        if self._tensors:
            self.query_one(Prompt).ask("slice", self._slices, self._use_slices)

    def _use_slices(self, text: str) -> None:
        self._slices = text.strip().removeprefix("[").removesuffix("]").strip()
        self._grid.go_home()
        self._show()

    def action_toggle_map(self) -> None:
        if not self._tensors:
            return
        if self._grid.map is not None:
            self._show()
        elif "difference" in self.current_tensor.sides:
            start_worker(self, "values", self._fetch_map)
        else:
            self._problem = "only outputs can be compared with eager"
            self._update_text()

    async def _fetch_map(self) -> None:
        """Requests the difference map of the current tensor, in a size that fits the screen, and shows it."""
        name, grid = self.current_tensor.tensor.name, self._grid
        columns = max(grid.width - _NAME_WIDTH - 2, CELL_WIDTH)
        rows = min(max(grid.size.height - 1, 4), _MAX_MAP_ROWS)
        difference_map = await self._request(MapDifferences(0, self._graph, name, self._slices, rows, columns))
        if difference_map is not None:
            grid.show_map(difference_map)
            self._update_titles()

    def action_enter_block(self) -> None:
        """Shows the differences at the block under the cursor of the map."""
        grid, difference_map = self._grid, self._grid.map
        if difference_map is None or not difference_map.blocks:
            return
        row, column = difference_map.row_starts[grid.cursor], difference_map.column_starts[grid.column]
        self._show("difference")
        if not grid.pages.has_size:
            # No values of this side have arrived yet. The last starts of the map are the size of the tensor.
            grid.pages.height, grid.pages.width = difference_map.row_starts[-1], difference_map.column_starts[-1]
        grid.rows_changed()
        grid.center(row)
        grid.move_across(column - grid.column)

    def action_copy(self) -> None:
        """Copies the cached values of the cursor's row, separated by tabs."""
        if self._grid.map is None and self._grid.row_count:
            self.app.copy_to_clipboard("\t".join(map(str, self._grid.pages.row_values(self._grid.cursor))))


class ValueDetails(CursorView, can_focus=False):
    """The two lines under the table. `lines_of` returns them for a width."""

    def __init__(self, lines_of: Callable[[int], list[Cells]]) -> None:
        super().__init__()
        self._lines_of = lines_of

    @property
    def row_count(self) -> int:
        return 2

    def row_cells(self, row: int, width: int) -> Cells:
        lines = self._lines_of(width)
        return lines[row] if row < len(lines) else []

    def background(self, row: int) -> str:
        return ""


def _block_range(starts: tuple[int, ...], block: int) -> str:
    """Returns the rows or columns of a block: `3` for a single one, `4:8` for several.

    `starts` are the first rows or columns of all blocks, and, last, the size of the tensor.
    """
    first, end = starts[block], starts[block + 1]
    return str(first) if end == first + 1 else f"{first}:{end}"
