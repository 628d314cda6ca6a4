"""Tables: columns, the order of the rows, and a view with a cursor whose rows are those of a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from buddy.app.reports import formatting
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cell, Cells

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table, shown if the view has at least `min_width` cells. Columns of `width` 0 share the rest.

    `cell` returns the text and the role of a row in the column. With `right_aligned`, texts are aligned at the right
    end. With `keeps_end`, texts that are too long are truncated at the start instead of the end.

    Rows are sorted by `key`, which returns `None` for a row without a value. Without `key`, they are sorted by the
    text of the cells, whose digits count as numbers. The first sort of a right-aligned column is descending, unless
    `starts_ascending` is set.
    """

    title: str
    width: int
    cell: Callable[[Row], Cell]
    min_width: int = 0
    right_aligned: bool = False
    key: Callable[[Row], Any] | None = None
    starts_ascending: bool = False
    keeps_end: bool = False

    @property
    def name(self) -> str:
        """The title without the `?` that marks measurements that are out of date."""
        return self.title.rstrip("?")

    def sort_key(self, row: Row) -> Any:
        """The value by which a row is sorted; `None` without one. NaN is the greatest number."""
        if self.key is None:
            return _natural_key(self.cell(row)[0])
        value = self.key(row)
        return math.inf if isinstance(value, float) and math.isnan(value) else value


def _natural_key(text: str) -> list[tuple[int, str]] | None:
    """Returns a key that orders texts by their lower-case letters and the values of their numbers; `None` for ""."""
    pieces = re.split(r"([0-9]+)", text.strip().lower())
    # -1 puts text before numbers.
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces if piece] or None


class ColumnSort(Generic[Row]):
    """The order of the rows of a table.

    `chosen` is the column that is highlighted in the head, by which the next press of the sort key sorts. `sorted_by`
    is the column by which the rows are sorted now. Both are names of columns, "" for none.
    """

    def __init__(self) -> None:
        self.chosen = self.sorted_by = ""
        self.descending = False

    def move_choice(self, columns: Sequence[Column[Row]], offset: int) -> None:
        """Chooses the visible column `offset` columns to the right of the chosen one; the first if none is chosen."""
        names = [column.name for column in columns if column.name]
        index = names.index(self.chosen) + offset if self.chosen in names else 0
        self.chosen = names[max(0, min(index, len(names) - 1))] if names else ""

    def sort_by(self, columns: Sequence[Column[Row]], name: str) -> None:
        """Sorts by the column `name`. The second call reverses the order, the third restores the initial order."""
        column = next((column for column in columns if column.name == name), None)
        if column is None:
            return
        starts_descending = column.right_aligned and not column.starts_ascending
        if self.sorted_by != name:
            self.chosen = self.sorted_by = name
            self.descending = starts_descending
        elif self.descending == starts_descending:
            self.descending = not self.descending
        else:
            self.sorted_by = ""

    def sorted(self, rows: Iterable[Row], columns: Sequence[Column[Row]]) -> list[Row]:
        """The rows in the chosen order. Rows without a value come last."""
        column = next((column for column in columns if column.name == self.sorted_by), None)
        if column is None or not self.sorted_by:
            return list(rows)
        keys_and_rows = [(column.sort_key(row), row) for row in rows]
        with_value = [pair for pair in keys_and_rows if pair[0] is not None]
        without_value = [pair for pair in keys_and_rows if pair[0] is None]
        with_value.sort(key=lambda pair: pair[0], reverse=self.descending)
        return [row for _, row in (*with_value, *without_value)]

    def title_cell(self, column: Column[Row], width: int, glyphs: formatting.Glyphs) -> Cell:
        """The title of a column, with an arrow if the rows are sorted by it, and highlighted if it is chosen."""
        is_sorted = bool(column.name) and column.name == self.sorted_by
        arrow = (glyphs.descending if self.descending else glyphs.ascending) if is_sorted else ""
        title = formatting.clip(column.title, width - len(arrow), glyphs) + arrow
        role = "title" if column.name and column.name == self.chosen else "dim"
        return (_align(title, width, column, glyphs), role)


def columns_at(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    """Returns the columns shown in a view of `width` cells."""
    return [column for column in columns if column.min_width <= width]


def widths_at(columns: Sequence[Column[Row]], width: int) -> list[int]:
    """Returns the widths of the columns. Columns of width 0 share the remaining cells; one cell separates columns."""
    fixed_cells = sum(column.width for column in columns) + max(len(columns) - 1, 0)
    flexible_columns = sum(1 for column in columns if not column.width) or 1
    share, remainder = divmod(max(width - fixed_cells, 0), flexible_columns)
    widths = []
    for column in columns:
        widths.append(column.width or share + remainder)
        if not column.width:
            # The first flexible column has got the remainder.
            remainder = 0
    return widths


def table_row(columns: Sequence[Column[Row]], row: Row, width: int, glyphs: formatting.Glyphs) -> Cells:
    """Returns the cells of a row in `columns`, `width` characters in total."""
    cells: Cells = []
    for column, column_width in zip(columns, widths_at(columns, width), strict=True):
        text, role = column.cell(row)
        cells += [(_align(text, column_width, column, glyphs), role), (" ", "text")]
    return cells[:-1]


def table_head(columns: Sequence[Column[Row]], width: int, glyphs: formatting.Glyphs, order: ColumnSort[Row]) -> Cells:
    """Returns the titles of the columns, `width` characters in total, with an arrow at the one that sorts the rows."""
    cells: Cells = []
    for column, column_width in zip(columns, widths_at(columns, width), strict=True):
        cells += [order.title_cell(column, column_width, glyphs), (" ", "dim")]
    return cells[:-1]


def column_at(columns: Sequence[Column[Row]], width: int, x: int) -> Column[Row] | None:
    """Returns the column at cell `x` of a table that is `width` cells wide; `None` between columns."""
    start = 0
    for column, column_width in zip(columns, widths_at(columns, width), strict=True):
        if start <= x < start + column_width:
            return column
        start += column_width + 1
    return None


def _align(text: str, width: int, column: Column[Row], glyphs: formatting.Glyphs) -> str:
    """Returns `text` clipped or padded to `width` characters."""
    clipped = (formatting.clip_start if column.keeps_end else formatting.clip)(text, width, glyphs)
    return clipped.rjust(width) if column.right_aligned else clipped.ljust(width)


class TableView(CursorView, Generic[Row]):
    """A view whose rows are a table. A subclass sets `rows` and `_columns`.

    The first cell of a line marks the row of the cursor. The table takes the other cells.
    """

    rows: list[Row]
    _columns: Sequence[Column[Row]]
    # Whether a click on a column's title sorts the rows.
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
        """Sorts `rows` by `order`, and draws the table."""
        raise NotImplementedError

    def column_left(self) -> None:
        self._move_chosen_column(-1)

    def column_right(self) -> None:
        self._move_chosen_column(1)

    def _move_chosen_column(self, offset: int) -> None:
        self.order.move_choice(columns_at(self._columns, self.width), offset)
        self.refresh_edges()

    def sort_by_column(self) -> None:
        """Sorts by the chosen column. The next call reverses the order, one more restores the initial order."""
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
    """Returns the text of a row in all columns, including hidden ones, for searches."""
    return "  ".join(filter(None, (column.cell(row)[0] for column in columns)))
