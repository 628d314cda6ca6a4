"""The graphs of a program: the status of each, the line of graph tabs, and the commands that switch graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buddy.app.panes.layout import PhaseTab, tab_labels, tab_role
from buddy.app.reports import formatting
from buddy.app.session.state import State
from buddy.app.widgets.look import Cells
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.recipe import EAGER

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


@dataclass(frozen=True)
class GraphTab(PhaseTab):
    """A tab of a graph: its number as for `--graph`; `mark` is its status."""

    @property
    def key(self) -> str:
        return str(self.number)


def graph_status(state: State, workspace: Workspace, graph: int) -> tuple[str, str]:
    """The status of a graph under its recipe in one to three words, and the role that colours it."""
    shown, jobs, recipe = state.of(graph), state.running_jobs(graph), workspace.recipe_of(graph)
    if shown.problems:
        return ("failed", "bad")
    if jobs:
        return ("running" if "run" in jobs else "compiling", "accent")
    if shown.report is not None:
        if shown.run_recipe != recipe:
            return ("stale", "stale")
        if shown.report.wrong:
            return (shown.report.word, "bad")
        if shown.report.not_compared:
            return ("ran", "warn")
        in_eager = shown.report.nodes_eager
        return (f"ok, {in_eager} in eager", "warn") if in_eager else ("ok", "ok")
    if shown.compiled_recipe != recipe:
        return ("", "dim")
    in_eager = sum(assignment.lowering == EAGER for assignment in shown.assignments.values())
    return (f"{in_eager} in eager", "warn") if in_eager else ("compiled", "dim")


def graph_break_text(info: GraphInfo) -> str:
    """The place and the reason of the graph break that ends a graph, or an empty string without one."""
    return f"graph break at {formatting.short_place(info.broke_at)}: {info.broke}" if info.broke else ""


def graph_cells(state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs) -> Cells:
    """The line of graph tabs: number, name if there is room, and status."""
    return [(label, role) for label, role, _ in _tab_parts(state, workspace, width, glyphs)]


def graph_at(state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs, x: int) -> int | None:
    """The graph whose tab is at column `x`, `None` if there is no tab."""
    for label, _, graph in _tab_parts(state, workspace, width, glyphs):
        x -= len(label)
        if x < 0:
            return graph
    return None


def _tab_parts(
    state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs
) -> list[tuple[str, str, int | None]]:
    """The parts of the line: text, role, and number of the graph."""
    statuses = [graph_status(state, workspace, number) for number in range(len(state.graphs))]
    tabs = [
        GraphTab(info.name, number, f" {word}" if word else "", True, role)
        for number, (info, (word, role)) in enumerate(zip(state.graphs, statuses, strict=True))
    ]
    if state.graph >= len(tabs):
        return []
    active = tabs[state.graph].name
    head = " graphs "
    texts = tab_labels(tabs, active, width - len(head))
    first, last = _visible_range([len(text) for text in texts], state.graph, width - len(head) - 2)
    found: list[tuple[str, str, int | None]] = [(head, "dim", None)]
    found += [(glyphs.ellipsis, "dim", None)] if first else []
    found += [(texts[k], tab_role(tabs[k], k == state.graph), k) for k in range(first, last)]
    return found + ([(glyphs.ellipsis, "dim", None)] if last < len(tabs) else [])


def _visible_range(lengths: Sequence[int], place: int, width: int) -> tuple[int, int]:
    """The largest range of tabs around `place` that fits in `width` characters."""
    first, last, used = place, place + 1, lengths[place]
    while True:
        after = last < len(lengths) and used + lengths[last] <= width
        before = first > 0 and used + lengths[first - 1] <= width
        if after and (not before or last - place <= place - first):
            used, last = used + lengths[last], last + 1
        elif before:
            used, first = used + lengths[first - 1], first - 1
        else:
            return first, last


class GraphCommands:
    """Switches between the graphs of the program. Each graph keeps its recipe and its selected node."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        self._nodes: dict[int, str] = {}

    def next_graph(self) -> None:
        self._show_next(1)

    def previous_graph(self) -> None:
        self._show_next(-1)

    def _show_next(self, by: int) -> None:
        state = self._context.state
        self.show((state.graph + by) % len(state.graphs))

    def show(self, number: int) -> None:
        """Show graph `number`, counted from 0."""
        if number == self._context.state.graph:
            return
        self._nodes[self._context.state.graph] = self._context.selection.node
        self._ir.leave_graph()
        self._context.session.show_graph(number)
        self._context.selection.node = self._nodes.get(number, "")
        self._graph.show_graph(self._context.selection.node)
        self._context.say(self._describe(number))

    def _describe(self, number: int) -> str:
        info = self._context.state.graphs[number]
        parts = (f"graph {number}: {info.name}", f"{len(info.rows)} nodes", graph_break_text(info))
        return f" {self._context.glyphs.dot} ".join(part for part in parts if part)

    def choose_graph(self) -> None:
        """Choose a graph in a list with the status and the graph break of each."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        state = self._context.state
        choices = [
            PickerChoice(f"{number} {info.name}", self._summary(number, info), number, marked=number == state.graph)
            for number, info in enumerate(state.graphs)
        ]
        self._context.dialogs.open(PickerScreen("Graphs of the program", choices), self._show_chosen)

    def _summary(self, number: int, info: GraphInfo) -> str:
        word, _ = graph_status(self._context.state, self._context.workspace, number)
        parts = (f"{len(info.rows):>4} nodes", word, graph_break_text(info))
        return f" {self._context.glyphs.dot} ".join(part for part in parts if part)

    def _show_chosen(self, number: int | None) -> None:
        if number is not None:
            self.show(number)

    def run_all(self) -> None:
        """Run every graph, each with its own recipe."""
        self._context.session.run_all()
