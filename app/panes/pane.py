"""The base classes of panes, and the columns of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.reports import formatting
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

    def say(self, message: str) -> None:
        """Show a message for a few seconds."""
        self.context.say(message)

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

    With `right`, its cells are right-aligned.
    """

    title: str
    width: int
    cell: Callable[[Row], Cell]
    min_pane_width: int = 0
    right: bool = False


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
        cells += [(_align(text, column_width, column.right, glyphs), role), (" ", "text")]
    return cells[:-1]


def table_head(columns: Sequence[Column[Row]], width: int, glyphs: formatting.Glyphs) -> Cells:
    """The titles of the columns."""
    pairs = zip(columns, widths_at(columns, width), strict=True)
    titles = (_align(column.title, column_width, column.right, glyphs) for column, column_width in pairs)
    return [(" ".join(titles), "dim")]


def _align(text: str, width: int, right: bool, glyphs: formatting.Glyphs) -> str:
    """Clips or pads `text` to `width` characters."""
    clipped = formatting.clip(text, width, glyphs)
    return clipped.rjust(width) if right else clipped.ljust(width)


class TablePane(Pane, Generic[Row]):
    """A pane whose rows are a table; a subclass sets `rows` and `_columns`."""

    rows: list[Row]
    _columns: list[Column[Row]]

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        return [marker, *table_row(columns_at(self._columns, width), self.rows[row], width - 1, self.glyphs)]

    def head(self, width: int) -> list[Cells]:
        return [[(" ", "dim"), *table_head(columns_at(self._columns, width), width - 1, self.glyphs)]]
