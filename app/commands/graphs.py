"""The graphs of a program: how each stands, the line that lists them, and going from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buddy.app.panes.tabs import PhaseTab, tab_labels, tab_role
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
    """A graph on the line of graphs: its number as `--graph` takes it; `mark` says how it stands."""

    @property
    def key(self) -> str:
        return str(self.number)


def graph_status(state: State, workspace: Workspace, graph: int) -> tuple[str, str]:
    """How a graph stands under its recipe, in a word or two, and the role that colours it."""
    told, jobs, recipe = state.of(graph), state.under_way(graph), workspace.recipe_of(graph)
    if told.problems:
        return ("failed", "bad")
    if jobs:
        return ("running" if "run" in jobs else "compiling", "accent")
    if told.report is not None:
        if told.ran != recipe:
            return ("stale", "stale")
        if told.report.wrong:
            return (told.report.word, "bad")
        if told.report.not_compared:
            return ("ran", "warn")
        in_eager = told.report.nodes_eager
        return (f"ok, {in_eager} in eager", "warn") if in_eager else ("ok", "ok")
    if told.compiled != recipe:
        return ("", "dim")
    in_eager = sum(assignment.lowering == EAGER for assignment in told.assignments.values())
    return (f"{in_eager} in eager", "warn") if in_eager else ("compiled", "dim")


def graph_break_text(info: GraphInfo) -> str:
    """Where and why a graph broke off, "" for one that ends with its function."""
    return f"breaks off at {formatting.short_place(info.broke_at)}: {info.broke}" if info.broke else ""


def graph_cells(state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs) -> Cells:
    """The line of graphs: each with its number, its name while there is room, and how it stands."""
    return [(label, role) for label, role, _ in _labels(state, workspace, width, glyphs)]


def graph_at(state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs, x: int) -> int | None:
    """The graph drawn at column `x` of the line."""
    for label, _, graph in _labels(state, workspace, width, glyphs):
        x -= len(label)
        if x < 0:
            return graph
    return None


def _labels(
    state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs
) -> list[tuple[str, str, int | None]]:
    """What stands on the line: text, role, and the graph it is for."""
    standings = [graph_status(state, workspace, number) for number in range(len(state.graphs))]
    tabs = [
        GraphTab(info.name, number, f" {word}" if word else "", True, role)
        for number, (info, (word, role)) in enumerate(zip(state.graphs, standings, strict=True))
    ]
    if state.graph >= len(tabs):
        return []
    active = tabs[state.graph].name
    head = " graphs "
    texts = tab_labels(tabs, active, width - len(head))
    first, last = _window([len(text) for text in texts], state.graph, width - len(head) - 2)
    found: list[tuple[str, str, int | None]] = [(head, "dim", None)]
    found += [(glyphs.ellipsis, "dim", None)] if first else []
    found += [(texts[k], tab_role(tabs[k], k == state.graph), k) for k in range(first, last)]
    return found + ([(glyphs.ellipsis, "dim", None)] if last < len(tabs) else [])


def _window(lengths: Sequence[int], place: int, width: int) -> tuple[int, int]:
    """The most neighbours of `place`, as a range, that fit in `width` characters together with it."""
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
    """Goes from one graph of the program to another; each comes back with its node and its recipe."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        self._nodes: dict[int, str] = {}

    def next_graph(self) -> None:
        self._turn(1)

    def previous_graph(self) -> None:
        self._turn(-1)

    def _turn(self, by: int) -> None:
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
        self._context.say(self._told(number))

    def _told(self, number: int) -> str:
        info = self._context.state.graphs[number]
        parts = (f"graph {number}: {info.name}", f"{len(info.rows)} nodes", graph_break_text(info))
        return f" {self._context.glyphs.dot} ".join(part for part in parts if part)

    def choose_graph(self) -> None:
        """Ask which, in a list that says how each stands and where it broke off."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        state = self._context.state
        choices = [
            PickerChoice(f"{number} {info.name}", self._summary(number, info), number, marked=number == state.graph)
            for number, info in enumerate(state.graphs)
        ]
        self._context.dialogs.open(PickerScreen("Graphs of the program", choices), self._chosen)

    def _summary(self, number: int, info: GraphInfo) -> str:
        word, _ = graph_status(self._context.state, self._context.workspace, number)
        parts = (f"{len(info.rows):>4} nodes", word, graph_break_text(info))
        return f" {self._context.glyphs.dot} ".join(part for part in parts if part)

    def _chosen(self, number: int | None) -> None:
        if number is not None:
            self.show(number)

    def run_all(self) -> None:
        """Run every graph, each by its own recipe."""
        self._context.session.run_all()
