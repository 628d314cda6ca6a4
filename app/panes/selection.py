"""One selection in every pane: a graph node, and the lines that come from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual.timer import Timer

from buddy.app.panes.jobs import Jobs
from buddy.app.panes.layout import Layout
from buddy.app.reports.formatting import short_place
from buddy.app.screens.dialogs import Dialogs
from buddy.compiler.protocol import NodeRow

FOLLOW_SECONDS = 0.12


class SelectionView(Protocol):
    """What shows the selection: a pane."""

    def mark_node(self, before: str) -> None:
        """The selected node is another than `before`."""

    def show_node(self, stable: str) -> None:
        """Bring the row of a node onto the screen."""

    def follow_selection(self) -> object:
        """Go to the selected node, now that the cursor that selected it rests."""


class Selection:
    """The selected node, by its stable name ("" for none). `views` show it; the application sets them."""

    def __init__(self, jobs: Jobs, dialogs: Dialogs, layout: Layout) -> None:
        self._jobs, self._dialogs, self._layout = jobs, dialogs, layout
        self.views: Sequence[SelectionView] = ()
        self._rest: Timer | None = None
        self._names: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self.node = ""

    def name_nodes(self, rows: Sequence[NodeRow]) -> None:
        """Set the names and the Python lines of the graph's nodes, by stable name."""
        self._names = {row.stable: row.name for row in rows}
        self._locations = {row.stable: row.location for row in rows}

    def name_of(self, stable: str) -> str:
        """The name of a node in the graph, by its stable name."""
        return self._names.get(stable, stable)

    def place_of(self, stable: str) -> str:
        """The Python line of a node: `model.py:12`."""
        return short_place(self._locations.get(stable, ""))

    @property
    def python_line(self) -> tuple[str, int]:
        """The Python file and the line (starting at 0) of the selected node; ("", 0) if unknown."""
        path, _, line = self._locations.get(self.node, "").rpartition(":")
        return (path, int(line) - 1) if path and line.isdecimal() else ("", 0)

    def select_node(self, stable: str) -> None:
        """Select a node in every pane."""
        before, self.node = self.node, stable
        for view in self.views:
            view.mark_node(before)

    def select_row(self, row: NodeRow | None) -> None:
        """Select the node of a graph row. The IR pane follows when the cursor rests."""
        if row is not None:
            self.select_node(row.stable)
            self._follow_at_rest()

    def _follow_at_rest(self) -> None:
        if self._rest is not None:
            self._rest.stop()
        self._rest = self._jobs.later(FOLLOW_SECONDS, self._follow)

    def _follow(self) -> None:
        for view in self.views:
            view.follow_selection()

    def lead(self, nodes: Sequence[str]) -> None:
        """Go to the first node of a Python line in graph and IR, unless one of its nodes is selected."""
        if self.node not in nodes:
            self._show(nodes[0])
            self._follow_at_rest()

    def select_one_of(self, nodes: Sequence[str]) -> None:
        """Select the first of the nodes of a line, unless one of them is selected."""
        if nodes and self.node not in nodes:
            self._show(nodes[0])

    def _show(self, node: str) -> None:
        self.select_node(node)
        for view in self.views:
            view.show_node(node)

    def go_node(self, nodes: tuple[str, ...]) -> None:
        """Go to the node of a line in the graph pane. If there are several, ask which."""
        if len(nodes) == 1:
            self._go_to(nodes[0])
            return
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(self.name_of(node), node, node, marked=node == self.node) for node in nodes]
        self._dialogs.open(PickerScreen("This line comes from", choices), self._go_to)

    def _go_to(self, node: str | None) -> None:
        if node is not None:
            self._show(node)
            self._layout.show_pane("graph")
