"""The selected graph node and the linked Python line, which all panes mark, and the moves from pane to pane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual.timer import Timer

from buddy.app.panes.jobs import Jobs
from buddy.app.panes.layout import Layout
from buddy.app.reports.formatting import short_location
from buddy.app.reports.python_lines import PythonLines, PythonLocation
from buddy.app.screens.dialogs import Dialogs
from buddy.compiler.protocol import GraphInfo, NodeRow

# The time that the cursor must stay on a node before other panes go to the node.
FOLLOW_SECONDS = 0.12


class SelectionView(Protocol):
    """A pane that shows the selection."""

    def selection_changed(self, previous: str) -> None:
        """Update the marks of rows, after another node than `previous` has been selected."""

    def show_node(self, stable: str) -> None:
        """Move the cursor to the row of a node, and scroll to it."""

    def follow_selection(self) -> object:
        """Move the cursor to the selected node. Called when the cursor of another pane has stayed on the node."""


class Selection:
    """The selected node, which all panes mark, and the linked Python line, whose nodes they highlight.

    `node` is the stable name of the selected node: a name that stays the same if nodes are renumbered; "" for none.
    `views` are the panes; the application sets them before it runs.
    """

    def __init__(self, jobs: Jobs, dialogs: Dialogs, layout: Layout) -> None:
        self._jobs, self._dialogs, self._layout = jobs, dialogs, layout
        self.views: Sequence[SelectionView] = ()
        self._follow_timer: Timer | None = None
        self._info: GraphInfo | None = None
        self._names: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self.node = ""
        self.python_lines = PythonLines()
        # The line under the cursor of the source pane, if that cursor has moved after the last selection of a node.
        self._source_line: PythonLocation | None = None
        # The cached result of `linked_nodes` (last), after what it depends on: the linked line, the lines of the graph.
        self._linked: tuple[PythonLocation | None, PythonLines, frozenset[str]] = (None, self.python_lines, frozenset())

    def set_graph(self, info: GraphInfo) -> None:
        """Read the names and the Python lines of the nodes of a graph, unless it is the current graph."""
        if info is self._info:
            return
        self._info, self._source_line = info, None
        self._names = {row.stable: row.display_name for row in info.rows}
        self._locations = {row.stable: row.location for row in info.rows}
        self.python_lines = PythonLines(info.rows, info.caller_locations)

    def name_of(self, stable: str) -> str:
        """The name in the graph of the node with that stable name."""
        return self._names.get(stable, stable)

    def short_location(self, stable: str) -> str:
        """The file and the line that a node comes from: `model.py:12`."""
        return short_location(self._locations.get(stable, ""))

    @property
    def linked_location(self) -> PythonLocation | None:
        """The linked Python line: that of the source pane's cursor if it moved last, else that of the selected node."""
        return self._source_line or self.python_lines.location_of(self.node)

    @property
    def linked_nodes(self) -> frozenset[str]:
        """The nodes of the linked line, which all panes highlight; none while the source pane is hidden."""
        if not self._layout.shows_source:
            return frozenset()
        location, lines = self.linked_location, self.python_lines
        if self._linked[:2] != (location, lines):
            nodes = frozenset(lines.nodes_of(location)) if location is not None else frozenset[str]()
            self._linked = (location, lines, nodes)
        return self._linked[2]

    def colour_of(self, nodes: Sequence[str]) -> str:
        """The role that colours the Python line of `nodes` in every pane; "" while the source pane is hidden."""
        return self.python_lines.colour_of(nodes) if self._layout.shows_source else ""

    def select_node(self, stable: str) -> None:
        """Select a node in every pane."""
        self._source_line = None
        self._select(stable)

    def _select(self, stable: str) -> None:
        """Select a node, and let all panes update their marks. The linked line of the source pane remains."""
        previous, self.node = self.node, stable
        for view in self.views:
            view.selection_changed(previous)

    def select_row(self, row: NodeRow | None) -> None:
        """Select the node of a graph row. The IR pane goes to it when the cursor has stayed on the row."""
        if row is not None:
            self.select_node(row.stable)
            self._schedule_follow()

    def _schedule_follow(self) -> None:
        """Let the panes go to the selected node after `FOLLOW_SECONDS`, unless another one is selected before."""
        if self._follow_timer is not None:
            self._follow_timer.stop()
        self._follow_timer = self._jobs.call_later(FOLLOW_SECONDS, self._follow)

    def _follow(self) -> None:
        """Let the other panes go to the selected node."""
        for view in self.views:
            view.follow_selection()

    def link_line(self, location: PythonLocation) -> None:
        """Link a Python line. Go to its first node in every pane, unless one of its nodes is selected."""
        self._source_line = location
        nodes = self.python_lines.nodes_of(location)
        is_selected = not nodes or self.node in nodes
        self._select(self.node if is_selected else nodes[0])
        if not is_selected:
            for view in self.views:
                view.show_node(self.node)
            self._schedule_follow()

    def select_one_of(self, nodes: Sequence[str]) -> None:
        """Select the first of `nodes`, those of a line, and show its row, unless one of them is already selected."""
        if nodes and self.node not in nodes:
            self._select_and_show(nodes[0])

    def _select_and_show(self, node: str) -> None:
        self.select_node(node)
        for view in self.views:
            view.show_node(node)

    def go_to_one_of(self, nodes: tuple[str, ...]) -> None:
        """Go to the node that a line comes from in the graph pane. If there are several, the user picks one."""
        if len(nodes) == 1:
            self._go_to_picked(nodes[0])
            return
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(self.name_of(node), node, node, marked=node == self.node) for node in nodes]
        self._dialogs.open(PickerScreen("This line comes from", choices), self._go_to_picked)

    def _go_to_picked(self, node: str | None) -> None:
        if node is not None:
            self._select_and_show(node)
            self._layout.show_pane("graph")
