"""The selected graph node. All panes mark it, and the lines that come from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual.timer import Timer

from buddy.app.panes.jobs import Jobs
from buddy.app.panes.layout import Layout
from buddy.app.reports.formatting import short_place
from buddy.app.screens.dialogs import Dialogs
from buddy.compiler.protocol import NodeRow

# How long the cursor must stay on a node before other panes go to the node.
FOLLOW_SECONDS = 0.12


class SelectionView(Protocol):
    """A pane that shows the selection."""

    def mark_node(self, before: str) -> None:
        """Update the marks of rows, after the selection has changed from the node `before` to another node."""

    def show_node(self, stable: str) -> None:
        """Move the cursor to the row of a node, and scroll to it."""

    def follow_selection(self) -> object:
        """Move the cursor to the selected node. Called when the cursor of another pane has stayed on the node."""


class Selection:
    """The selected node, by its stable name ("" for none). `views` show it; the application sets them."""

    def __init__(self, jobs: Jobs, dialogs: Dialogs, layout: Layout) -> None:
        self._jobs, self._dialogs, self._layout = jobs, dialogs, layout
        self.views: Sequence[SelectionView] = ()
        self._follow_timer: Timer | None = None
        self._names: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self.node = ""

    def name_nodes(self, rows: Sequence[NodeRow]) -> None:
        """Set the names and the Python lines of the graph's nodes, by stable name."""
        self._names = {row.stable: row.display_name for row in rows}
        self._locations = {row.stable: row.location for row in rows}

    def name_of(self, stable: str) -> str:
        """The name in the graph of the node with that stable name."""
        return self._names.get(stable, stable)

    def short_location(self, stable: str) -> str:
        """The file and the line that a node comes from: `model.py:12`."""
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
        """Select the node of a graph row. The IR pane goes to it when the cursor has stayed on the row."""
        if row is not None:
            self.select_node(row.stable)
            self._schedule_follow()

    def _schedule_follow(self) -> None:
        if self._follow_timer is not None:
            self._follow_timer.stop()
        self._follow_timer = self._jobs.later(FOLLOW_SECONDS, self._follow)

    def _follow(self) -> None:
        for view in self.views:
            view.follow_selection()

    def go_to_line_nodes(self, nodes: Sequence[str]) -> None:
        """Go to the first node of a Python line in every pane, unless a node of the line is selected."""
        if self.node not in nodes:
            self._show(nodes[0])
            self._schedule_follow()

    def select_one_of(self, nodes: Sequence[str]) -> None:
        """Select the first of the nodes of a line, and show its row, unless one of the nodes is selected."""
        if nodes and self.node not in nodes:
            self._show(nodes[0])

    def _show(self, node: str) -> None:
        self.select_node(node)
        for view in self.views:
            view.show_node(node)

    def go_node(self, nodes: tuple[str, ...]) -> None:
        """Go to the node of a line in the graph pane. If the line comes from several nodes, the user picks one."""
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
