"""The shared selection of all panes: a graph node, its lines, the stage of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.timer import Timer

from buddy.app.reports.formatting import short_place
from buddy.compiler.protocol import NodeRow

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench

FOLLOW_SECONDS = 0.12


class Selection:
    """The selected node, by its stable name ("" for none). Keeps the panes synchronized."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
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
        self._bench.graph.mark_node(before)
        self._bench.ir.mark_node()
        self._bench.source.follow()

    def select_row(self) -> None:
        """Select the node of a graph row. The IR pane follows when the cursor rests."""
        row = self._bench.graph.current
        if row is None:
            return
        self.select_node(row.stable)
        self._ir_follows()

    def _ir_follows(self) -> None:
        if self._rest is not None:
            self._rest.stop()
        self._rest = self._bench.set_timer(FOLLOW_SECONDS, self._bench.ir.follow_node)

    def lead(self, nodes: Sequence[str]) -> None:
        """Go to the first node of a Python line in graph and IR, unless one of its nodes is selected."""
        if self.node not in nodes:
            self.select_node(nodes[0])
            self._bench.graph.show_node(self.node)
            self._ir_follows()

    def select_line(self) -> None:
        """Select the node of the line in the IR pane."""
        line = self._bench.ir.line_at(self._bench.ir.cursor)
        if line is not None and line.nodes and self.node not in line.nodes:
            self.select_node(line.nodes[0])
            self._bench.graph.show_node(self.node)

    def show_pass_stage(self) -> None:
        """Show the stage of the selected pass in the IR pane when it is available."""
        row, ir = self._bench.passes.current, self._bench.ir
        if row is not None and row.stage is not None and row.stage.key != ir.key:
            ir.choose(row.stage, tell=False)

    def go_node(self, nodes: tuple[str, ...]) -> None:
        """Go to the node of a line in the graph pane. If there are several, ask which."""
        if len(nodes) == 1:
            self._go_to(nodes[0])
            return
        from buddy.app.screens.picker import Choice, PickerScreen

        choices = [Choice(self.name_of(node), node, node, marked=node == self.node) for node in nodes]
        self._bench.push_screen(PickerScreen("This line comes from", choices), self._go_to)

    def _go_to(self, node: str | None) -> None:
        if node is not None:
            self.select_node(node)
            self._bench.graph.show_node(node)
            self._bench.show_pane("graph")
