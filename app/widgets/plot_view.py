"""A plot with a cursor on one of its points, drawn by textual-plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Static
from textual_hires_canvas import Canvas, HiResMode
from textual_plot import PlotWidget
from textual_plot.axis_formatter import AxisFormatter
from textual_plot.plot_widget import VLinePlot

from buddy.app.reports.formatting import Glyphs
from buddy.app.reports.plots import Plot, PlotPoint, PlotScale, Series, scales, thin_points, visible_points
from buddy.app.reports.text.search_hits import Pattern, matching_lines
from buddy.app.widgets.look import look_of
from buddy.app.widgets.search import FoundLines, ViewSearch

# The colour of each series, as a role or syntax name of the theme. Series also differ in their marks.
SERIES_ROLES = ("accent", "warn", "ok", "syntax:keyword", "removed", "syntax:type")
# The factor by which a zoom step changes the visible range.
ZOOM_FACTOR = 1.5
# The width of a label on the horizontal axis with the space after it, in cells.
LABEL_WIDTH = 12
# The margins of the vertical and the horizontal range, as a share of the range.
_Y_MARGIN, _X_MARGIN = 0.05, 0.01
# The width of a bar, as a share of the distance between bars.
_BAR_WIDTH = 0.8


class PlainCanvas(Canvas):
    """A canvas that draws lines and blocks in ASCII."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        return Strip([segment._replace(text=_to_ascii(segment.text)) for segment in strip], strip.cell_length)


class Ticks(AxisFormatter):
    """Places at most `max_ticks` ticks (2, if that is less) at the values that `scale` selects.

    Ignores the limit that textual-plot passes to `get_ticks`, which does not depend on the size of the plot.
    """

    def __init__(self, scale: PlotScale, max_ticks: int) -> None:
        self._scale, self._max_ticks = scale, max(max_ticks, 2)

    # Textual-plot decides the names of the parameters.
    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        return self._scale.ticks(min_, max_, self._max_ticks)

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        return [self._scale.label_at(tick)[: LABEL_WIDTH - 1] for tick in ticks]


class PlotView(PlotWidget, can_focus=False):
    """Draws a `Plot` with a cursor on one point. `series` is the number, from 0, of the series that has the cursor.

    Points that a scale cannot draw, such as NaN, are left out. The view handles no keys: a screen calls `step`,
    `next_series`, `zoom` and `reset_zoom`. With `plain`, it draws in ASCII.
    """

    margin_top = 0
    BINDINGS: ClassVar[list[BindingType]] = []

    class Moved(Message):
        """The cursor moved to another point."""

    class Searched(Message):
        """A search has ended, or has gone to a match. `text` is the pattern and the count, or why there is no match."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, plot: Plot, glyphs: Glyphs, *, plain: bool = False) -> None:
        super().__init__(allow_pan_and_zoom=False)
        self._glyphs, self._plain = glyphs, plain
        self.series = 0
        self._set_plot(plot)
        self.search = ViewSearch(self, self)

    def _set_plot(self, plot: Plot) -> None:
        """Sets the plot with its full range visible, and the cursor on the first point of the series `series`.

        If that has no points, the cursor goes to the first series that has points.
        """
        self.plot_data = plot
        self._x_scale, self._y_scale = scales(plot)
        # For each series, the points that the scales can draw.
        self._points = [visible_points(series, self._x_scale, self._y_scale) for series in plot.series]
        # The index of the cursor's point in `_current_points`.
        self._cursor = 0
        # The visible part of the horizontal axis, `None` for all of it.
        self._visible_range: tuple[float, float] | None = None
        if not self._current_points and any(self._points):
            self.series = next(number for number, points in enumerate(self._points) if points)

    def show(self, plot: Plot) -> None:
        """Shows another plot, with the cursor on the first point of the first series that has points."""
        self.series = 0
        self._set_plot(plot)
        self.search.repeat()
        self._update_after_move()

    def toggle_log(self) -> None:
        """Switches the vertical axis between linear and logarithmic. The cursor stays on its point if possible."""
        point, series = self.point, self.series
        self._set_plot(self.plot_data.with_log(not self.plot_data.y.log))
        self.search.repeat()
        self.series = series
        # A logarithmic scale cannot draw all points. If it lacks this one, the cursor moves to the next point.
        candidates = enumerate(self._current_points)
        self._cursor = next((index for index, other in candidates if point and other.number >= point.number), 0)
        self._update_after_move()

    # ---- the cursor ----------------------------------------------------------------------------------------------

    @property
    def _current_points(self) -> list[PlotPoint]:
        """The drawn points of the series that has the cursor."""
        return self._points[self.series] if self.series < len(self._points) else []

    @property
    def point(self) -> PlotPoint | None:
        """The point under the cursor; `None` if no point is drawn."""
        return self._current_points[self._cursor] if self._cursor < len(self._current_points) else None

    @property
    def current_series(self) -> Series | None:
        """The series of the point under the cursor; `None` if no point is drawn."""
        return self.plot_data.series[self.series] if self._current_points else None

    @property
    def omitted_count(self) -> int:
        """The number of points that the scales cannot draw."""
        return sum(len(series.x) for series in self.plot_data.series) - sum(map(len, self._points))

    def format_point(self, point: PlotPoint, number: int | None = None) -> tuple[str, str]:
        """The x and y values of a point of series `number` (`None`: the current series), formatted by the axes."""
        series = self.plot_data.series[self.series if number is None else number]
        names, x = self.plot_data.x.names, series.x[point.number]
        x_text = names[round(x)] if names else self.plot_data.x.format(x)
        return x_text, self.plot_data.y.format(series.y[point.number])

    def step(self, by: int) -> None:
        """Moves the cursor by `by` points of the series, at most to its first or last point."""
        self._cursor = max(0, min(self._cursor + by, len(self._current_points) - 1))
        self._update_after_move()

    def next_series(self, by: int) -> None:
        """Moves the cursor `by` series further, wrapping around at the end, to the point with the nearest x."""
        point, drawn_series = self.point, [number for number, points in enumerate(self._points) if points]
        if point is None or len(drawn_series) < 2:
            return
        self.series = drawn_series[(drawn_series.index(self.series) + by) % len(drawn_series)]
        points = self._current_points
        self._cursor = min(range(len(points)), key=lambda index: abs(points[index].x - point.x))
        self._update_after_move()

    def zoom(self, factor: float) -> None:
        """Scales the visible range of the horizontal axis by `factor`, centered at the cursor; less than 1 zooms in."""
        low, high = self._x_range()
        middle = self.point.x if self.point else (low + high) / 2
        full_low, full_high = self._full_x_range()
        width = (high - low) * factor
        self._visible_range = None if width >= full_high - full_low else (middle - width / 2, middle + width / 2)
        self._draw()

    def reset_zoom(self) -> None:
        self._visible_range = None
        self._draw()

    def _update_after_move(self) -> None:
        """Draws again, and posts `Moved`. If the cursor has left the visible range, centers the range at the cursor."""
        low, high = self._x_range()
        if self._visible_range is not None and self.point is not None and not low <= self.point.x <= high:
            half = (high - low) / 2
            self._visible_range = (self.point.x - half, self.point.x + half)
        self._draw()
        self.post_message(self.Moved())

    # ---- search: see `SearchedView`; its lines are the points of all series -----------------------------------------

    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        return FoundLines(matching_lines([self._point_text(*point) for point in self._point_indices], pattern))

    async def request_lines(self, pattern: Pattern) -> FoundLines | None:
        raise NotImplementedError  # Not called, because `find_lines` returns the lines.

    @property
    def _point_indices(self) -> list[tuple[int, int]]:
        """The number of the series and the index of each drawn point, in the order of the lines of a search."""
        return [(number, index) for number, points in enumerate(self._points) for index in range(len(points))]

    def _point_text(self, number: int, index: int) -> str:
        """The name of the drawn point `index` of series `number`, and its values."""
        series, point = self.plot_data.series[number], self._points[number][index]
        name = series.names[point.number] if point.number < len(series.names) else ""
        return "  ".join((name, *self.format_point(point, number)))

    @property
    def search_line(self) -> int:
        return sum(map(len, self._points[: self.series])) + self._cursor

    def preview_match(self, line: int) -> None:
        self.go_to_match(line)

    def go_to_match(self, line: int) -> None:
        self._go_to(*self._point_indices[line])

    def _go_to(self, series: int, index: int) -> None:
        self.series, self._cursor = series, index
        self._update_after_move()

    def reading_position(self) -> object:
        return self.series, self._cursor, self._visible_range

    def restore_reading_position(self, position: Any) -> None:
        series, index, self._visible_range = position
        self._go_to(series, index)

    def redraw_matches(self) -> None:
        """A plot shows only the current match."""

    def report_search(self, text: str) -> None:
        self.post_message(self.Searched(text))

    # ---- drawing -------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        canvas = PlainCanvas if self._plain else Canvas
        with Grid():
            for name in ("margin-top", "margin-left", "plot", "margin-bottom"):
                yield canvas(1, 1, id=name)
        yield Static(id="legend")

    def on_mount(self) -> None:
        self._set_bottom_margin()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _set_bottom_margin(self) -> None:
        """Reserves a line below the plot for tick labels, and two more for the label of the axis if it has one."""
        self.margin_bottom = 3 if self.plot_data.x.label else 1

    @property
    def columns(self) -> int:
        """The width of the plot without axes and frame, in cells."""
        return max(8, self.size.width - self.margin_left - 2)

    @property
    def _rows(self) -> int:
        """The height of the plot without axes and frame, in cells."""
        return max(4, self.size.height - self.margin_bottom - 2)

    def _full_x_range(self) -> tuple[float, float]:
        """The horizontal range of all points, with a margin for bars and marks at its ends."""
        xs = [point.x for points in self._points for point in points] or [0.0, 1.0]
        left, right = min(xs), max(xs)
        # Bars are 1 apart.
        margin = 0.5 if self.plot_data.has_bars or left == right else (right - left) * _X_MARGIN
        return left - margin, right + margin

    def _x_range(self) -> tuple[float, float]:
        return self._visible_range or self._full_x_range()

    def _y_range(self, low: float, high: float) -> tuple[float, float]:
        """The vertical range of the points between x = `low` and `high`, with a margin that does not go below 0."""
        ys = [point.y for points in self._points for point in points if low <= point.x <= high] or [0.0, 1.0]
        bottom, top = min(ys), max(ys)
        if self.plot_data.has_bars:
            bottom, top = min(bottom, 0.0), max(top, 0.0)
        # If all values are equal, the margin is a share of the value; 1 if that is 0.
        margin = (top - bottom) * _Y_MARGIN or abs(top) * _Y_MARGIN or 1.0
        lower_limit = 0.0 if bottom >= 0 and not self.plot_data.y.log else -math.inf
        return max(bottom - margin, lower_limit), top + margin

    def _draw(self) -> None:
        """Passes the visible points to textual-plot."""
        if not self.is_mounted or not self.size.area:
            return
        self._set_bottom_margin()
        low, high = self._x_range()
        self.clear()
        self.set_xlimits(low, high)
        self.set_ylimits(*self._y_range(low, high))
        self.set_x_formatter(Ticks(self._x_scale, self.columns // LABEL_WIDTH))
        self.set_y_formatter(Ticks(self._y_scale, self._rows // 2))
        self.set_xlabel(self.plot_data.x.label)
        for number, points in enumerate(self._points):
            self._draw_series(number, thin_points(points, low, high, self.columns))
        if (point := self.point) is not None:
            self.add_v_line(point.x, str(look_of(self.app.theme).style("faint")))

    def _render_v_line_plot(self, vline: VLinePlot) -> None:
        """Draws the vertical line at the cursor, and the cursor's point over the line."""
        super()._render_v_line_plot(vline)
        if (point := self.point) is not None:
            pixel = self.get_pixel_from_coordinate(point.x, point.y)
            mark, style = self._mark(self.series), f"{self._style(self.series)} reverse"
            # Nothing is drawn over the frame: textual-plot draws ticks by changing the characters of the frame.
            if self._scale_rectangle.contains(*pixel):
                self.query_one("#plot", Canvas).set_pixel(*pixel, mark, style)

    def _draw_series(self, number: int, points: list[PlotPoint]) -> None:
        """Draws the points of series `number` as bars, as a line, or as marks; a line of few points also has marks."""
        kind, style = self.plot_data.series[number].kind, self._style(number)
        xs, ys = [point.x for point in points], [point.y for point in points]
        if not points:
            return
        if kind == "bars":
            self.bar(xs, ys, _BAR_WIDTH, style, None if self._plain else HiResMode.HALFBLOCK)
            return
        if kind == "line" and self._plain:
            path = self._path(points)
            self.scatter([x for x, _ in path], [y for _, y in path], ".", style)
        elif kind == "line":
            self.plot(xs, ys, style, HiResMode.BRAILLE)
        if kind == "points" or len(points) <= self.columns // 2:
            self.scatter(xs, ys, self._mark(number), style)

    def _path(self, points: list[PlotPoint]) -> list[tuple[float, float]]:
        """The x and y values of the dots, at most one cell apart, of a dotted line through the points."""
        left, right = self._x_range()
        bottom, top = self._y_range(left, right)
        path = []
        for start, end in pairwise(points):
            dx, dy = end.x - start.x, end.y - start.y
            columns, rows = dx / (right - left) * self.columns, dy / (top - bottom) * self._rows
            # An end far outside of the visible range must not take more dots than the plot has cells on a line.
            dot_count = max(1, min(round(max(abs(columns), abs(rows))), self.columns + self._rows))
            fractions = [dot / dot_count for dot in range(dot_count)]
            path += [(start.x + dx * fraction, start.y + dy * fraction) for fraction in fractions]
        return path

    def _mark(self, number: int) -> str:
        """The character that marks the points of series `number`."""
        return self._glyphs.marks[number % len(self._glyphs.marks)]

    def _style(self, number: int) -> str:
        """The style of series `number` in the current theme."""
        return str(look_of(self.app.theme).style(SERIES_ROLES[number % len(SERIES_ROLES)]))

    # ---- the mouse -----------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self.query_one("#plot", Canvas))
        if offset is None:
            return
        if self._point_indices:
            self._go_to(*min(self._point_indices, key=lambda point: self._distance(point, offset.x, offset.y)))

    def _distance(self, series_and_index: tuple[int, int], x: int, y: int) -> int:
        """The squared distance, in cells, of a drawn point from column `x` and row `y` of the plot."""
        series, index = series_and_index
        point = self._points[series][index]
        point_column, point_row = self.get_pixel_from_coordinate(point.x, point.y)
        return int((point_column - x) ** 2 + (point_row - y) ** 2)

    def on_mouse_scroll_up(self) -> None:
        self.zoom(1 / ZOOM_FACTOR)

    def on_mouse_scroll_down(self) -> None:
        self.zoom(ZOOM_FACTOR)


def _to_ascii(text: str) -> str:
    """Returns `text` with an ASCII character in place of each other character."""
    return "".join(character if character.isascii() else _ascii_character(character) for character in text)


def _ascii_character(character: str) -> str:
    """Returns the ASCII replacement of a character: of a box-drawing one, a line or a crossing; of others, `#`."""
    if not "\u2500" <= character <= "\u257f":
        return "#"
    return {"━": "-", "─": "-", "═": "-", "┃": "|", "│": "|", "║": "|"}.get(character, "+")
