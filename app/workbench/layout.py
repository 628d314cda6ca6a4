"""Which panes are on the screen, and which of them has the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app import actions
from buddy.app.panes.pane import Pane

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench

FOLD_BELOW = 100
WIDE_FROM = 140


class Layout:
    """All panes, or, on a narrow screen or zoomed, the one that has the keys: `pane_id`."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self.pane_id: actions.Pane = "graph"
        self.zoomed = False
        self.with_source = False

    @property
    def order(self) -> tuple[actions.Pane, ...]:
        """The panes that there are, as they follow each other."""
        return tuple(pane for pane in actions.PANES if pane != "source" or self.with_source)

    @property
    def folded(self) -> bool:
        """Whether one pane has the screen."""
        return self._bench.screen_stack[0].has_class("-folded")

    @property
    def panes(self) -> dict[str, Pane]:
        return {pane.pane_id: pane for pane in self._bench.screen_stack[0].query(Pane).results(Pane)}

    @property
    def pane(self) -> Pane:
        """The pane that has the keys."""
        return self.panes[self.pane_id]

    def arrange(self, width: int | None = None) -> None:
        """Give panes their places on a screen of `width` cells."""
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
        """A pane got the keys otherwise, by the mouse for instance."""
        if pane.pane_id != self.pane_id:
            self.pane_id = pane.pane_id
            self.arrange()

    # ---- actions -------------------------------------------------------------------------------------------------

    def show_pane(self, pane: actions.Pane) -> None:
        """Give a pane the keys, and on a folded screen its place."""
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
        """Show the source pane, which follows the selection from then on, or take it away."""
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
