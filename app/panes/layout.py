"""The layout of the workbench: which panes are visible, and which one has focus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.app import App
from textual.widget import Widget

from buddy.app import actions
from buddy.app.panes.jobs import Status

# With fewer columns, only one pane is visible; with more, the wide layout is used.
MIN_WIDTH_OF_SEVERAL_PANES = 100
MIN_WIDE_WIDTH = 140
# With fewer columns but at least this many lines, the source pane stays below the only pane.
MIN_HEIGHT_OF_SPLIT = 20


class Layout:
    """Shows all panes or, on a narrow screen or when zoomed, only the pane that has focus, `pane_id`.

    On a narrow but high screen, the source pane, if it is turned on, is shown below that pane. `shows_source` and
    `shows_plugin` tell whether these panes are turned on. `panes` are the widgets to arrange, by their ids; the
    application sets them before it runs.
    """

    def __init__(self, app: App[Any], status: Status) -> None:
        self._app, self._status = app, status
        self.panes: Mapping[actions.Pane, Widget] = {}
        self.pane_id: actions.Pane = "graph"
        self.zoomed = False
        self.shows_source = self.shows_plugin = False
        # Titles that replace those of `PANE_TITLES`.
        self.titles: dict[actions.Pane, str] = {}
        # The last pane that had focus, other than the source pane. On a split screen, it is above the source pane.
        self._pane_above_source: actions.Pane = "graph"

    @property
    def visible_order(self) -> tuple[actions.Pane, ...]:
        """The panes that are not turned off, in tab order."""
        hidden = {"source": not self.shows_source, "plugin": not self.shows_plugin}
        return tuple(pane for pane in actions.PANES if not hidden.get(pane, False))

    @property
    def shows_one_pane(self) -> bool:
        """Whether only the pane that has focus is shown, apart from the source pane below it."""
        return self._app.screen_stack[0].has_class("-folded")

    def arrange(self, width: int | None = None, height: int | None = None) -> None:
        """Set the CSS classes of screen, columns and panes that `workbench.tcss` arranges them by, and the titles.

        The default for `width` and `height`, in cells, is the size of the screen.
        """
        width, height = width or self._app.size.width, height or self._app.size.height
        screen = self._app.screen_stack[0]
        narrow = width < MIN_WIDTH_OF_SEVERAL_PANES
        is_split = narrow and self.shows_source and not self.zoomed and height >= MIN_HEIGHT_OF_SPLIT
        if self.pane_id != "source":
            self._pane_above_source = self.pane_id
        # The panes that are visible if only one or two are.
        shown = {self._pane_above_source, "source"} if is_split else {self.pane_id}
        screen.set_class(narrow or self.zoomed, "-folded")
        screen.set_class(is_split, "-split")
        screen.set_class(width >= MIN_WIDE_WIDTH, "-wide")
        screen.set_class(self.shows_source, "-source")
        screen.set_class(self.shows_plugin, "-plugin")
        for pane_id, pane in self.panes.items():
            pane.set_class(pane_id in shown, "-shown")
            pane.border_title = "" if self.shows_one_pane and not is_split else self.title_of(pane_id)
        for side in ("left", "right"):
            column = screen.query_one(f"#{side}")
            in_column = {pane_id for pane_id in shown if self.panes[pane_id].parent is column}
            column.set_class(bool(in_column), "-shown")
            column.set_class(in_column == {"source"} and is_split, "-strip")

    def title_of(self, pane: actions.Pane) -> str:
        """The title in the border of a pane."""
        return self.titles.get(pane, actions.PANE_TITLES[pane])

    def note_focus(self, pane: actions.Pane) -> None:
        """Update the layout after a pane has got focus without `show_pane`, for example by the mouse."""
        if pane != self.pane_id:
            self.pane_id = pane
            self.arrange()

    # ---- actions -------------------------------------------------------------------------------------------------

    def show_pane(self, pane: actions.Pane) -> None:
        """Focus a pane, and show it if only one pane is shown."""
        self.pane_id = pane
        self.arrange()
        self._focus()
        self._status.redraw()

    def _focus(self) -> None:
        """Move the focus at once, because the next key belongs to this pane."""
        pane = self.panes[self.pane_id]
        pane.screen.set_focus(pane)

    def next_pane(self) -> None:
        """Focus the next pane in tab order; after the last one, the first."""
        self._focus_neighbour(1)

    def previous_pane(self) -> None:
        """Focus the previous pane in tab order; before the first one, the last."""
        self._focus_neighbour(-1)

    def _focus_neighbour(self, offset: int) -> None:
        index = self.visible_order.index(self.pane_id)
        self.show_pane(self.visible_order[(index + offset) % len(self.visible_order)])

    def toggle_source(self) -> None:
        """Show or hide the source pane."""
        self.shows_source = not self.shows_source
        if not self.shows_source and self.pane_id == "source":
            self.show_pane(self._pane_above_source)
            return
        self.arrange()
        if self.shows_source and self.shows_one_pane and not self.panes["source"].has_class("-shown"):
            self.show_pane("source")

    def show_plugin(self) -> None:
        """Show the plug-in pane, and focus it."""
        self.shows_plugin = True
        self.show_pane("plugin")

    def hide_plugin(self) -> None:
        """Hide the plug-in pane. If it has focus, focus the IR pane, or the pane that had focus before."""
        self.shows_plugin = False
        self._pane_above_source = "ir" if self._pane_above_source == "plugin" else self._pane_above_source
        if self.pane_id == "plugin":
            self.show_pane(self._pane_above_source)
        self.arrange()

    def toggle_zoom(self) -> None:
        """Show only the pane that has focus, or all panes again."""
        self.zoomed = not self.zoomed
        self.arrange()
        self._focus()
