"""The base classes of panes, and the columns of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.reports import formatting
from buddy.app.session.line_cache import PAGE_LINES
from buddy.app.session.state import State, Topic, keep_newest
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cell, Cells
from buddy.app.workspace.workspace import Workspace

Row = TypeVar("Row")
# The number of rows for which a pane keeps the marks that it has drawn: more than a screen has.
MAX_DRAWN_MARKS = 1000


class Pane(CursorView):
    """A pane of the workbench. It draws the state; `update_from` is called when the state has changed."""

    pane_id: ClassVar[PaneId]

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(id=self.pane_id)
        self.context = context

    @property
    def state(self) -> State:
        return self.context.state

    @property
    def workspace(self) -> Workspace:
        return self.context.workspace

    def update_from(self, topics: frozenset[Topic]) -> None:
        """Update the pane after the parts of the state that `topics` names have changed."""

    def take_key(self, key: str) -> bool:
        """Handle a key before the actions do. Returns whether it was handled."""
        return False

    def say(self, message: str) -> None:
        """Show a message for a few seconds."""
        self.context.say(message)

    def after_move(self) -> None:
        # The application handles it: passing it through the queues of all parents takes a millisecond.
        self.app.post_message(self.Moved(self, self.cursor))

    # ---- search --------------------------------------------------------------------------------------------------

    def ask_search(self) -> None:
        """Ask for a pattern, and show its matches while the user types."""
        self.search.ask(self.context.dialogs.prompt)

    def next_match(self) -> None:
        self.search.step(1)

    def previous_match(self) -> None:
        self.search.step(-1)

    def end_search(self) -> None:
        self.search.end()

    def report_search(self, text: str) -> None:
        self.say(text)

    # ---- the selected node ---------------------------------------------------------------------------------------

    def mark_node(self, before: str) -> None:
        """Update the marks of rows, after the selection has changed from the node `before` to another node."""

    def show_node(self, stable: str) -> None:
        """Move the cursor to the row of a node, and scroll to it."""

    def follow_selection(self) -> object:
        """Move the cursor to the selected node. Called when the cursor of another pane has stayed on the node."""

    # ---- copying -------------------------------------------------------------------------------------------------

    def text_to_copy(self) -> str:
        """The text that the copy key copies."""
        return ""

    def copy(self) -> None:
        self.context.dialogs.copy(self.text_to_copy())

    def extend_down(self) -> None:
        """Select one more row below, or one less above."""
        self.extend_selection(self.cursor + 1)

    def extend_up(self) -> None:
        """Select one more row above, or one less below."""
        self.extend_selection(self.cursor - 1)

    async def copy_lines(self, lines: Sequence[tuple[str, int]], what: str = "") -> None:
        """Copy lines, each given by the name of its text and its number, after those that are missing are loaded."""
        cache = self.context.session.cache
        for text, number in {(text, number // PAGE_LINES): (text, number) for text, number in lines}.values():
            if not await self.context.queries.load_lines(text, number, 1):
                return
        found = [cache.get(text, number) for text, number in lines]
        self.context.dialogs.copy("\n".join(line.text if line is not None else "" for line in found), what)


class RowMark(NamedTuple):
    """Whether a row comes from the selected node, and whether it comes from a node of the linked Python line."""

    is_selected: bool = False
    is_linked: bool = False


class LinkedPane(Pane):
    """A pane whose rows come from nodes. It draws the rows of the linked Python line on another background."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        # The marks of rows when they were drawn last.
        self._drawn_marks: dict[int, RowMark] = {}

    def mark_of(self, row: int) -> RowMark:
        raise NotImplementedError

    def refresh_marks(self) -> None:
        """Draw the rows on the screen again whose marks have changed."""
        self.refresh_rows([row for row in self.rows_on_screen() if self.mark_of(row) != self._drawn_marks.get(row)])

    def background(self, row: int) -> str:
        mark = self._drawn_marks[row] = self.mark_of(row)
        keep_newest(self._drawn_marks, MAX_DRAWN_MARKS)
        return super().background(row) or ("linked-line" if mark.is_linked else "")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table, shown if the pane has at least `min_pane_width` cells. Width 0 means the remaining width.

    With `right`, its cells are right-aligned. With `keeps_end`, the start of a text that is too long is left out.

    Rows are sorted by `key`, which returns `None` for a row without a value; without `key`, by the text of the cells,
    whose digits count as numbers. The first sort of a right-aligned column starts with the greatest value, unless
    `rises` is set.
    """

    title: str
    width: int
    cell: Callable[[Row], Cell]
    min_pane_width: int = 0
    right: bool = False
    key: Callable[[Row], Any] | None = None
    rises: bool = False
    keeps_end: bool = False

    @property
    def name(self) -> str:
        """The title without the mark of measurements that are out of date."""
        return self.title.rstrip("?")

    def sort_key(self, row: Row) -> Any:
        """The value by which a row is sorted; `None` without one. NaN is the greatest number."""
        if self.key is None:
            return _natural_key(self.cell(row)[0])
        value = self.key(row)
        return math.inf if isinstance(value, float) and math.isnan(value) else value


def _natural_key(text: str) -> list[tuple[int, str]] | None:
    """Orders texts by their letters in lower case, and by the values of their numbers; `None` for an empty text."""
    pieces = re.split(r"([0-9]+)", text.strip().lower())
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces if piece] or None


class ColumnSort(Generic[Row]):
    """The column that is chosen in the head of a table, `chosen`, and the column by which its rows are sorted, `by`.

    Both are names of columns, "" for none. The columns are those that are visible now.
    """

    def __init__(self) -> None:
        self.chosen = self.by = ""
        self.descending = False

    def choose(self, columns: Sequence[Column[Row]], by: int) -> None:
        """Choose the column `by` columns to the right of the chosen one. At first, none is chosen."""
        names = [column.name for column in columns if column.name]
        index = names.index(self.chosen) + by if self.chosen in names else 0
        self.chosen = names[max(0, min(index, len(names) - 1))] if names else ""

    def sort_by(self, columns: Sequence[Column[Row]], name: str) -> None:
        """Sort by a column; if the rows are sorted by it, reverse them, and then go back to their initial order."""
        column = next((column for column in columns if column.name == name), None)
        if column is None:
            return
        starts_descending = column.right and not column.rises
        if self.by != name:
            self.chosen, self.by, self.descending = name, name, starts_descending
        elif self.descending == starts_descending:
            self.descending = not self.descending
        else:
            self.by = ""

    def sorted(self, rows: Iterable[Row], columns: Sequence[Column[Row]]) -> list[Row]:
        """The rows in the chosen order. Rows without a value come last."""
        column = next((column for column in columns if column.name == self.by), None)
        if column is None or not self.by:
            return list(rows)
        keyed = [(column.sort_key(row), row) for row in rows]
        valued = [pair for pair in keyed if pair[0] is not None]
        valued.sort(key=lambda pair: pair[0], reverse=self.descending)
        return [row for _, row in (*valued, *(pair for pair in keyed if pair[0] is None))]

    def title_cell(self, column: Column[Row], width: int, glyphs: formatting.Glyphs) -> Cell:
        """The title of a column, with an arrow if the rows are sorted by it. That of the chosen one is highlighted."""
        is_sorted = bool(column.name) and column.name == self.by
        arrow = (glyphs.descending if self.descending else glyphs.ascending) if is_sorted else ""
        title = formatting.clip(column.title, width - len(arrow), glyphs) + arrow
        role = "title" if column.name and column.name == self.chosen else "dim"
        return (_align(title, width, column, glyphs), role)


def columns_at(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """The columns shown in a pane of `width` cells."""
    return [column for column in columns if column.min_pane_width <= width]


def widths_at(columns: Sequence[Column[Row]], width: int) -> list[int]:
    """The widths of the columns. Columns of width 0 share the remaining cells; one cell separates columns."""
    fixed_cells = sum(column.width for column in columns) + max(len(columns) - 1, 0)
    flexible_columns = sum(1 for column in columns if not column.width) or 1
    share, remainder = divmod(max(width - fixed_cells, 0), flexible_columns)
    widths = []
    for column in columns:
        widths.append(column.width or share + remainder)
        # The first flexible column gets the remainder.
        remainder = remainder if column.width else 0
    return widths


def table_row(columns: Sequence[Column[Row]], row: Row, width: int, glyphs: formatting.Glyphs) -> Cells:
    """A row of the table as cells."""
    cells: Cells = []
    for column, column_width in zip(columns, widths_at(columns, width), strict=True):
        text, role = column.cell(row)
        cells += [(_align(text, column_width, column, glyphs), role), (" ", "text")]
    return cells[:-1]


def table_head(columns: Sequence[Column[Row]], width: int, glyphs: formatting.Glyphs, order: ColumnSort[Row]) -> Cells:
    """The titles of the columns."""
    cells: Cells = []
    for column, column_width in zip(columns, widths_at(columns, width), strict=True):
        cells += [order.title_cell(column, column_width, glyphs), (" ", "dim")]
    return cells[:-1]


def column_at(columns: Sequence[Column[Row]], width: int, x: int) -> Column[Row] | None:
    """The column of a table at the cell `x`, if any."""
    start = 0
    for column, column_width in zip(columns, widths_at(columns, width), strict=True):
        if start <= x < start + column_width:
            return column
        start += column_width + 1
    return None


def _align(text: str, width: int, column: Column[Row], glyphs: formatting.Glyphs) -> str:
    """Clips or pads `text` to `width` characters."""
    clipped = (formatting.clip_start if column.keeps_end else formatting.clip)(text, width, glyphs)
    return clipped.rjust(width) if column.right else clipped.ljust(width)


class TableView(CursorView, Generic[Row]):
    """A view whose rows are a table; a subclass sets `rows` and `_columns`. The first cell of a line is the marker."""

    rows: list[Row]
    _columns: Sequence[Column[Row]]
    # Whether the user may change the order of the rows.
    sortable: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order: ColumnSort[Row] = ColumnSort()

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        return [marker, *table_row(columns_at(self._columns, width), self.rows[row], width - 1, self.glyphs)]

    def row_text(self, row: int) -> str:
        return cells_text(self._columns, self.rows[row])

    def head(self, width: int) -> list[Cells]:
        columns = columns_at(self._columns, width)
        return [[(" ", "dim"), *table_head(columns, width - 1, self.glyphs, self.order)]]

    # ---- sorting -------------------------------------------------------------------------------------------------

    def sort_rows(self) -> None:
        """Put the rows in the order `order`, and draw the table."""
        raise NotImplementedError

    def column_left(self) -> None:
        self._choose_column(-1)

    def column_right(self) -> None:
        self._choose_column(1)

    def _choose_column(self, by: int) -> None:
        self.order.choose(columns_at(self._columns, self.width), by)
        self.refresh_edges()

    def sort_by_column(self) -> None:
        """Sort by the chosen column. The next call reverses the order, one more restores the initial order."""
        if not self.order.chosen:
            self.column_right()
        self.order.sort_by(self._columns, self.order.chosen)
        self.sort_rows()

    def head_clicked(self, x: int) -> None:
        column = column_at(columns_at(self._columns, self.width), self.width - 1, x - 1)
        if column is not None and self.sortable:
            self.order.sort_by(self._columns, column.name)
            self.sort_rows()


def cells_text(columns: Sequence[Column[Row]], row: Row) -> str:
    """The text of a row in all columns, for searches."""
    return "  ".join(filter(None, (column.cell(row)[0] for column in columns)))


class TablePane(Pane, TableView[Row]):
    """A pane whose rows are a table."""
