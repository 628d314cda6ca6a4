"""A list with a cursor, drawn line by line: the base of every pane.

Only rows near the screen are measured, so the cost does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBarRender
from textual.strip import Strip

from buddy.app.reports import formatting
from buddy.app.widgets.look import Cells, Look, look_of

# The number of lines of a row, at least one.
Height = Callable[[int], int]


class RowLine(NamedTuple):
    """A line of a row; both start at 0."""

    row: int
    line: int = 0


def lines_below(top: RowLine, lines: int, count: int, height: Height) -> list[RowLine]:
    """The row lines shown on `lines` screen lines from `top`; fewer at the end of the `count` rows."""
    found: list[RowLine] = []
    row, line = top
    while row < count and len(found) < lines:
        found += [RowLine(row, k) for k in range(line, height(row))][: lines - len(found)]
        row, line = row + 1, 0
    return found


def line_above(spot: RowLine, lines: int, height: Height) -> RowLine:
    """The row line `lines` screen lines above `spot`, or the first one."""
    row, line = spot
    while lines > line and row > 0:
        lines -= line + 1
        row -= 1
        line = height(row) - 1
    return RowLine(row, max(0, line - lines))


def top_to_show(row: int, top: RowLine, page: int, height: Height) -> RowLine:
    """The scroll position nearest to `top` that shows the whole `row`, or as much of it as fits."""
    tall = height(row)
    if tall > page:
        return RowLine(row, min(top.line, tall - page) if top.row == row else 0)
    return max(line_above(RowLine(row, tall - 1), page - 1, height), min(top, RowLine(row)))


def scroll_top(top: RowLine, lines: int, page: int, count: int, height: Height) -> RowLine:
    """The scroll position `lines` lines further down (or up, if negative), within the ends."""
    if lines <= 0:
        return line_above(top, -lines, height)
    last = line_above(RowLine(count - 1, height(count - 1) - 1), page - 1, height)
    passed = lines_below(top, lines + 1, count, height)
    return max(top, min(last, passed[-1]))


class WholeCells(ScrollBarRender):
    """A scrollbar of whole cells, without glyphs that some terminals lack."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]


# Minimum number of rows; a view with less room hides its foot.
LEAST_ROWS = 2


class CursorView(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows between a fixed head and a fixed foot.

    A subclass defines `row_count`, returns rows, head and foot as cells, and calls `rows_changed` after changes.
    A view that is too short for head, foot and two rows hides the foot. If `wrapped` is set, a row may have several
    screen lines, which `row_strips` returns.
    """

    class Moved(Message):
        """The cursor moved to another row."""

        def __init__(self, view: CursorView, row: int) -> None:
            super().__init__()
            self.view, self.row = view, row

        @property
        def control(self) -> CursorView:
            return self.view

    class Opened(Message):
        """A row was double-clicked."""

        def __init__(self, view: CursorView, row: int) -> None:
            super().__init__()
            self.view, self.row = view, row

        @property
        def control(self) -> CursorView:
            return self.view

    cursor: int = 0
    ascii_mode: bool = False
    wrapped: bool = False

    # ---- for subclasses ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        raise NotImplementedError

    def row_cells(self, row: int, width: int) -> Cells:
        raise NotImplementedError

    def head(self, width: int) -> list[Cells]:
        return []

    def foot(self, width: int) -> list[Cells]:
        return []

    def empty(self, width: int) -> list[Cells]:
        """The text of an empty view."""
        return []

    # ---- geometry ------------------------------------------------------------------------------------------------

    @property
    def look(self) -> Look:
        return look_of(self.app.theme)

    @property
    def glyphs(self) -> formatting.Glyphs:
        return formatting.ASCII if self.ascii_mode else formatting.UNICODE

    @property
    def width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def first_row(self) -> int:
        return self.scroll_offset.y

    @property
    def page(self) -> int:
        """The number of rows on the screen."""
        return max(1, self.size.height - self._head_height - self._foot_height)

    _head_height = 0
    _foot_height = 0

    @property
    def top(self) -> RowLine:
        """The first visible row, and the line of that row."""
        return RowLine(self.first_row, self._wrapped_top.line if self._wrapped_top.row == self.first_row else 0)

    def row_height(self, row: int) -> int:
        """The number of screen lines of a row."""
        return max(1, len(self.row_strips(row, self.width))) if self.wrapped else 1

    def spots(self) -> list[RowLine]:
        """The row and the line of that row, for each screen line between head and foot."""
        top, page, count = self.top, self.page, self.row_count
        if not self.wrapped:
            return [RowLine(row) for row in range(top.row, min(top.row + page, count))]
        key = (top, page, count, self.width)
        if self._spots is None or self._spots[0] != key:
            self._spots = (key, lines_below(top, page, count, self.row_height))
        return self._spots[1]

    def rows_on_screen(self) -> range:
        spots = self.spots()
        return range(spots[0].row, spots[-1].row + 1) if spots else range(0)

    # Scroll position inside a tall row; the scroll offset has whole rows only.
    _wrapped_top = RowLine(0)
    _spots: tuple[object, list[RowLine]] | None = None

    def rows_changed(self) -> None:
        """Measure and draw again."""
        width = self.width
        self._head_height, self._foot_height = len(self.head(width)), len(self.foot(width))
        if self._head_height + LEAST_ROWS + self._foot_height > self.size.height:
            self._foot_height = 0
        self.cursor = max(0, min(self.cursor, self.row_count - 1))
        fixed = self._head_height + self._foot_height
        # With wrapping, there is room below the last row, so that the last row can be scrolled to the top.
        rows = self.row_count + self.page - 1 if self.wrapped else self.row_count
        self.virtual_size = Size(width, rows + fixed)
        self._spots = None
        self._follow()
        self.refresh()

    def on_mount(self) -> None:
        self.vertical_scrollbar.renderer = WholeCells  # type: ignore[misc]

    def on_resize(self) -> None:
        self.rows_changed()

    def refresh(self, *regions: Region, **options: Any) -> Any:
        if not regions:
            self._spots = None
        return super().refresh(*regions, **options)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    # ---- drawing -------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width, height = self.width, self.size.height
        if y < self._head_height:
            return self.look.strip(self.head(width)[y], width)
        if y >= height - self._foot_height:
            foot = self.foot(width)
            place = y - (height - self._foot_height)
            return self.look.strip(foot[place] if place < len(foot) else [], width)
        return self._body_line(y - self._head_height, width)

    def _body_line(self, y: int, width: int) -> Strip:
        if not self.row_count:
            lines = self.empty(width)
            return self.look.strip(lines[y] if y < len(lines) else [], width)
        if not self.wrapped:
            row = y + self.first_row
            return self.row_strip(row, width) if row < self.row_count else self.look.strip([], width)
        spots = self.spots()
        strips = self.row_strips(spots[y].row, width) if y < len(spots) else []
        return strips[spots[y].line] if strips and spots[y].line < len(strips) else self.look.strip([], width)

    def row_strip(self, row: int, width: int) -> Strip:
        return self.look.strip(self.row_cells(row, width), width, self.background(row))

    def row_strips(self, row: int, width: int) -> list[Strip]:
        """The screen lines of a row, if rows are wrapped."""
        return [self.row_strip(row, width)]

    def background(self, row: int) -> str:
        """The role of the background of a row. The cursor row shows whether the view has focus."""
        if row != self.cursor:
            return ""
        return "cursor" if self.has_focus else "cursor-blurred"

    def refresh_row(self, row: int) -> None:
        if not self.wrapped:
            place, lines = row - self.first_row, 1
        else:
            inside = [y for y, spot in enumerate(self.spots()) if spot.row == row]
            place, lines = (inside[0], len(inside)) if inside else (-1, 0)
        if 0 <= place < self.page:
            self.refresh(Region(0, place + self._head_height, self.width, lines))

    def refresh_edges(self) -> None:
        """Draw the head and the foot again."""
        if self._head_height:
            self.refresh(Region(0, 0, self.width, self._head_height))
        height = self.size.height
        if self._foot_height:
            self.refresh(Region(0, height - self._foot_height, self.width, self._foot_height))

    # ---- moving --------------------------------------------------------------------------------------------------

    def move_to(self, row: int, *, tell: bool = True) -> None:
        """Move the cursor to `row`, and scroll to it."""
        before, self.cursor = self.cursor, max(0, min(row, self.row_count - 1))
        self._follow()
        if before == self.cursor:
            return
        self.refresh_row(before)
        self.refresh_row(self.cursor)
        self.refresh_edges()
        if tell:
            self.moved()

    def moved(self) -> None:
        """Post `Moved`."""
        self.post_message(self.Moved(self, self.cursor))

    def _follow(self) -> None:
        first, page = self.first_row, self.page
        if self.wrapped and self.row_count:
            self._scroll_top(top_to_show(self.cursor, self.top, page, self.row_height))
            return
        if self.cursor < first:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= first + page:
            self.scroll_to(y=self.cursor - page + 1, animate=False, force=True)

    def _scroll_top(self, top: RowLine) -> None:
        """Scroll `top` to the first screen line."""
        if top != self.top:
            self._wrapped_top = top
            self.scroll_to(y=top.row, animate=False, force=True)
            self.refresh()

    def keep_cursor_at(self, offset: int) -> None:
        """Scroll so that the cursor is `offset` rows below the first row on the screen."""
        self.scroll_to(y=max(0, self.cursor - offset), animate=False, force=True)
        if self.wrapped:
            self._follow()

    def center(self, row: int, *, tell: bool = True) -> None:
        """Move the cursor to `row`. If the row is not on the screen, scroll it to the middle."""
        if row not in self.rows_on_screen():
            if self.wrapped:
                self._scroll_top(line_above(RowLine(min(row, self.row_count - 1)), self.page // 2, self.row_height))
            else:
                self.scroll_to(y=max(0, row - self.page // 2), animate=False, force=True)
        self.move_to(row, tell=tell)

    def move_down(self) -> None:
        if not self._scroll_inside_row(1):
            self.move_to(self.cursor + 1)

    def move_up(self) -> None:
        if not self._scroll_inside_row(-1):
            self.move_to(self.cursor - 1)

    def _scroll_inside_row(self, by: int) -> bool:
        """Scroll by one line inside a row that is longer than the screen, up to its end."""
        top = self.top
        if not self.wrapped or top.row != self.cursor or not self.row_count:
            return False
        line, hidden_lines = top.line + by, self.row_height(self.cursor) - self.page
        if not 0 <= line <= hidden_lines:
            return False
        self._scroll_top(RowLine(self.cursor, line))
        return True

    def move_half_down(self) -> None:
        self._move_window(self.page // 2)

    def move_half_up(self) -> None:
        self._move_window(-(self.page // 2))

    def move_page_down(self) -> None:
        self._move_window(self.page)

    def move_page_up(self) -> None:
        self._move_window(-self.page)

    def move_top(self) -> None:
        self.move_to(0)

    def move_bottom(self) -> None:
        self.move_to(self.row_count - 1)

    def _move_window(self, rows: int) -> None:
        """Scroll by `rows`, and keep the position of the cursor on the screen if possible."""
        if self.wrapped and self.row_count:
            self._move_lines(rows)
            return
        self.scroll_to(y=self.first_row + rows, animate=False, force=True)
        self.move_to(self.cursor + rows)

    def _move_lines(self, lines: int) -> None:
        """Scroll by screen lines, and keep the cursor on its screen line."""
        before, rows = self.top, [spot.row for spot in self.spots()]
        place = rows.index(self.cursor) if self.cursor in rows else 0
        top = scroll_top(before, lines, self.page, self.row_count, self.row_height)
        if top == before:
            self.move_to(self.row_count - 1 if lines > 0 else 0)
            return
        self._scroll_top(top)
        spots = self.spots()
        self.move_to(spots[min(place, len(spots) - 1)].row)

    def spot_at(self, y: int) -> RowLine | None:
        """The row and the line of that row at line `y` of the widget, `None` if there is no row."""
        place, spots = y - self._head_height, self.spots()
        return spots[place] if 0 <= place < min(self.page, len(spots)) else None

    def row_at(self, y: int) -> int:
        """The row at line `y` of the widget, or -1 below the last row."""
        spot = self.spot_at(y)
        return spot.row if spot is not None else -1

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        row = self.row_at(offset.y) if offset else -1
        if row < 0:
            return
        self.move_to(row)
        if event.chain == 2:
            self.post_message(self.Opened(self, row))
