"""A list with a cursor, drawn line by line: the base of every pane and of the lists of screens.

A row is an item of the list. Usually, it takes one screen line; in a view that wraps, it may take several, which are
called its row lines (`RowLine`). Only rows near the screen are drawn and measured, so the cost does not depend on the
number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip

from buddy.app.reports import formatting
from buddy.app.reports.text.search_hits import Pattern, matching_lines
from buddy.app.widgets.drawn_lines import (
    DrawnRows,
    FramedLines,
    RowLine,
    WholeCellScrollBar,
    line_above,
    lines_below,
    scroll_top,
    top_to_show,
)
from buddy.app.widgets.look import Cells, Look, look_of
from buddy.app.widgets.search import FoundLines, ViewSearch

# The width at which a row is drawn to search its text, so that the text is not cut.
SEARCHED_WIDTH = 1000
# A view hides its foot if fewer than this many lines would be left for its rows.
MIN_ROWS = 2


class CursorView(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows between a fixed head and a fixed foot, with a cursor on one row.

    A subclass defines `row_count`, returns rows, head and foot as cells, and calls `rows_changed` after changes.
    A view that is too short for head, foot and `MIN_ROWS` lines hides the foot. If `wrapped` is set, a row may have
    several screen lines, which `row_strips` returns. Textual's scroll offset counts rows, also with `wrapped`.
    """

    class Moved(Message):
        """The cursor moved to another row."""

        def __init__(self, view: CursorView, row: int) -> None:
            super().__init__()
            self.view, self.row = view, row

        @property
        def control(self) -> CursorView:
            return self.view

    class DoubleClicked(Message):
        """A row was double-clicked."""

        def __init__(self, view: CursorView, row: int) -> None:
            super().__init__()
            self.view, self.row = view, row

        @property
        def control(self) -> CursorView:
            return self.view

    class Searched(Message):
        """A search has ended, or has gone to a match. `text` is the pattern and the count, or why there is no match."""

        def __init__(self, view: CursorView, text: str) -> None:
            super().__init__()
            self.view, self.text = view, text

        @property
        def control(self) -> CursorView:
            return self.view

    # ---- state ---------------------------------------------------------------------------------------------------

    # The row of the cursor.
    cursor: int = 0
    # Whether marks and bars are drawn with ASCII characters only.
    ascii_mode: bool = False
    # Whether rows may have several screen lines.
    wrapped: bool = False
    # Whether several rows can be selected, by dragging the mouse or by `extend_selection`.
    selects_rows: ClassVar[bool] = False
    # The row at which the selection of several rows starts, -1 without one. It ends at the cursor.
    _anchor: int = -1
    # The row at which the mouse button was pressed, -1 if it is not pressed.
    _pressed_row: int = -1
    # Whether the mouse was dragged after the button was pressed last.
    _was_dragged: bool = False
    # Whether the rows are lines of text, which can be searched.
    searchable: ClassVar[bool] = True
    # Whether a row may continue the text of the row above.
    has_broken_lines: ClassVar[bool] = False
    # The heights of head and foot, in lines.
    _head_height = 0
    _foot_height = 0
    # The first visible row line if `wrapped` is set. Its row is Textual's scroll offset.
    _wrapped_top = RowLine(0)
    # The cached result of `visible_lines`, after the key of all values that it depends on.
    _visible_lines: tuple[object, list[RowLine]] | None = None
    # Whether Textual is marking all lines to be drawn again because the view was scrolled.
    _is_scrolling: bool = False
    # The strips that were drawn last, by their line in the widget.
    _drawn_lines: dict[int, Strip]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        # Replaces the cache of Textual's `Widget`.
        self._styles_cache = FramedLines()
        # The width of the rows and the height of the widget, set before lines are drawn.
        self._rendered_size = Size(0, 0)
        self._drawn_lines = {}
        self._drawn_rows = DrawnRows()
        # The width and the look of `_drawn_rows`.
        self._drawn_shape: tuple[int, Look] | None = None

    # ---- for subclasses ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        """The number of rows."""
        raise NotImplementedError

    def row_cells(self, row: int, width: int) -> Cells:
        """The cells of a row, at most `width` characters. The first cell is the gutter, which searches ignore."""
        raise NotImplementedError

    def head(self, width: int) -> list[Cells]:
        """The fixed lines above the rows, at most `width` characters each."""
        return []

    def foot(self, width: int) -> list[Cells]:
        """The fixed lines below the rows, at most `width` characters each."""
        return []

    def empty(self, width: int) -> list[Cells]:
        """The lines that are shown instead of rows if `row_count` is 0."""
        return []

    def row_text(self, row: int) -> str:
        """The text of a row for searches, including the part that is not on the screen."""
        return "".join(text for text, _ in self.row_cells(row, SEARCHED_WIDTH)[1:])

    def head_clicked(self, x: int) -> None:
        """Called after a click on the last line of the head, in column `x`."""

    # ---- geometry ------------------------------------------------------------------------------------------------

    @property
    def look(self) -> Look:
        return look_of(self.app.theme)

    @property
    def glyphs(self) -> formatting.Glyphs:
        """The characters that marks and bars are drawn with."""
        return formatting.ASCII if self.ascii_mode else formatting.UNICODE

    @property
    def width(self) -> int:
        """The number of columns for rows, without border and scrollbar."""
        return self.scrollable_content_region.width

    @property
    def first_row(self) -> int:
        """The row at the top of the screen."""
        return self.scroll_offset.y

    @property
    def page(self) -> int:
        """The number of screen lines between head and foot."""
        return max(1, self.size.height - self._head_height - self._foot_height)

    @property
    def top(self) -> RowLine:
        """The first visible row line."""
        return RowLine(self.first_row, self._wrapped_top.line if self._wrapped_top.row == self.first_row else 0)

    def row_height(self, row: int) -> int:
        """The number of screen lines of a row, at least one."""
        return max(1, len(self.row_strips(row, self.width))) if self.wrapped else 1

    def visible_lines(self) -> list[RowLine]:
        """The row line on each screen line between head and foot."""
        top, page, count = self.top, self.page, self.row_count
        if not self.wrapped:
            return [RowLine(row) for row in range(top.row, min(top.row + page, count))]
        key = (top, page, count, self.width)
        if self._visible_lines is None or self._visible_lines[0] != key:
            self._visible_lines = (key, lines_below(top, page, count, self.row_height))
        return self._visible_lines[1]

    def rows_on_screen(self) -> range:
        """The rows of which at least one line is on the screen."""
        lines = self.visible_lines()
        return range(lines[0].row, lines[-1].row + 1) if lines else range(0)

    def rows_changed(self) -> None:
        """Updates the layout and draws again, after the rows, the head or the foot have changed."""
        self._update_layout()
        self.refresh()

    def redraw_changed_lines(self) -> None:
        """Like `rows_changed`, but draws only the lines that differ from those drawn last, for frequent changes."""
        previous_layout = self._layout_facts()
        self._drawn_rows.forget()
        self._update_layout()
        if self._layout_facts() != previous_layout:
            self.refresh()
            return
        width, height = self.width, self.size.height
        for y in range(height):
            if self._draw_line(y, width, height) != self._drawn_lines.get(y):
                self.refresh(Region(0, y, width, 1))

    def _layout_facts(self) -> tuple[object, ...]:
        """The values that decide which row is on which line of the widget."""
        return (self._head_height, self._foot_height, self.top, self.page, self.virtual_size, self.size)

    def _update_layout(self) -> None:
        """Measures head, foot and rows, moves a cursor beyond the last row to that row, and scrolls to the cursor."""
        width = self.width
        self._head_height, self._foot_height = len(self.head(width)), len(self.foot(width))
        if self._head_height + MIN_ROWS + self._foot_height > self.size.height:
            self._foot_height = 0
        self.cursor = max(0, min(self.cursor, self.row_count - 1))
        fixed_height = self._head_height + self._foot_height
        # With wrapping, the scrolled area is longer than the rows, so that the last row can be scrolled to the top.
        rows = self.row_count + self.page - 1 if self.wrapped else self.row_count
        self.virtual_size = Size(width, rows + fixed_height)
        self._visible_lines = None
        self.search.text_replaced()
        self._scroll_to_cursor()

    def on_mount(self) -> None:
        self.vertical_scrollbar.renderer = WholeCellScrollBar  # type: ignore[misc]

    def on_resize(self) -> None:
        self.rows_changed()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Called by Textual after scrolling: keeps the drawn rows that are still on the screen."""
        self._drawn_rows.keep_only(range(self.first_row, self.first_row + self.page))
        bar = self.vertical_scrollbar
        if WholeCellScrollBar.first_cell(bar, new_value) == WholeCellScrollBar.first_cell(bar, bar.position):
            # In a long list, most steps leave the thumb where it is: do not draw it again.
            bar.set_reactive(ScrollBar.position, new_value)
        self._is_scrolling = True
        super().watch_scroll_y(old_value, new_value)
        self._is_scrolling = False

    def _set_dirty(self, *regions: Region) -> None:
        """Called by Textual with the regions to draw again, or without arguments for all: forgets their cached strips.

        While Textual scrolls, it passes all lines; the strips stay cached, because no row has changed.
        """
        if not regions:
            self._visible_lines = None
            self._drawn_rows.forget()
        elif not self._is_scrolling:
            for region in regions:
                first = region.y - self._head_height + self.first_row
                self._drawn_rows.forget(range(first, first + region.height))
        super()._set_dirty(*regions)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    # ---- drawing -------------------------------------------------------------------------------------------------

    def render_lines(self, crop: Region) -> list[Strip]:
        # Computed once for all lines, because Textual derives width and height from several regions.
        self._rendered_size = Size(self.width, self.size.height)
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        self._drawn_lines[y] = strip = self._draw_line(y, *self._rendered_size)
        return strip

    def _draw_line(self, y: int, width: int, height: int) -> Strip:
        """Draws line `y` of the widget, which has `width` columns and `height` lines."""
        if y < self._head_height:
            return self.look.strip(self.head(width)[y], width)
        if y >= height - self._foot_height:
            foot = self.foot(width)
            line = y - (height - self._foot_height)
            return self.look.strip(foot[line] if line < len(foot) else [], width)
        return self._body_line(y - self._head_height, width)

    def _body_line(self, y: int, width: int) -> Strip:
        """Draws line `y` below the head, counted from 0."""
        if not self.row_count:
            lines = self.empty(width)
            return self.look.strip(lines[y] if y < len(lines) else [], width)
        if not self.wrapped:
            row = y + self.first_row
            return self._drawn_row(row, width) if row < self.row_count else self.look.strip([], width)
        row_lines = self.visible_lines()
        if y < len(row_lines):
            row, line = row_lines[y]
            strips = self.row_strips(row, width)
            if line < len(strips):
                return strips[line]
        return self.look.strip([], width)

    def _drawn_row(self, row: int, width: int) -> Strip:
        """The strip of a row on the screen: the cached one, or, if it was forgotten, a new one."""
        shape = (width, self.look)
        if shape != self._drawn_shape:
            self._drawn_shape = shape
            self._drawn_rows.forget()
        strip = self._drawn_rows.get(row)
        if strip is None:
            strip = self.row_strip(row, width)
            self._drawn_rows.put(row, strip)
        return strip

    def row_strip(self, row: int, width: int) -> Strip:
        """The cells of a row as a strip, with the matches of the search highlighted."""
        cells = self.search.highlighted_cells(self.line_of(row), self.row_cells(row, width))
        return self.look.strip(cells, width, self.background(row))

    def row_strips(self, row: int, width: int) -> list[Strip]:
        """The screen lines of a row. A subclass that sets `wrapped` may return several."""
        return [self.row_strip(row, width)]

    def background(self, row: int) -> str:
        """The name of the background of a row, for `Look.strip`. The cursor's row is paler if the view lacks focus."""
        if row != self.cursor:
            return "cursor-blurred" if self._anchor >= 0 and row in self.selected_range else ""
        return "cursor" if self.has_focus else "cursor-blurred"

    def refresh_row(self, row: int) -> None:
        """Draws a row again, if it is on the screen."""
        if not self.wrapped:
            y, height = row - self.first_row, 1
        else:
            ys = [y for y, row_line in enumerate(self.visible_lines()) if row_line.row == row]
            y, height = (ys[0], len(ys)) if ys else (-1, 0)
        if 0 <= y < self.page:
            self.refresh(Region(0, y + self._head_height, self.width, height))

    def refresh_rows(self, rows: Sequence[int]) -> None:
        """Draws again `rows`, all on the screen and in increasing order. Draws adjacent rows together."""
        if self.wrapped:
            for row in rows:
                self.refresh_row(row)
            return
        run_start = 0  # the index of the first of the adjacent rows
        for index, row in enumerate(rows):
            is_last_of_run = index + 1 == len(rows) or rows[index + 1] != row + 1
            if is_last_of_run:
                y = rows[run_start] - self.first_row + self._head_height
                self.refresh(Region(0, y, self.width, row - rows[run_start] + 1))
                run_start = index + 1

    def refresh_edges(self) -> None:
        if self._head_height:
            self.refresh(Region(0, 0, self.width, self._head_height))
        height = self.size.height
        if self._foot_height:
            self.refresh(Region(0, height - self._foot_height, self.width, self._foot_height))

    # ---- moving --------------------------------------------------------------------------------------------------

    def move_to(self, row: int, *, notify: bool = True) -> None:
        """Moves the cursor to `row` and scrolls to it. With `notify`, calls `after_move` if the cursor changed its row.

        A row out of range stands for the first or the last row.
        """
        self.end_selection()
        before, self.cursor = self.cursor, max(0, min(row, self.row_count - 1))
        self._scroll_to_cursor()
        if before == self.cursor:
            return
        self.refresh_row(before)
        self.refresh_row(self.cursor)
        self.refresh_edges()
        if notify:
            self.after_move()

    def after_move(self) -> None:
        """Posts `Moved`. A subclass may do more after the cursor has moved."""
        self.post_message(self.Moved(self, self.cursor))

    def _scroll_to_cursor(self) -> None:
        """Scrolls as little as possible so that the cursor's row is on the screen."""
        first, page = self.first_row, self.page
        if self.wrapped and self.row_count:
            self._scroll_top(top_to_show(self.cursor, self.top, page, self.row_height))
            return
        if self.cursor < first:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= first + page:
            self.scroll_to(y=self.cursor - page + 1, animate=False, force=True)

    def _scroll_top(self, top: RowLine) -> None:
        """Scrolls so that `top` is on the first screen line."""
        if top != self.top:
            self._wrapped_top = top
            self.scroll_to(y=top.row, animate=False, force=True)
            self.refresh()

    def keep_cursor_at(self, offset: int) -> None:
        """Scrolls so that the cursor is `offset` rows below the first row on the screen."""
        self.scroll_to(y=max(0, self.cursor - offset), animate=False, force=True)
        if self.wrapped:
            self._scroll_to_cursor()

    def center(self, row: int, *, notify: bool = True) -> None:
        """Moves the cursor to `row`. If the row is not on the screen, scrolls it to the middle."""
        if row not in self.rows_on_screen():
            if self.wrapped:
                self._scroll_top(line_above(RowLine(min(row, self.row_count - 1)), self.page // 2, self.row_height))
            else:
                self.scroll_to(y=max(0, row - self.page // 2), animate=False, force=True)
        self.move_to(row, notify=notify)

    def move_down(self) -> None:
        if not self._scroll_inside_row(1):
            self.move_to(self.cursor + 1)

    def move_up(self) -> None:
        if not self._scroll_inside_row(-1):
            self.move_to(self.cursor - 1)

    def _scroll_inside_row(self, lines: int) -> bool:
        """Scrolls by `lines` (1 or -1) inside the cursor's row if the row is longer than the screen.

        Returns whether it scrolled: it does not at the end of the row.
        """
        top = self.top
        if not self.wrapped or top.row != self.cursor or not self.row_count:
            return False
        new_line, last_top_line = top.line + lines, self.row_height(self.cursor) - self.page
        if not 0 <= new_line <= last_top_line:
            return False
        self._scroll_top(RowLine(self.cursor, new_line))
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
        """Scrolls by `rows` and moves the cursor by as many, so that it stays on its screen line if possible.

        With `wrapped`, scrolls by as many screen lines instead.
        """
        if self.wrapped and self.row_count:
            self._move_lines(rows)
            return
        self.scroll_to(y=self.first_row + rows, animate=False, force=True)
        self.move_to(self.cursor + rows)

    def _move_lines(self, lines: int) -> None:
        """Scrolls by `lines` screen lines, and moves the cursor to the row that is then on its screen line."""
        old_top, rows = self.top, [row_line.row for row_line in self.visible_lines()]
        cursor_y = rows.index(self.cursor) if self.cursor in rows else 0
        top = scroll_top(old_top, lines, self.page, self.row_count, self.row_height)
        if top == old_top:
            self.move_to(self.row_count - 1 if lines > 0 else 0)
            return
        self._scroll_top(top)
        row_lines = self.visible_lines()
        self.move_to(row_lines[min(cursor_y, len(row_lines) - 1)].row)

    def row_line_at(self, y: int) -> RowLine | None:
        """The row line at line `y` of the widget, `None` if no row is there."""
        line, row_lines = y - self._head_height, self.visible_lines()
        return row_lines[line] if 0 <= line < min(self.page, len(row_lines)) else None

    def row_at(self, y: int) -> int:
        """The row at line `y` of the widget, -1 if no row is there."""
        row_line = self.row_line_at(y)
        return row_line.row if row_line is not None else -1

    # ---- the selection of several rows ---------------------------------------------------------------------------

    @property
    def selected_range(self) -> range:
        """The selected rows: the row of the cursor, or those between it and the row at which the selection starts."""
        anchor = self.cursor if self._anchor < 0 else min(self._anchor, self.row_count - 1)
        return range(min(anchor, self.cursor), max(anchor, self.cursor) + 1)

    def extend_selection(self, row: int) -> None:
        """Moves the cursor to `row`, and extends the selection to it. A new selection starts at the old cursor."""
        anchor = self._anchor if self._anchor >= 0 else self.cursor
        self.move_to(row)
        self._anchor = anchor
        self.refresh()

    def end_selection(self) -> None:
        """Selects only the row of the cursor."""
        if self._anchor >= 0:
            self._anchor = -1
            self.refresh()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        offset = event.get_content_offset(self)
        self._was_dragged = False
        if self.selects_rows and event.button == 1 and offset is not None:
            self._pressed_row = self.row_at(offset.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """While the button is pressed, selects the rows from the pressed one to the row under the mouse.

        If the mouse is above or below the rows, the selection grows by one row, and the view scrolls.
        """
        if self._pressed_row < 0:
            return
        y = event.y - self.gutter.top
        row = self.row_at(y)
        if row < 0:
            row = self.cursor - 1 if y < self._head_height else self.cursor + 1
        if not self._was_dragged and row != self._pressed_row:
            self._was_dragged = True
            self.capture_mouse()
            self.move_to(self._pressed_row)
        if self._was_dragged:
            self.extend_selection(max(0, min(row, self.row_count - 1)))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self._pressed_row = -1
        self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        if self._was_dragged:
            return  # the end of a drag
        offset = event.get_content_offset(self)
        if offset is not None and offset.y == self._head_height - 1:
            self.head_clicked(offset.x)
        row = self.row_at(offset.y) if offset else -1
        if row < 0:
            return
        self.move_to(row)
        if event.chain == 2:
            self.post_message(self.DoubleClicked(self, row))

    # ---- search: see `SearchedView` ------------------------------------------------------------------------------

    @cached_property
    def search(self) -> ViewSearch:
        return ViewSearch(self, self)

    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        texts = [self.row_text(row) for row in range(self.row_count)]
        return FoundLines(matching_lines(texts, pattern, joined=self.has_broken_lines))

    async def request_lines(self, pattern: Pattern) -> FoundLines | None:
        raise NotImplementedError  # Not called, because `find_lines` returns the lines.

    def line_of(self, row: int) -> int:
        """The number of a row's line in searches. A subclass that folds lines has more lines than rows."""
        return row

    @property
    def search_line(self) -> int:
        return self.line_of(self.cursor)

    def preview_match(self, line: int) -> None:
        self.center(line, notify=False)

    def go_to_match(self, line: int) -> None:
        self.center(line)

    def reading_position(self) -> object:
        return self.cursor, self.top

    def restore_reading_position(self, position: Any) -> None:
        cursor, top = position
        self.move_to(cursor, notify=False)
        if self.wrapped:
            self._scroll_top(top)
        else:
            self.scroll_to(y=top.row, animate=False, force=True)

    def redraw_matches(self) -> None:
        self.refresh()

    def report_search(self, text: str) -> None:
        self.post_message(self.Searched(self, text))
