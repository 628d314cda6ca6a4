"""A table screen whose rows may arrive later: presets, passes tried, runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType

from buddy.app.panes.pane import Column, columns_at, table_head, table_row
from buddy.app.screens.list_screen import ListScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells

Row = TypeVar("Row")
FOOT = 3


class TableRows(CursorView, Generic[Row]):
    """The table. `about` returns more text about the row under the cursor."""

    def __init__(self, columns: Sequence[Column[Row]], rows: Sequence[Row], about: Callable[[Row], str]) -> None:
        super().__init__()
        self.rows = list(rows)
        self._columns, self._about = columns, about

    @property
    def row_count(self) -> int:
        return len(self.rows)

    @property
    def current(self) -> Row | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        return [marker, *table_row(columns_at(self._columns, width), self.rows[row], width - 1, self.glyphs)]

    def head(self, width: int) -> list[Cells]:
        return [[(" ", "dim"), *table_head(columns_at(self._columns, width), width - 1, self.glyphs)]]

    def foot(self, width: int) -> list[Cells]:
        told = self._about(self.current) if self.current is not None else ""
        pieces = textwrap.wrap(told, max(width - 2, 10))[:FOOT]
        return [[], *([(f" {piece}", "text")] for piece in (*pieces, *[""] * (FOOT - len(pieces))))]

    def empty(self, width: int) -> list[Cells]:
        return [[(" nothing yet", "dim")]]

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows. A cursor that the user has moved stays on its row if the row still exists."""
        current, self.rows = self.current, list(rows)
        if self.cursor and current in self.rows:
            self.cursor = self.rows.index(current)
        self.rows_changed()


class TableScreen(ListScreen[Any], Generic[Row]):
    """Shows rows. A subclass defines what the keys return."""

    TITLE_TEXT: ClassVar[str] = ""
    KEYS_TEXT: ClassVar[str] = "enter chooses, q closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "dismiss(None)", "Close", show=False, priority=True),
        Binding("enter", "choose", "Choose", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Row]], rows: Sequence[Row] = ()) -> None:
        self._table: TableRows[Row] = TableRows(columns, rows, self.about)
        super().__init__(self.TITLE_TEXT, self.KEYS_TEXT, self._table)

    def about(self, row: Row) -> str:
        """The text about a row, shown under the table."""
        return ""

    def wanted_height(self) -> int:
        return max(len(self._table.rows), 3) + FOOT + 4

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows, and fit the box to them."""
        self._table.show(rows)
        self.fit()

    def tell(self, text: str) -> None:
        """Show progress in the title of the box."""
        self.set_box_title(f"{self.TITLE_TEXT}: {text}" if text else self.TITLE_TEXT)

    @property
    def current(self) -> Row | None:
        return self._table.current

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(self.current)

    def on_cursor_view_opened(self) -> None:
        self.action_choose()
