"""A screen that shows one of several plots, with a cursor that moves from point to point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from buddy.app.reports import formatting
from buddy.app.reports.formatting import Glyphs
from buddy.app.reports.plots import Plot
from buddy.app.screens.modal import ReadOnlyScreen
from buddy.app.widgets.look import CellLine, Cells, cut_cells
from buddy.app.widgets.plot_view import SERIES_ROLES, ZOOM_FACTOR, PlotView
from buddy.app.widgets.prompt import Prompt

# The step of the cursor for a page key, in points.
PAGE_POINTS = 20
# The step of the cursor for home and end: more points than any series has.
ALL_POINTS = 1_000_000


class PlotScreen(ReadOnlyScreen[str | None]):
    """Shows plots, at first the one with the index `first_index`. Returns the name of the chosen point, or `None`.

    `enter` chooses the point under the cursor. `choose_hint` describes what then happens, such as "goes to the node".
    If it is empty, points cannot be chosen.
    """

    # Textual must focus nothing: only the prompt takes focus, when it is opened.
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("l,right", "step(1)", show=False),
        Binding("h,left", "step(-1)", show=False),
        Binding("ctrl+f,pagedown", f"step({PAGE_POINTS})", show=False),
        Binding("ctrl+b,pageup", f"step({-PAGE_POINTS})", show=False),
        Binding("home", f"step({-ALL_POINTS})", show=False),
        Binding("G,end", f"step({ALL_POINTS})", show=False),
        Binding("j,down,tab", "next_series(1)", show=False, priority=True),
        Binding("k,up,shift+tab", "next_series(-1)", show=False, priority=True),
        Binding("right_square_bracket", "next_plot(1)", show=False),
        Binding("left_square_bracket", "next_plot(-1)", show=False),
        Binding("slash", "search", "Search", show=False),
        Binding("n", "step_search(1)", "Next match", show=False),
        Binding("N", "step_search(-1)", "Previous match", show=False),
        Binding("plus,equals_sign", "zoom_in", show=False),
        Binding("minus", "zoom_out", show=False),
        Binding("0", "reset_zoom", show=False),
        Binding("L", "toggle_log", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, plots: Sequence[Plot], glyphs: Glyphs, *, choose_hint: str = "", first_index: int = 0) -> None:
        super().__init__()
        self._plots, self._glyphs, self._choose_hint = list(plots), glyphs, choose_hint
        self._plot_index = first_index
        self._view = PlotView(self._plots[first_index], glyphs, plain=glyphs is formatting.ASCII)

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="plot"):
            yield CellLine(self._legend, id="legend-line")
            yield self._view
            yield CellLine(self._point_line, id="point")
            yield CellLine(self._note_line, id="note")
            yield Prompt()

    def on_mount(self) -> None:
        self._update_titles()

    @property
    def plot(self) -> Plot:
        return self._view.plot_data

    def _update_titles(self) -> None:
        """Shows the title of the plot at the top of the box, and the keys that fit at the bottom."""
        box = self.query_one("#box")
        position = f" ({self._plot_index + 1} of {len(self._plots)})" if len(self._plots) > 1 else ""
        box.border_title = self.plot.title + position
        keys = [f"enter {self._choose_hint}"] if self._choose_hint else []
        keys += ["h l points", "j k series"]
        keys += ["[ ] plots"] if len(self._plots) > 1 else []
        keys += ["/ searches", "+ - 0 zoom", "L log scale", "y copies", "q closes"]
        box.border_subtitle = formatting.join_fitting(keys, ", ", max(self.app.size.width - 12, 20))

    # ---- the lines around the plot -------------------------------------------------------------------------------

    def _legend(self, width: int) -> Cells:
        """The label of the vertical axis, and the mark of each series. The current series is highlighted."""
        axis = self.plot.y
        cells: Cells = [(f" {axis.label}{' (log)' if axis.log else ''}  ", "dim")]
        for number, series in enumerate(self.plot.series):
            mark = self._glyphs.bar if series.kind == "bars" else self._glyphs.marks[number % len(self._glyphs.marks)]
            is_current = number == self._view.series and len(self.plot.series) > 1
            cells += [(">" if is_current else " ", "key"), (f"{mark} ", SERIES_ROLES[number % len(SERIES_ROLES)])]
            cells.append((f"{series.label}  ", "title" if is_current else "dim"))
        return cut_cells(cells, width)

    def _point_line(self, width: int) -> Cells:
        """The number, name and values of the point under the cursor."""
        point, series = self._view.point, self._view.current_series
        if point is None or series is None:
            return [(" nothing to plot", "dim")]
        x, y = self._view.format_point(point)
        name = series.names[point.number] if point.number < len(series.names) else ""
        cells: Cells = [(f" {point.number + 1}/{len(series.x)} ", "dim")]
        cells += [(f"{name}  ", "title")] if name and name != x else []
        cells += [(f"{self.plot.x.label} {x}  ".lstrip(), "text"), (f"{self.plot.y.label} {y}".lstrip(), "accent")]
        return cut_cells(cells, width)

    def _note_line(self, width: int) -> Cells:
        """The number of points that cannot be drawn, and the note of the plot."""
        count = self._view.omitted_count
        reason = "below 0 or not finite" if self.plot.y.log else "not finite"
        omitted = f"{count} point{'s' * (count > 1)} left out: {reason}" if count else ""
        parts = [part for part in (omitted, self.plot.note) if part]
        return [(" " + formatting.clip(f" {self._glyphs.dot} ".join(parts), width - 1, self._glyphs), "dim")]

    def on_plot_view_moved(self) -> None:
        self._update_lines()

    def _update_lines(self) -> None:
        for line in self.query(CellLine):
            line.update()

    # ---- search --------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        self._view.search.ask(self.query_one(Prompt))

    def action_step_search(self, by: int) -> None:
        self._view.search.step(by)

    def on_plot_view_searched(self, event: PlotView.Searched) -> None:
        """Shows the pattern and the count instead of the keys, until the search ends."""
        self._update_titles()
        if event.text:
            keys = ", n N next and previous match" if self._view.search.matches.lines else ""
            self.query_one("#box").border_subtitle = f"{event.text}{keys}"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Called by Textual before an action: disables the priority bindings of series while the prompt is open."""
        return action != "next_series" or not self.query_one(Prompt).display

    # ---- keys ----------------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        self._view.step(by)

    def action_next_series(self, by: int) -> None:
        self._view.next_series(by)

    def action_zoom_in(self) -> None:
        self._view.zoom(1 / ZOOM_FACTOR)

    def action_zoom_out(self) -> None:
        self._view.zoom(ZOOM_FACTOR)

    def action_reset_zoom(self) -> None:
        self._view.reset_zoom()

    def action_toggle_log(self) -> None:
        if self.plot.has_bars:
            self.app.bell()
            return
        self._view.toggle_log()
        self._plots[self._plot_index] = self.plot
        self._update_lines()

    def action_next_plot(self, by: int) -> None:
        self._plot_index = (self._plot_index + by) % len(self._plots)
        self._view.show(self._plots[self._plot_index])
        self._update_titles()
        self._update_lines()

    def action_choose(self) -> None:
        point, series = self._view.point, self._view.current_series
        if self._choose_hint and point is not None and series is not None and point.number < len(series.names):
            self.dismiss(series.names[point.number])

    def action_copy(self) -> None:
        """Copies all points as a table: one point per line, with tabs between the columns."""
        lines = ["\t".join(("series", "name", self.plot.x.label or "x", self.plot.y.label or "y"))]
        for series in self.plot.series:
            # A series may have names for its first points only.
            names = [*series.names, *[""] * (len(series.x) - len(series.names))]
            points = zip(names, series.x, series.y, strict=False)
            lines += [f"{series.label}\t{name}\t{x!r}\t{y!r}" for name, x, y in points]
        self.app.copy_to_clipboard("\n".join(lines))
