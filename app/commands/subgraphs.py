"""Extracts nodes as a separate graph, saves a graph as a script, and bisects failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from buddy.app.reports.bisection import CRITERIA, parse_criterion, write_finding
from buddy.app.workspace.input_parsing import typed_path
from buddy.app.workspace.scripts import write_script
from buddy.compiler.protocol import (
    Bisect,
    BisectionResult,
    Criterion,
    Extract,
    Script,
    WriteScript,
)
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane


class SubgraphCommands:
    """`origins` maps each extracted graph to the graph it comes from; `finding` is the latest bisection result."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, graphs: GraphCommands) -> None:
        self._context, self._graph, self._graphs = context, graph, graphs
        self.origins: dict[int, int] = {}
        self.finding: BisectionResult | None = None
        self.search = context.jobs.single("bisect", "a search is running: press ctrl+c to stop it")

    # ---- extracts ------------------------------------------------------------------------------------------------

    def extract(self) -> None:
        """Extract the picked nodes, or the node under the cursor, as a graph with its real inputs."""
        names = tuple(row.stable for row in self._graph.targets if row.opcode.startswith("call"))
        self._context.jobs.begin("extract", self._extract, names, self._context.workspace.recipe)

    async def _extract(self, names: tuple[str, ...], recipe: Recipe) -> None:
        request = self._context.session.request(Extract(0, recipe, names))
        found = await self._context.jobs.result_of(request, "not extracted")
        if found is None:
            return
        known = {row.stable for row in found.info.rows}
        choices = tuple(choice for choice in recipe.choices if choice.node in known)
        self.origins[found.graph] = recipe.graph
        self._graph.picked = set()
        self._context.session.add_extract(found, replace(recipe, graph=found.graph, choices=choices))
        self._graphs.show(found.graph)
        self._context.say(f"extracted {found.info.name} with its real inputs; press g b to go back")

    @property
    def is_extract(self) -> bool:
        """Whether the graph on the screen is an extracted subgraph."""
        return self._context.state.graph in self.origins

    def back_to_whole(self) -> None:
        """Show the graph that the subgraph on the screen was extracted from."""
        self._graphs.show(self.origins.get(self._context.state.graph, 0))

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
            path = typed_path(text).with_suffix(".py")
        except ValueError as error:
            self._context.say(f"{text}: {error}")
            return
        made = await self._context.queries.request(WriteScript(0, recipe), failed=text)
        if made is None:
            return
        existing = [str(file) for file in (path, path.with_suffix(".npz")) if file.exists()]
        question = f"{' and '.join(existing)} already exist{'s' * (len(existing) == 1)}. Overwrite?" if existing else ""
        self._context.files.after_confirmation(question, lambda: self._save_files(path, made))

    def _save_files(self, path: Any, made: Script) -> None:
        try:
            script, values = write_script(path, made)
        except OSError as error:
            self._context.say(f"{path} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {script} and {values.name}")

    # ---- bisection -----------------------------------------------------------------------------------------------

    def bisect(self) -> None:
        """Show the latest result; without one, ask what is wrong and start a search."""
        if not self.search.may_begin():
            return
        if self.finding is not None:
            self._show_finding(self.finding)
        else:
            self._ask_criterion()

    def _ask_criterion(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(title, what, kind) for kind, title, what in CRITERIA]
        self._context.dialogs.open(PickerScreen("What is wrong", choices), self._ask_limits)

    def _ask_limits(self, kind: str | None) -> None:
        """Ask for the tolerance or ratio, and for the time limit of each trial."""
        if kind is None:
            return
        slower = kind == "slower"
        title = "speedup without the pass" if slower else "factor on the tolerance"
        initial = f"{Criterion().slower if slower else Criterion().tolerance:g}, {Criterion().each:g} s"
        self._context.dialogs.ask(
            f"{title}, and seconds per trial", initial, lambda text: self._begin_search(kind, text)
        )

    def _begin_search(self, kind: str, text: str) -> None:
        try:
            wanted = parse_criterion(kind, text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self.search.begin(self._search, self._context.workspace.recipe, wanted)

    async def _search(self, recipe: Recipe, wanted: Criterion) -> None:
        show_progress = self._context.jobs.progress(
            lambda what: f"bisecting, {what}{self._context.glyphs.ellipsis} press ctrl+c to stop"
        )
        request = self._context.session.request(Bisect(0, recipe, wanted), show_progress)
        found = await self.search.result_of(request, "no result", "the search was stopped")
        if found is None:
            return
        self.finding = found.finding
        if self._context.dialogs.engaged:
            # The user is typing: those keys must not answer a screen that opens now.
            self._context.say("the search has finished: press b to see the result")
        else:
            self._show_finding(found.finding)

    def _show_finding(self, finding: BisectionResult) -> None:
        from buddy.app.screens.finding import FindingScreen

        self._context.dialogs.open(FindingScreen(finding), self._use_answer)

    def _use_answer(self, act: str | None) -> None:
        finding = self.finding
        if finding is None or act is None:
            return
        if act == "take":
            self._graphs.show(finding.recipe.graph)
            self._context.edits.edit(finding.recipe, "the correct recipe found by bisection")
        elif act == "save":
            self._context.dialogs.ask(
                "write the recipe and the reduced module to the folder", "bisected", self._save_finding
            )
        else:
            self._ask_criterion()

    def _save_finding(self, text: str) -> None:
        if not text.strip() or self.finding is None:
            return
        try:
            written = write_finding(typed_path(text), self.finding)
        except (OSError, ValueError) as error:
            self._context.say(f"{text.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            self._context.say(f"wrote {', '.join(map(str, written))}")
