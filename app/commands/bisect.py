"""Finds what makes a recipe wrong or slow by bisecting its choices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.reports.results import SAVE, USE, bisection_result
from buddy.app.reports.searches import CRITERIA, bisection_texts, parse_criterion, write_bisection
from buddy.compiler.protocol import Bisect, BisectionResult, Criterion, GraphInfo
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.commands.reduce import ReduceCommands
    from buddy.app.panes.context import WorkbenchContext


class BisectCommands:
    """Bisects wrong recipes. Opening the program again drops the latest result."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands, reduce: ReduceCommands) -> None:
        self._context, self._graphs, self._reduce = context, graphs, reduce
        # The latest result, and the graph that was bisected.
        self._bisected: tuple[BisectionResult, GraphInfo] | None = None
        self.job = context.jobs.single("bisect", f"a bisection is running: press {key_of('cancel')} to stop it")

    def bisect(self) -> None:
        """Show the latest result, of any graph. Before the first one, ask what is wrong and start a bisection.

        For a dump, ask for a command that shows the failure.
        """
        if self._context.workspace.recipe.is_dump:
            self._reduce.bisect_dump()
            return
        if not self.job.may_begin():
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
        self.job.begin(self._bisect, self._context.workspace.recipe, criterion)

    async def _bisect(self, recipe: Recipe, criterion: Criterion) -> None:
        show_progress = self._context.jobs.progress(
            lambda activity: f"bisecting, {activity}{self._context.glyphs.ellipsis} press {key_of('cancel')} to stop"
        )
        info = self._context.state.graphs[recipe.graph]
        request = self._context.session.request(Bisect(0, recipe, criterion), show_progress)
        answer = await self.job.result_of(
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
