"""The layout: the visible panes, and the pane that has focus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app import actions
from buddy.app.panes.pane import Pane

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench

FOLD_BELOW = 100
WIDE_FROM = 140


class Layout:
    """Shows all panes or, on a narrow screen or when zoomed, only the pane that has focus, `pane_id`."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self.pane_id: actions.Pane = "graph"
        self.zoomed = False
        self.with_source = False

    @property
    def order(self) -> tuple[actions.Pane, ...]:
        """The panes, in tab order."""
        return tuple(pane for pane in actions.PANES if pane != "source" or self.with_source)

    @property
    def folded(self) -> bool:
        """Whether only one pane is shown."""
        return self._bench.screen_stack[0].has_class("-folded")

    @property
    def panes(self) -> dict[str, Pane]:
        return {pane.pane_id: pane for pane in self._bench.screen_stack[0].query(Pane).results(Pane)}

    @property
    def pane(self) -> Pane:
        """The pane that has focus."""
        return self.panes[self.pane_id]

    def arrange(self, width: int | None = None) -> None:
        """Arrange the panes on a screen of `width` cells."""
        width = width or self._bench.size.width
        screen, panes = self._bench.screen_stack[0], self.panes
        screen.set_class(width < FOLD_BELOW or self.zoomed, "-folded")
        screen.set_class(width >= WIDE_FROM, "-wide")
        screen.set_class(self.with_source, "-source")
        for pane in panes.values():
            pane.set_class(pane.pane_id == self.pane_id, "-shown")
            pane.border_title = "" if self.folded else actions.PANE_TITLES[pane.pane_id]
        for side in ("left", "right"):
            column = screen.query_one(f"#{side}")
            column.set_class(any(pane.has_class("-shown") for pane in column.query(Pane)), "-shown")

    def focus_came(self, pane: Pane) -> None:
        """Update the layout after a pane got focus in another way, for example by the mouse."""
        if pane.pane_id != self.pane_id:
            self.pane_id = pane.pane_id
            self.arrange()

    # ---- actions -------------------------------------------------------------------------------------------------

    def show_pane(self, pane: actions.Pane) -> None:
        """Focus a pane, and show it if only one pane is shown."""
        self.pane_id = pane
        self.arrange()
        self.pane.focus()
        self._bench.update_chrome()

    def next_pane(self) -> None:
        self._turn(1)

    def previous_pane(self) -> None:
        self._turn(-1)

    def _turn(self, by: int) -> None:
        place = self.order.index(self.pane_id)
        self.show_pane(self.order[(place + by) % len(self.order)])

    def toggle_source(self) -> None:
        """Show or hide the source pane, which follows the selection."""
        self.with_source = not self.with_source
        if self.with_source and self.folded:
            self.show_pane("source")
        elif not self.with_source and self.pane_id == "source":
            self.show_pane("graph")
        else:
            self.arrange()
        if self.with_source and not self._bench.selection.node:
            self._bench.selection.select_row()
        self._bench.source.follow()

    def zoom(self) -> None:
        self.zoomed = not self.zoomed
        self.arrange()
        self.pane.focus()
