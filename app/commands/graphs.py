"""The graphs of a program: status and tabs, commands that switch graphs, extract subgraphs and write scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.cells import cell_len

from buddy.app.actions import key_of
from buddy.app.panes.ir_stages import PhaseTab, tab_labels, tab_role
from buddy.app.reports import formatting
from buddy.app.reports.fallbacks import Fallback, GraphFacts
from buddy.app.reports.recompilations import DynamoRow
from buddy.app.session.state import State
from buddy.app.widgets.look import Cells
from buddy.app.workspace.files import write_script
from buddy.app.workspace.inputs import parse_path
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import ExplainDynamo, Extract, GraphInfo, Script, WriteScript
from buddy.compiler.protocol.recipe import EAGER, Recipe

if TYPE_CHECKING:
    from buddy.app.commands.screens import ProvenanceCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane

# The client replaces this number of a request by a new one.
_NEW_NUMBER = 0


@dataclass(frozen=True)
class GraphTab(PhaseTab):
    """A tab of a graph. The inherited `number` is the one that `--graph` takes, `mark` the status of the graph."""

    @property
    def key(self) -> str:
        """The text before the name: the number. Unlike phases, graphs have no digit keys that select them."""
        return str(self.number)


def graph_status(state: State, workspace: Workspace, graph: int) -> tuple[str, str]:
    """The status of a graph under its recipe in at most four words, and the role that colours it.

    The status is empty if the graph has not been compiled with its recipe, or comes from another compiler's dump.
    """
    graph_state, jobs, recipe = state.graph_state_of(graph), state.running_jobs(graph), workspace.recipe_of(graph)
    if graph_state.problems:
        return ("failed", "bad")
    if jobs:
        return ("running" if "run" in jobs else "compiling", "accent")
    if graph_state.report is not None:
        if graph_state.run_recipe != recipe:
            return ("stale", "stale")
        if graph_state.report.wrong:
            return (graph_state.report.word, "bad")  # such as MISMATCH
        if graph_state.report.not_compared:
            return ("ran", "warn")
        in_eager = graph_state.report.nodes_eager
        return (f"ok, {in_eager} in eager", "warn") if in_eager else ("ok", "ok")
    if graph_state.compiled_recipe != recipe or recipe.is_dump:
        return ("", "dim")
    in_eager = sum(assignment.lowering == EAGER for assignment in graph_state.assignments.values())
    return (f"{in_eager} in eager", "warn") if in_eager else ("compiled", "dim")


def graph_break_text(info: GraphInfo) -> str:
    """The Python line and the reason of the graph break at the end of a graph; empty if no break ends the graph."""
    if not info.break_reason:
        return ""
    return f"graph break at {formatting.short_location(info.break_line)}: {info.break_reason}"


def graph_cells(state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs) -> Cells:
    """The line of graph tabs. Each tab has the number, the name if it fits, and the status of a graph."""
    return [(label, role) for label, role, _ in _tab_parts(state, workspace, width, glyphs)]


def graph_of_tab_at(state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs, x: int) -> int | None:
    """The number of the graph whose tab is at column `x`, `None` if no tab is there."""
    for label, _, graph in _tab_parts(state, workspace, width, glyphs):
        x -= cell_len(label)
        if x < 0:
            return graph
    return None


def _tab_parts(
    state: State, workspace: Workspace, width: int, glyphs: formatting.Glyphs
) -> list[tuple[str, str, int | None]]:
    """The parts of the line of graph tabs: text, role, and the number of the graph, `None` if the part is not a tab.

    Tabs that do not fit into `width` columns are replaced by an ellipsis. The tab of the shown graph is always there.
    """
    statuses = [graph_status(state, workspace, number) for number in range(len(state.graphs))]
    tabs = [
        GraphTab(info.name, number, mark=f" {status}" if status else "", role=role)
        for number, (info, (status, role)) in enumerate(zip(state.graphs, statuses, strict=True))
    ]
    if state.graph >= len(tabs):
        return []
    active = tabs[state.graph].name
    heading = " graphs "
    labels = tab_labels(tabs, active, width - len(heading))
    # Two columns are for an ellipsis at each end.
    start, stop = _visible_range([cell_len(label) for label in labels], state.graph, width - len(heading) - 2)
    ellipsis: tuple[str, str, int | None] = (glyphs.ellipsis, "dim", None)
    parts: list[tuple[str, str, int | None]] = [(heading, "dim", None)]
    if start > 0:
        parts.append(ellipsis)
    for number in range(start, stop):
        parts.append((labels[number], tab_role(tabs[number], active=number == state.graph), number))
    if stop < len(tabs):
        parts.append(ellipsis)
    return parts


def _visible_range(lengths: Sequence[int], index: int, width: int) -> tuple[int, int]:
    """The range (start, stop) of tabs that are shown: `index` and as many tabs on both sides as fit in `width`.

    `lengths` are those of all tabs, in columns. Both sides grow alternately as long as both fit.
    """
    start, stop, used_width = index, index + 1, lengths[index]
    while True:
        next_fits = stop < len(lengths) and used_width + lengths[stop] <= width
        previous_fits = start > 0 and used_width + lengths[start - 1] <= width
        is_left_longer = index - start >= stop - index
        if next_fits and (is_left_longer or not previous_fits):
            used_width, stop = used_width + lengths[stop], stop + 1
        elif previous_fits:
            used_width, start = used_width + lengths[start - 1], start - 1
        else:
            return start, stop


def _graph_facts(state: State, number: int) -> GraphFacts:
    """What the list of fallbacks needs of a graph: its number, nodes, lowerings and profile.

    The lowerings are `None` before the graph is compiled. The profile is `None` unless it is of the latest compilation.
    """
    graph, info = state.graph_state_of(number), state.graphs[number]
    assignments = tuple(graph.assignments.values()) if graph.compiled_recipe is not None else None
    profile = graph.profile if graph.profiled_recipe == graph.compiled_recipe else None
    return GraphFacts(number, info, assignments, profile)


class GraphCommands:
    """Switches between the graphs of the program. Each graph keeps its recipe and its selected node."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane, provenance: ProvenanceCommands) -> None:
        self._context, self._graph, self._ir, self._provenance = context, graph, ir, provenance
        # The node that was selected when the user left each graph.
        self._selected_nodes: dict[int, str] = {}

    def next_graph(self) -> None:
        self._show_next(1)

    def previous_graph(self) -> None:
        self._show_next(-1)

    def _show_next(self, step: int) -> None:
        """Shows the graph `step` graphs after the shown one, wrapping around at the ends."""
        state = self._context.state
        self.show((state.graph + step) % len(state.graphs))

    def show(self, number: int) -> None:
        """Shows graph `number`, counted from 0."""
        if number == self._context.state.graph:
            return
        self._selected_nodes[self._context.state.graph] = self._context.selection.node
        self._ir.leave_graph()
        self._context.session.show_graph(number)
        self._context.selection.node = self._selected_nodes.get(number, "")
        self._graph.show_graph(self._context.selection.node)
        self._context.say(self._describe(number))

    def _describe(self, number: int) -> str:
        """A graph as a message: number, name, size, and the graph break at its end."""
        info = self._context.state.graphs[number]
        parts = (f"graph {number}: {info.name}", f"{len(info.rows)} nodes", graph_break_text(info))
        return f" {self._context.glyphs.dot} ".join(part for part in parts if part)

    def choose_graph(self) -> None:
        """Lists the graphs, each with its status and its graph break, and shows the chosen one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        state = self._context.state
        choices = [
            PickerChoice(f"{number} {info.name}", self._summary(number, info), number, marked=number == state.graph)
            for number, info in enumerate(state.graphs)
        ]
        self._context.dialogs.open(PickerScreen("Graphs of the program", choices), self._show_choice)

    def _summary(self, number: int, info: GraphInfo) -> str:
        """A graph in the list of graphs: size, status, and the graph break at its end."""
        status, _ = graph_status(self._context.state, self._context.workspace, number)
        parts = (f"{len(info.rows):>4} nodes", status, graph_break_text(info))
        return f" {self._context.glyphs.dot} ".join(part for part in parts if part)

    def _show_choice(self, number: int | None) -> None:
        if number is not None:
            self.show(number)

    def show_fallbacks(self) -> None:
        """Lists the fallbacks of all graphs: nodes in eager, graph breaks, guards. Goes to the chosen one."""
        from buddy.app.screens.tables import FallbacksScreen

        context = self._context
        facts = [_graph_facts(context.state, number) for number in range(len(context.state.graphs))]
        recipes = [context.workspace.recipe_of(facts.number) for facts in facts]
        context.dialogs.open(FallbacksScreen(context.session, facts, recipes), self._go_to_fallback)

    def _go_to_fallback(self, row: Fallback | None) -> None:
        """Shows the node of the chosen fallback in the graph pane, or its Python line in the source pane."""
        if row is None:
            return
        self.show(row.graph)
        if row.node:
            self._context.layout.show_pane("graph")
            self._graph.show_node(row.node)
            self._context.selection.select_node(row.node)
        elif row.line:
            self._provenance.open_line(row.line, row.name)

    def show_recompilations(self) -> None:
        """Runs the script as `python SCRIPT` does, and lists what TorchDynamo reports.

        These are graph breaks, recompilations and guards. Shows the line of the chosen one.
        """
        from buddy.app.screens.tables import RecompilationsScreen

        context, workspace = self._context, self._context.workspace
        frame = ExplainDynamo(_NEW_NUMBER, workspace.source, workspace.arguments, context.session.directory)
        context.dialogs.open(RecompilationsScreen(context.session, frame), self._go_to_event)

    def _go_to_event(self, row: DynamoRow | None) -> None:
        if row is not None:
            self._provenance.open_line(row.line, row.title)

    def run_all(self) -> None:
        """Runs every graph under the recipe of that graph."""
        self._context.session.run_all()


# ---- subgraphs and scripts -------------------------------------------------------------------------------------------


class SubgraphCommands:
    """Extracts subgraphs and writes graphs as scripts. Opening the program again drops its extracts."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, graphs: GraphCommands) -> None:
        self._context, self._graph, self._graphs = context, graph, graphs
        # The extracted graph, and the number of the graph that it comes from, by the number of the extracted graph.
        self._origins: dict[int, tuple[GraphInfo, int]] = {}

    def extract(self) -> None:
        """Extracts the picked nodes, or those of the row under the cursor, as a graph with the inputs of a real run."""
        # Stable names, which do not change if nodes are renumbered.
        names = tuple(row.stable for row in self._graph.selected_rows if row.opcode.startswith("call"))
        self._context.jobs.begin("extract", self._extract, names, self._context.workspace.recipe)

    async def _extract(self, names: tuple[str, ...], recipe: Recipe) -> None:
        """Extracts the nodes of these stable names, and shows the new graph with the choices of `recipe` for them."""
        request = self._context.session.request(Extract(_NEW_NUMBER, recipe, names))
        extract = await self._context.jobs.result_of(request, "not extracted")
        if extract is None:
            return
        self._graph.picked = set()
        nodes = {row.stable for row in extract.info.rows}
        choices = tuple(choice for choice in recipe.choices if choice.node in nodes)
        precisions = tuple(choice for choice in recipe.precisions if choice.node in nodes)
        extract_recipe = replace(recipe, graph=extract.graph, choices=choices, precisions=precisions)
        self._context.session.add_extracted_graph(extract, extract_recipe)
        self._origins[extract.graph] = self._context.state.graphs[extract.graph], recipe.graph
        self._graphs.show(extract.graph)
        self._context.say(
            f"extracted {extract.info.name} with the inputs of a real run; press {key_of('graph-back')} to go back"
        )

    @property
    def is_extract(self) -> bool:
        """Whether the current graph is an extracted subgraph."""
        return self._origin is not None

    @property
    def _origin(self) -> int | None:
        """The number of the graph that the current one was extracted from; `None` if it is not an extract."""
        extract, origin = self._origins.get(self._context.state.graph, (None, None))
        # After the program was opened again, another graph may have the number of an extract.
        return origin if extract is not None and extract is self._context.state.info else None

    def back_to_origin_graph(self) -> None:
        """Shows the graph that the current subgraph was extracted from."""
        self._graphs.show(self._origin or 0)

    def ask_script(self) -> None:
        """Asks for the file of a script that has the shown graph, and writes it."""
        info = self._context.state.info
        words = re.findall(r"[^\W_]+", info.name) if info else []
        name = "_".join(words) if info else "graph"
        self._context.dialogs.ask("save the graph as a script to", f"{name}.py", self._save_script)

    def _save_script(self, text: str) -> None:
        if text.strip():
            self._context.jobs.begin("script", self._write_script, text.strip())

    async def _write_script(self, text: str) -> None:
        """Writes the script and the `.npz` of its tensors to the typed path, after a question if the files exist."""
        recipe = self._context.workspace.recipe
        try:
            path = parse_path(text)
            path = path if path.suffix == ".py" else path.with_name(f"{path.name}.py")
        except ValueError as error:
            self._context.say(f"{text}: {error}")
            return
        script = await self._context.queries.request(WriteScript(_NEW_NUMBER, recipe), failed=text)
        if script is None:
            return
        existing = [str(file) for file in (path, path.with_suffix(".npz")) if file.exists()]
        question = ""
        if existing:
            verb = "exists" if len(existing) == 1 else "exist"
            question = f"{' and '.join(existing)} already {verb}. Overwrite?"
        self._context.files.after_confirmation(question, lambda: self._save_files(path, script))

    def _save_files(self, path: Path, script: Script) -> None:
        try:
            script_path, values_path = write_script(path, script)
        except OSError as error:
            self._context.say(f"{path} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {script_path} and {values_path.name}")
