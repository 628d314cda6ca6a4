"""Subgraphs and exports of a program: nodes as a separate graph, a graph as a script, compiled code as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from buddy.app.reports import formatting
from buddy.app.reports.searches import CRITERIA, parse_criterion, write_finding
from buddy.app.workspace.command_line import ScreenState, write_script
from buddy.app.workspace.inputs import parse_path
from buddy.compiler.protocol import (
    EXPORT_KINDS,
    Bisect,
    BisectionResult,
    Criterion,
    Export,
    ExportKind,
    Extract,
    Script,
    WriteScript,
)
from buddy.compiler.protocol.recipe import TARGETS, Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.commands.sessions import SessionCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane

_TYPED = object()


def parse_kinds(text: str) -> tuple[ExportKind, ...]:
    """The kinds in a text, separated by commas or spaces. Raises `ValueError` that lists the known kinds."""
    found: dict[str, ExportKind] = {kind: kind for kind in EXPORT_KINDS}
    words = text.replace(",", " ").split()
    unknown = [word for word in words if word not in found]
    if unknown or not words:
        raise ValueError(f"unknown kind {next(iter(unknown), '')!r}; known: {', '.join(EXPORT_KINDS)}")
    return tuple(dict.fromkeys(found[word] for word in words))


class ExportCommands:
    """Asks for the kinds and the folder of an export, which the engine writes; edits the recipe's target."""

    def __init__(self, context: WorkbenchContext, sessions: SessionCommands) -> None:
        self._context, self._sessions = context, sessions

    # ---- the target ----------------------------------------------------------------------------------------------

    def choose_target(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        now = self._context.workspace.recipe.target
        choices = [PickerChoice("this machine", "all features of its CPU", "", marked=not now)]
        choices += [PickerChoice(name, summary, name, marked=name == now) for name, summary in TARGETS.items()]
        choices.append(PickerChoice("another", "type NAME:CPU, NAME:CPU:FEATURES, or a triple", _TYPED, marked=False))
        self._context.dialogs.open(PickerScreen("Target of code generation", choices), self._use_choice)

    def _use_choice(self, answer: object) -> None:
        if answer is _TYPED:
            self._context.dialogs.ask("NAME:CPU:FEATURES, such as aarch64:neoverse-v1", "", self._use_target)
        elif answer is not None:
            self._use_target(str(answer))

    def _use_target(self, target: str) -> None:
        recipe, target = self._context.workspace.recipe, target.strip()
        if target != recipe.target:
            self._context.edits.edit(replace(recipe, target=target), f"target {target or 'this machine'}")

    # ---- exports -------------------------------------------------------------------------------------------------

    def ask_export(self) -> None:
        self._context.dialogs.ask(f"export as ({', '.join(EXPORT_KINDS)})", "object", self._ask_folder)

    def _ask_folder(self, text: str) -> None:
        if not text.strip():
            return
        try:
            kinds = parse_kinds(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        name = Path(self._context.workspace.source.partition(":")[0]).stem or "program"
        self._context.dialogs.ask(
            "export to the folder", f"{name}.export", lambda folder: self._export_to(folder, kinds)
        )

    def _export_to(self, folder: str, kinds: tuple[ExportKind, ...]) -> None:
        def question(path: Path) -> str:
            there = path.exists() and any(path.iterdir())
            what = f"{folder.strip()} exists; files with the same names are replaced. Write into it?"
            return what if there else ""

        def start(path: Path, asked: bool) -> None:
            self._context.jobs.begin("export", self._export, path, kinds, asked)

        self._context.files.use_path(folder, start, question, "cannot be written to")

    async def _export(self, folder: Path, kinds: tuple[ExportKind, ...], force: bool) -> None:
        recipe = self._context.workspace.recipe
        words = ("-o", str(folder), "--kind", ",".join(kinds))
        command = self._sessions.command_line(
            ScreenState("export", n_graphs=len(self._context.state.graphs), export_words=words)
        )

        frame = Export(0, recipe, kinds, str(folder), os.getcwd(), force=force, command=command)
        self._context.say(f"exporting to {folder}{self._context.glyphs.ellipsis}")
        made = await self._context.jobs.result_of(self._context.session.request(frame), "nothing was exported")
        if made is not None:
            size = formatting.size(sum(file.size for file in made.files))
            self._context.say(
                f"{len(made.files)} files, {size}, in {made.folder}; see its README.md for how to build them"
            )


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
            path = parse_path(text).with_suffix(".py")
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
        from buddy.app.screens.tables import FindingScreen

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
            written = write_finding(parse_path(text), self.finding)
        except (OSError, ValueError) as error:
            self._context.say(f"{text.strip()}: {getattr(error, 'strerror', None) or error}")
        else:
            self._context.say(f"wrote {', '.join(map(str, written))}")
