"""Finds what makes a recipe wrong or slow by bisecting its choices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from buddy.app.actions import key_of
from buddy.app.reports.bisections import CRITERIA, bisection_texts, parse_criterion, write_bisection
from buddy.app.reports.results import SAVE, USE, bisection_result
from buddy.compiler.protocol import Bisect, BisectionResult, Criterion, GraphInfo
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.commands.reduce import ReduceCommands
    from buddy.app.panes.context import WorkbenchContext


class _Bisection(NamedTuple):
    """The result of a bisection, and the graph that was bisected."""

    result: BisectionResult
    info: GraphInfo


class BisectCommands:
    """Bisects recipes that fail, differ from eager or are slow. Opening the program again drops the latest result."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands, reduce: ReduceCommands) -> None:
        self._context, self._graphs, self._reduce = context, graphs, reduce
        self._latest: _Bisection | None = None
        self.job = context.jobs.single_job("bisect", f"a bisection is running: press {key_of('cancel')} to stop it")

    def bisect(self) -> None:
        """Show the latest result, of any graph. Before the first one, ask what is wrong and start a bisection.

        For a dump, ask for a command that shows the failure.
        """
        if self._context.workspace.recipe.is_dump:
            self._reduce.bisect_dump()
            return
        if not self.job.may_begin():
            return
        if self._latest is not None and self._is_current(self._latest):
            self._show(self._latest)
        else:
            self._ask_criterion()

    def _is_current(self, bisection: _Bisection) -> bool:
        """Whether the program has not been opened again since the bisection."""
        return any(bisection.info is graph for graph in self._context.state.graphs)

    def _show(self, bisection: _Bisection) -> None:
        """Show a result. The answer acts on this result, also if it is shown again from the log after a later one."""
        self._context.results.show(bisection_result(bisection.result), partial(self._use_answer, bisection))

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
        """Start a bisection for the chosen kind of fault, with the limits in `text`."""
        try:
            criterion = parse_criterion(kind, text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self.job.begin(self._bisect, self._context.workspace.recipe, criterion)

    async def _bisect(self, recipe: Recipe, criterion: Criterion) -> None:
        """Wait for the engine's bisection, and show the result."""
        show_progress = self._context.jobs.progress_callback(
            lambda activity: f"bisecting, {activity}{self._context.glyphs.ellipsis} press {key_of('cancel')} to stop"
        )
        info = self._context.state.graphs[recipe.graph]
        request = self._context.session.request(Bisect(0, recipe, criterion), show_progress)
        answer = await self.job.result_of(
            request, "bisection failed", f"Cancelled. Press {key_of('bisect')} to bisect again"
        )
        if answer is None:
            return
        self._latest = _Bisection(answer.finding, info)
        self._show(self._latest)

    def _use_answer(self, bisection: _Bisection, action: str) -> None:
        """Do what the user chooses in the result: use the recipe, save it, or bisect again."""
        if not self._is_current(bisection):
            self._context.say("the program was opened again: the result of the bisection is out of date")
            return
        result = bisection.result
        if action == USE:
            self._graphs.show(result.recipe.graph)
            self._context.edits.edit(result.recipe, "the recipe found by bisection")
        elif action == SAVE:
            self._context.dialogs.ask(
                "write the recipe and the reduced module to the folder", "bisected", partial(self._save_result, result)
            )
        else:
            self._ask_criterion()

    def _save_result(self, result: BisectionResult, text: str) -> None:
        """Write the recipe and the reduced module to the typed folder. Asks before it overwrites files."""

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
