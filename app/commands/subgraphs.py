"""Parts of the program: nodes as a graph of their own, a graph as a script, and what is at fault by bisection."""

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
    """`origins` say of each graph that was made of nodes which graph those are of; `finding` is the latest answer."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, graphs: GraphCommands) -> None:
        self._context, self._graph, self._graphs = context, graph, graphs
        self.origins: dict[int, int] = {}
        self.finding: BisectionResult | None = None
        self.search = context.jobs.single("bisect", "a search is under way: ctrl+c stops it")

    # ---- extracts ------------------------------------------------------------------------------------------------

    def extract(self) -> None:
        """Go on with the nodes that are picked, or the one under the cursor, as a graph with its real inputs."""
        names = tuple(row.stable for row in self._graph.targets if row.opcode.startswith("call"))
        self._context.jobs.begin("extract", self._extract, names, self._context.workspace.recipe)

    async def _extract(self, names: tuple[str, ...], recipe: Recipe) -> None:
        request = self._context.session.request(Extract(0, recipe, names))
        found = await self._context.jobs.result_of(request, "no extract")
        if found is None:
            return
        known = {row.stable for row in found.info.rows}
        choices = tuple(choice for choice in recipe.choices if choice.node in known)
        self.origins[found.graph] = recipe.graph
        self._graph.picked = set()
        self._context.session.take_extract(found, replace(recipe, graph=found.graph, choices=choices))
        self._graphs.show(found.graph)
        self._context.say(f"{found.info.name} with its real inputs; g b goes back to the whole program")

    @property
    def is_extract(self) -> bool:
        """Whether the graph on the screen was made of nodes of another."""
        return self._context.state.graph in self.origins

    def back_to_whole(self) -> None:
        """Show the graph that the nodes on the screen are of."""
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
        there = [str(file) for file in (path, path.with_suffix(".npz")) if file.exists()]
        question = f"{' and '.join(there)} is there already. Replace it?" if there else ""
        self._context.files.unless_no(question, lambda: self._put_script(path, made))

    def _put_script(self, path: Any, made: Script) -> None:
        try:
            script, values = write_script(path, made)
        except OSError as error:
            self._context.say(f"{path} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"written to {script} and {values.name}")

    # ---- bisection -----------------------------------------------------------------------------------------------

    def bisect(self) -> None:
        """The latest answer, where there is one; else ask what is wrong, and search."""
        if not self.search.may_begin():
            return
        if self.finding is not None:
            self._show(self.finding)
        else:
            self._ask_what()

    def _ask_what(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(title, what, kind) for kind, title, what in CRITERIA]
        self._context.dialogs.open(PickerScreen("What is wrong", choices), self._ask_how_much)

    def _ask_how_much(self, kind: str | None) -> None:
        """The tolerance, and how long a trial may take: what never ends takes that long each time."""
        if kind is None:
            return
        slower = kind == "slower"
        title = "times as fast without the pass" if slower else "tolerance, as a multiple of what is allowed"
        initial = f"{Criterion().slower if slower else Criterion().tolerance:g}, {Criterion().each:g} s"
        self._context.dialogs.ask(f"{title}, and seconds for a trial", initial, lambda text: self._begin(kind, text))

    def _begin(self, kind: str, text: str) -> None:
        try:
            wanted = parse_criterion(kind, text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self.search.begin(self._search, self._context.workspace.recipe, wanted)

    async def _search(self, recipe: Recipe, wanted: Criterion) -> None:
        came = self._context.jobs.progress(
            lambda what: f"bisecting, {what}{self._context.glyphs.ellipsis} ctrl+c stops"
        )
        request = self._context.session.request(Bisect(0, recipe, wanted), came)
        found = await self.search.result_of(request, "no answer", "the search was stopped")
        if found is None:
            return
        self.finding = found.finding
        if self._context.dialogs.engaged:
            # Keys that are being typed elsewhere must not answer what comes up under them.
            self._context.say("the search has its answer: b shows it")
        else:
            self._show(found.finding)

    def _show(self, finding: BisectionResult) -> None:
        from buddy.app.screens.finding import FindingScreen

        self._context.dialogs.open(FindingScreen(finding), self._answered)

    def _answered(self, act: str | None) -> None:
        finding = self.finding
        if finding is None or act is None:
            return
        if act == "take":
            self._graphs.show(finding.recipe.graph)
            self._context.edits.edit(finding.recipe, "the recipe that bisection found to be right")
        elif act == "save":
            self._context.dialogs.ask(
                "write the recipe and the reduced module to the folder", "bisected", self._save_finding
            )
        else:
            self._ask_what()

    def _save_finding(self, text: str) -> None:
        if not text.strip() or self.finding is None:
            return
        try:
            written = write_finding(typed_path(text), self.finding)
        except (OSError, ValueError) as error:
            self._context.say(f"{text.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            self._context.say(f"written: {', '.join(map(str, written))}")
