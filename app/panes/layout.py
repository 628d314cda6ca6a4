"""The layout: the visible panes and the pane that has focus. Also the labels of a line of tabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textual.app import App
from textual.widget import Widget

from buddy.app import actions
from buddy.app.panes.jobs import Status
from buddy.app.widgets.look import Cells

# With fewer columns, only one pane is visible; with more, the wide layout is used.
MIN_WIDTH_OF_SEVERAL_PANES = 100
MIN_WIDE_WIDTH = 140
# With fewer columns but at least this many lines, the source pane stays below the only pane.
MIN_HEIGHT_OF_SPLIT = 20


class Layout:
    """Shows all panes or, on a narrow screen or when zoomed, only the pane that has focus, `pane_id`.

    On a narrow screen, the source pane, if it is shown at all, stays below the pane that has or had focus.
    `panes` are the widgets that it arranges, by their ids; the application sets them before it runs.
    """

    def __init__(self, app: App[Any], status: Status) -> None:
        self._app, self._status = app, status
        self.panes: Mapping[actions.Pane, Widget] = {}
        self.pane_id: actions.Pane = "graph"
        self.zoomed = False
        self.with_source = self.with_plugin = False
        # Titles that replace those of `PANE_TITLES`.
        self.titles: dict[actions.Pane, str] = {}
        # The pane that had focus last, other than the source pane.
        self._companion: actions.Pane = "graph"

    @property
    def order(self) -> tuple[actions.Pane, ...]:
        """The panes, in tab order."""
        hidden = {"source": not self.with_source, "plugin": not self.with_plugin}
        return tuple(pane for pane in actions.PANES if not hidden.get(pane, False))

    @property
    def folded(self) -> bool:
        """Whether only one pane is shown."""
        return self._app.screen_stack[0].has_class("-folded")

    def arrange(self, width: int | None = None, height: int | None = None) -> None:
        """Arrange the panes on a screen of `width` cells and `height` lines (default: those of the screen)."""
        width, height = width or self._app.size.width, height or self._app.size.height
        screen = self._app.screen_stack[0]
        narrow = width < MIN_WIDTH_OF_SEVERAL_PANES
        is_split = narrow and self.with_source and not self.zoomed and height >= MIN_HEIGHT_OF_SPLIT
        if self.pane_id != "source":
            self._companion = self.pane_id
        shown = {self._companion, "source"} if is_split else {self.pane_id}
        screen.set_class(narrow or self.zoomed, "-folded")
        screen.set_class(is_split, "-split")
        screen.set_class(width >= MIN_WIDE_WIDTH, "-wide")
        screen.set_class(self.with_source, "-source")
        screen.set_class(self.with_plugin, "-plugin")
        for pane_id, pane in self.panes.items():
            pane.set_class(pane_id in shown, "-shown")
            pane.border_title = "" if self.folded and not is_split else self.title_of(pane_id)
        for side in ("left", "right"):
            column = screen.query_one(f"#{side}")
            in_column = {pane_id for pane_id in shown if self.panes[pane_id].parent is column}
            column.set_class(bool(in_column), "-shown")
            column.set_class(in_column == {"source"} and is_split, "-strip")

    def title_of(self, pane: actions.Pane) -> str:
        return self.titles.get(pane, actions.PANE_TITLES[pane])

    def take_focus(self, pane: actions.Pane) -> None:
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
        self._focus_next(1)

    def previous_pane(self) -> None:
        self._focus_next(-1)

    def _focus_next(self, by: int) -> None:
        index = self.order.index(self.pane_id)
        self.show_pane(self.order[(index + by) % len(self.order)])

    def toggle_source(self) -> None:
        """Show or hide the source pane."""
        self.with_source = not self.with_source
        if not self.with_source and self.pane_id == "source":
            self.show_pane(self._companion)
            return
        self.arrange()
        if self.with_source and self.folded and not self.panes["source"].has_class("-shown"):
            self.show_pane("source")

    def show_plugin(self, shown: bool) -> None:
        """Show the pane of a plug-in, with the focus, or hide it."""
        self.with_plugin = shown
        if shown:
            self.show_pane("plugin")
            return
        self._companion = "ir" if self._companion == "plugin" else self._companion
        if self.pane_id == "plugin":
            self.show_pane(self._companion)
        self.arrange()

    def zoom(self) -> None:
        """Show only the pane that has focus, or all panes again."""
        self.zoomed = not self.zoomed
        self.arrange()
        self._focus()


@dataclass(frozen=True)
class PhaseTab:
    """The tab of a phase. `number` counts from 1. `mark` is `!` if a pass failed, `~` if the text is out of date.

    `has_content` is false for a phase without IR. `role`, if not empty, colours the tab while it is inactive.
    """

    name: str
    number: int
    mark: str = ""
    has_content: bool = True
    role: str = ""

    @property
    def key(self) -> str:
        """The digit key of the phase; `-` beyond the tenth."""
        return str(self.number % 10) if self.number <= 10 else "-"


def tab_labels(tabs: Sequence[PhaseTab], active: str, width: int) -> list[str]:
    """One label per tab, at most `width` characters in total if possible.

    If necessary, tabs lose their names, first those that are farthest from the active tab.
    """
    active_index = next((k for k, tab in enumerate(tabs) if tab.name == active), 0)
    farthest_first = sorted(range(len(tabs)), key=lambda k: abs(k - active_index), reverse=True)
    labels = [_label(tab, active=k == active_index) for k, tab in enumerate(tabs)]
    for k in farthest_first[:-1]:
        if sum(map(len, labels)) <= width:
            break
        labels[k] = _label(tabs[k], with_name=False)
    return labels


def tab_cells(tabs: Sequence[PhaseTab], active: str, width: int) -> Cells:
    """The line of tabs."""
    cells: Cells = []
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        cells.append((label, tab_role(tab, tab.name == active)))
    return cells


def tab_at(tabs: Sequence[PhaseTab], active: str, width: int, x: int) -> PhaseTab | None:
    """The tab that is drawn at column `x`, if any."""
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        x -= len(label)
        if x < 0:
            return tab
    return None


def _label(tab: PhaseTab, *, active: bool = False, with_name: bool = True) -> str:
    text = f"{tab.key} {tab.name}{tab.mark}" if with_name else f"{tab.key}{tab.mark}"
    return f"[{text}]" if active else f" {text} "


def tab_role(tab: PhaseTab, active: bool) -> str:
    """The role that colours a tab."""
    if active:
        return "tab-active"
    if tab.role:
        return tab.role
    if tab.mark == "!":
        return "bad"
    return "tab" if tab.has_content else "faint"
