"""The screen lines of a list: which row is on which line, caches of drawn rows and lines, and the scrollbar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from textual._styles_cache import StylesCache
from textual.css.styles import StylesBase
from textual.geometry import Region, Size
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget

# The maximum number of framed lines in the cache of a widget, as a multiple of its height: each line takes kilobytes.
FRAMED_HEIGHTS = 2
# Returns the number of screen lines of a row, at least one.
RowHeight = Callable[[int], int]


class RowLine(NamedTuple):
    """A screen line of a row: the number of the row, and the number of the line in the row. Both start at 0."""

    row: int
    line: int = 0


def lines_below(top: RowLine, lines: int, count: int, height_of: RowHeight) -> list[RowLine]:
    """Returns the row lines on `lines` screen lines, the first being `top`; fewer if the `count` rows end before."""
    row_lines: list[RowLine] = []
    row, line = top
    while row < count and len(row_lines) < lines:
        row_lines += [RowLine(row, number) for number in range(line, height_of(row))][: lines - len(row_lines)]
        row, line = row + 1, 0
    return row_lines


def line_above(start: RowLine, lines: int, height_of: RowHeight) -> RowLine:
    """Returns the row line `lines` screen lines above `start`, or the first row line if there are fewer."""
    row, line = start
    while lines > line and row > 0:
        lines -= line + 1
        row -= 1
        line = height_of(row) - 1
    return RowLine(row, max(0, line - lines))


def top_to_show(row: int, top: RowLine, page: int, height_of: RowHeight) -> RowLine:
    """Returns the scroll position nearest to `top` at which `page` lines show the whole `row`, or as much as fits."""
    row_height = height_of(row)
    if row_height > page:
        return RowLine(row, min(top.line, row_height - page) if top.row == row else 0)
    lowest_top = RowLine(row)
    highest_top = line_above(RowLine(row, row_height - 1), page - 1, height_of)
    return max(highest_top, min(top, lowest_top))


def scroll_top(top: RowLine, lines: int, page: int, count: int, height_of: RowHeight) -> RowLine:
    """Returns the scroll position `lines` screen lines below `top` (above `top` if `lines` is negative).

    Scrolling down ends at the last page of `page` lines of the `count` rows. If `top` is beyond it, returns `top`.
    """
    if lines <= 0:
        return line_above(top, -lines, height_of)
    last_top = line_above(RowLine(count - 1, height_of(count - 1) - 1), page - 1, height_of)
    new_top = lines_below(top, lines + 1, count, height_of)[-1]
    return max(top, min(last_top, new_top))


class DrawnRows:
    """Caches the strips of the rows on the screen, so that scrolling draws only the rows that come into sight."""

    def __init__(self) -> None:
        self._strips: dict[int, Strip] = {}

    def get(self, row: int) -> Strip | None:
        """Returns the strip of a row, `None` if it must be drawn."""
        return self._strips.get(row)

    def put(self, row: int, strip: Strip) -> None:
        self._strips[row] = strip

    def forget(self, rows: range | None = None) -> None:
        """Forgets the strips of `rows`; `None` forgets all."""
        if rows is None:
            self._strips.clear()
        else:
            for row in rows:
                self._strips.pop(row, None)

    def keep_only(self, rows: range) -> None:
        """Forgets the strips of all other rows: they may change while they are out of sight."""
        self._strips = {row: strip for row, strip in self._strips.items() if row in rows}


class FramedLines(StylesCache):
    """Textual's cache of the lines of a widget, which puts the border around a strip only once.

    Textual caches lines by position, so it frames each line again after scrolling. This cache uses the strip in the
    frame as key. It returns the same `Strip` object each time, and so keeps what Textual caches in that object.
    """

    def __init__(self) -> None:
        super().__init__()
        # The lines of border and padding above and below the content.
        self._top = self._bottom = 0
        # By the `id` of a strip: the strip, stored so that Python does not reuse its `id`, and its framed strip.
        self._framed: dict[int, tuple[Strip, Strip]] = {}

    def clear(self) -> None:
        super().clear()
        self._framed.clear()

    def render_widget(self, widget: Widget, crop: Region) -> list[Strip]:
        gutter = widget.styles.gutter
        self._top, self._bottom = gutter.top, gutter.bottom
        return super().render_widget(widget, crop)

    def render_line(
        self,
        styles: StylesBase,
        y: int,
        size: Size,
        content_size: Size,
        padding: Any,
        base_background: Any,
        background: Any,
        render_content_line: Callable[[int], Strip],
        *rest: Any,
    ) -> Strip:
        """Called by Textual for line `y` of the widget. Does not cache lines of the border and of the padding."""
        settings = (size, content_size, padding, base_background, background)
        if not self._top <= y < min(size.height - self._bottom, self._top + content_size.height):
            return super().render_line(styles, y, *settings, render_content_line, *rest)
        strip = render_content_line(y - self._top)
        cached = self._framed.get(id(strip))
        if cached is None:
            framed = super().render_line(styles, y, *settings, lambda _: strip, *rest)
            cached = self._framed[id(strip)] = (strip, framed)
            if len(self._framed) > FRAMED_HEIGHTS * size.height:
                del self._framed[next(iter(self._framed))]
        return cached[1]


# ---- scrollbar -------------------------------------------------------------------------------------------------------


class WholeCellScrollBar(ScrollBarRender):
    """A scrollbar of whole cells: some terminals lack the glyphs for parts of a cell."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]

    @staticmethod
    def first_cell(bar: ScrollBar, position: float) -> int:
        """Returns the first cell of the thumb of `bar` if the first visible line of the view is `position`."""
        hidden_lines, bar_height = bar.window_virtual_size - bar.window_size, bar.size.height
        thumb_height = max(1, bar.window_size * bar_height / max(bar.window_virtual_size, 1))
        return int((bar_height - thumb_height) * position / hidden_lines) if hidden_lines > 0 else 0
