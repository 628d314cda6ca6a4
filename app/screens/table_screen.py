"""The base of screens with a table in a box."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic

from textual.binding import Binding, BindingType

from buddy.app.screens.modal import ListScreen
from buddy.app.widgets.look import Cells
from buddy.app.widgets.table import Column, Row, TableView

# The minimum number of rows for which the box is high enough; the lines of its border, the head, and above the foot.
_MIN_ROWS, _FRAME_LINES = 3, 4


class TableRows(TableView[Row]):
    """The table of a `TableScreen`. Below the rows are `foot_lines` lines with the text that `foot_text` returns.

    `unsorted_rows` are the rows in their initial order.
    """

    def __init__(
        self, columns: Sequence[Column[Row]], rows: Sequence[Row], foot_text: Callable[[Row], str], foot_lines: int
    ) -> None:
        super().__init__()
        self.unsorted_rows, self.rows = list(rows), list(rows)
        self._columns, self._foot_text, self._foot_lines = columns, foot_text, foot_lines

    @property
    def current(self) -> Row | None:
        """The row under the cursor, `None` without rows."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def foot(self, width: int) -> list[Cells]:
        text = self._foot_text(self.current) if self.current is not None else ""
        lines = textwrap.wrap(text, max(width - 2, 10))[: self._foot_lines]
        return [[], *([(f" {line}", "text")] for line in (*lines, *[""] * (self._foot_lines - len(lines))))]

    def empty(self, width: int) -> list[Cells]:
        return [[(" nothing yet", "dim")]]

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows. A cursor that the user has moved stays on its row if the row still exists."""
        self.unsorted_rows = list(rows)
        self.sort_rows()

    def sort_rows(self) -> None:
        current = self.current
        self.rows = self.order.sorted(self.unsorted_rows, self._columns)
        # A cursor on the first row, which the user may not have moved, stays on the first row.
        if self.cursor and current in self.rows:
            self.cursor = self.rows.index(current)
        self.rows_changed()


class TableScreen(ListScreen[Any], Generic[Row]):
    """A table in a box; `show` replaces its rows while it is open. Returns the chosen row, or what a subclass defines.

    `s` sorts by the column that left and right choose; a click on the head of a column sorts too.
    """

    TITLE_TEXT: ClassVar[str] = ""
    KEYS_TEXT: ClassVar[str] = "enter chooses, s sorts, q closes"
    # The number of lines of text under the table.
    FOOT_LINES: ClassVar[int] = 3
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Choose", show=False),
        Binding("s", "move('sort_by_column')", "Sort", show=False),
        Binding("left,h", "move('column_left')", show=False),
        Binding("right,l", "move('column_right')", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Row]], rows: Sequence[Row] = ()) -> None:
        self._table: TableRows[Row] = TableRows(columns, rows, self.foot_text, self.FOOT_LINES)
        super().__init__(self.TITLE_TEXT, self.KEYS_TEXT, self._table)

    def foot_text(self, row: Row) -> str:
        """The text under the table about the row under the cursor."""
        return ""

    def full_height(self) -> int:
        return max(len(self._table.rows), _MIN_ROWS) + self.FOOT_LINES + _FRAME_LINES

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows, and fit the height of the box to them."""
        self._table.show(rows)
        self.fit()

    def show_progress(self, text: str) -> None:
        """Add `text` to the title of the box; an empty text restores the title."""
        self.set_box_title(f"{self.TITLE_TEXT}: {text}" if text else self.TITLE_TEXT)

    @property
    def current(self) -> Row | None:
        """The row under the cursor, `None` without rows."""
        return self._table.current

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(self.current)

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()
