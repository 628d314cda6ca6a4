"""Extracts nodes as a graph, writes graphs as scripts, and bisects recipes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.actions import key_of
from buddy.app.reports.results import SAVE, USE, bisection_result
from buddy.app.reports.searches import CRITERIA, bisection_texts, parse_criterion, write_bisection
from buddy.app.workspace.command_line import write_script
from buddy.app.workspace.inputs import parse_path
from buddy.compiler.protocol import (
    Bisect,
    BisectionResult,
    Criterion,
    Extract,
    GraphInfo,
    Script,
    WriteScript,
)
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.commands.reduce import ReduceCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane


class SubgraphCommands:
    """Extracts subgraphs, writes graphs as scripts, and bisects wrong recipes.

    When the program is opened again, its extracts and the latest result of a bisection are dropped.
    """

    def __init__(
        self, context: WorkbenchContext, graph: GraphPane, graphs: GraphCommands, reduce: ReduceCommands
    ) -> None:
        self._context, self._graph, self._graphs, self._reduce = context, graph, graphs, reduce
        # By the number of each extracted graph: that graph, and the number of the graph that it was extracted from.
        self._origins: dict[int, tuple[GraphInfo, int]] = {}
        # The latest result, and the graph that was bisected.
        self._bisected: tuple[BisectionResult, GraphInfo] | None = None
        self.bisection = context.jobs.single("bisect", f"a bisection is running: press {key_of('cancel')} to stop it")

    # ---- extracts ------------------------------------------------------------------------------------------------

    def extract(self) -> None:
        """Extract the picked nodes, or those of the row under the cursor, as a graph with the inputs of a real run."""
        names = tuple(row.stable for row in self._graph.selected_rows if row.opcode.startswith("call"))
        self._context.jobs.begin("extract", self._extract, names, self._context.workspace.recipe)

    async def _extract(self, names: tuple[str, ...], recipe: Recipe) -> None:
        request = self._context.session.request(Extract(0, recipe, names))
        extract = await self._context.jobs.result_of(request, "not extracted")
        if extract is None:
            return
        nodes = {row.stable for row in extract.info.rows}
        choices = tuple(choice for choice in recipe.choices if choice.node in nodes)
        self._graph.picked = set()
        precisions = tuple(choice for choice in recipe.precisions if choice.node in nodes)
        extract_recipe = replace(recipe, graph=extract.graph, choices=choices, precisions=precisions)
        self._context.session.add_extract(extract, extract_recipe)
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
        return origin if extract is not None and extract is self._context.state.info else None

    def back_to_origin_graph(self) -> None:
        """Show the graph that the current subgraph was extracted from."""
        self._graphs.show(self._origin or 0)

    def ask_script(self) -> None:
        info = self._context.state.info
        name = "_".join("".join(c if c.isalnum() else " " for c in info.name).split()) if info else "graph"
        self._context.dialogs.ask("save the graph as a script to", f"{name}.py", self._save_script)

    def _save_script(self, text: str) -> None:
        if text.strip():
            self._context.jobs.begin("script", self._write_script, text.strip())

    async def _write_script(self, text: str) -> None:
        recipe = self._context.workspace.recipe
        try:
            path = parse_path(text)
            path = path if path.suffix == ".py" else path.with_name(f"{path.name}.py")
        except ValueError as error:
            self._context.say(f"{text}: {error}")
            return
        script = await self._context.queries.request(WriteScript(0, recipe), failed=text)
        if script is None:
            return
        existing = [str(file) for file in (path, path.with_suffix(".npz")) if file.exists()]
        question = f"{' and '.join(existing)} already exist{'s' * (len(existing) == 1)}. Overwrite?" if existing else ""
        self._context.files.after_confirmation(question, lambda: self._save_files(path, script))

    def _save_files(self, path: Path, script: Script) -> None:
        try:
            script_path, values_path = write_script(path, script)
        except OSError as error:
            self._context.say(f"{path} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {script_path} and {values_path.name}")

    # ---- bisection -----------------------------------------------------------------------------------------------

    def bisect(self) -> None:
        """Show the latest result, of any graph. Before the first one, ask what is wrong and start a bisection.

        For a dump, ask for a command that shows the failure.
        """
        if self._context.workspace.recipe.is_dump:
            self._reduce.bisect_dump()
            return
        if not self.bisection.may_begin():
            return
        if self._bisection_result is not None:
            self._context.results.show(bisection_result(self._bisection_result), self._use_answer)
        else:
            self._ask_criterion()

    @property
    def _bisection_result(self) -> BisectionResult | None:
        """The latest result; `None` if the program was opened again since."""
        if self._bisected is None:
            return None
        (result, info), graphs = self._bisected, self._context.state.graphs
        return result if any(info is graph for graph in graphs) else None

    def _ask_criterion(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(title, summary, kind) for kind, title, summary in CRITERIA]
        self._context.dialogs.open(PickerScreen("What is wrong?", choices), self._ask_limits)

    def _ask_limits(self, kind: str | None) -> None:
        """Ask for the tolerance multiplier or minimum speedup, and for the time limit of each step of a trial."""
        if kind is None:
            return
        defaults = Criterion()
        title, limit = (
            ("minimum speedup when the pass is disabled", defaults.slower)
            if kind == "slower"
            else ("tolerance multiplier", defaults.tolerance)
        )
        self._context.dialogs.ask(
            f"{title}, and seconds per step of a trial",
            f"{limit:g}, {defaults.step_seconds:g} s",
            lambda text: self._begin_bisection(kind, text),
        )

    def _begin_bisection(self, kind: str, text: str) -> None:
        try:
            criterion = parse_criterion(kind, text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self.bisection.begin(self._bisect, self._context.workspace.recipe, criterion)

    async def _bisect(self, recipe: Recipe, criterion: Criterion) -> None:
        show_progress = self._context.jobs.progress(
            lambda activity: f"bisecting, {activity}{self._context.glyphs.ellipsis} press {key_of('cancel')} to stop"
        )
        info = self._context.state.graphs[recipe.graph]
        request = self._context.session.request(Bisect(0, recipe, criterion), show_progress)
        answer = await self.bisection.result_of(
            request, "bisection failed", f"Cancelled. Press {key_of('bisect')} to bisect again"
        )
        if answer is None:
            return
        self._bisected = answer.finding, info
        self._context.results.show(bisection_result(answer.finding), self._use_answer)

    def _use_answer(self, action: str) -> None:
        result = self._bisection_result
        if result is None:
            self._context.say("the program was opened again: the result of the bisection is out of date")
            return
        if action == USE:
            self._graphs.show(result.recipe.graph)
            self._context.edits.edit(result.recipe, "the recipe found by bisection")
        elif action == SAVE:
            self._context.dialogs.ask(
                "write the recipe and the reduced module to the folder", "bisected", self._save_result
            )
        else:
            self._ask_criterion()

    def _save_result(self, text: str) -> None:
        result = self._bisection_result
        if result is None:
            return

        def question(folder: Path) -> str:
            existing = [name for name in bisection_texts(result) if (folder / name).exists()]
            return f"{text.strip()} already has {' and '.join(existing)}. Overwrite?" if existing else ""

        self._context.files.use_path(text, lambda folder, _: self._write_result(folder, result), question)

    def _write_result(self, folder: Path, result: BisectionResult) -> None:
        try:
            written = write_bisection(folder, result)
        except OSError as error:
            self._context.say(f"{folder} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {', '.join(map(str, written))}")
