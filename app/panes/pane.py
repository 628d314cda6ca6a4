"""The base classes of panes, and tables with columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.reports import formatting
from buddy.app.session.state import State, Topic
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cell, Cells
from buddy.app.workspace.workspace import Workspace

Row = TypeVar("Row")


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
        """Update the pane after these parts of the state have changed."""

    def say(self, message: str) -> None:
        """Show a message for a few seconds."""
        self.context.say(message)

    # ---- the selected node ---------------------------------------------------------------------------------------

    def mark_node(self, before: str) -> None:
        """Update the marks after another node than `before` was selected."""

    def show_node(self, stable: str) -> None:
        """Scroll to the row of a node."""

    def follow_selection(self) -> object:
        """Go to the selected node, after the cursor of another pane has stopped on it."""

    # ---- copying -------------------------------------------------------------------------------------------------

    def text_to_copy(self) -> str:
        """The text that the copy key copies."""
        return ""

    def copy(self) -> None:
        self.context.dialogs.copy(self.text_to_copy())


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table, shown if the pane is at least `since` cells wide. Width 0 means the remaining width."""

    title: str
    width: int
    cell: Callable[[Row], Cell]
    since: int = 0
    right: bool = False


def columns_at(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """The columns shown in a pane of `width` cells."""
    return [column for column in columns if column.since <= width]


def widths_at(columns: Sequence[Column[Row]], width: int) -> list[int]:
    """The widths of the columns. Columns of width 0 share the remaining cells; one cell separates columns."""
    fixed = sum(column.width for column in columns) + max(len(columns) - 1, 0)
    open_columns = sum(1 for column in columns if not column.width) or 1
    share, rest = divmod(max(width - fixed, 0), open_columns)
    widths = []
    for column in columns:
        widths.append(column.width or share + rest)
        rest = rest if column.width else 0
    return widths


def table_row(columns: Sequence[Column[Row]], row: Row, width: int, glyphs: formatting.Glyphs) -> Cells:
    """A row of the table as cells."""
    cells: Cells = []
    for column, room in zip(columns, widths_at(columns, width), strict=True):
        text, role = column.cell(row)
        cells += [(_aligned(text, room, column.right, glyphs), role), (" ", "text")]
    return cells[:-1]


def table_head(columns: Sequence[Column[Row]], width: int, glyphs: formatting.Glyphs) -> Cells:
    """The titles of the columns."""
    widths = widths_at(columns, width)
    pairs = zip(columns, widths, strict=True)
    return [(" ".join(_aligned(column.title, room, column.right, glyphs) for column, room in pairs), "dim")]


def _aligned(text: str, width: int, right: bool, glyphs: formatting.Glyphs) -> str:
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
