"""Finds the cause of a failure: reduces the module of a stage, and bisects the stages of a dump or a recipe."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from buddy.app.actions import key_of
from buddy.app.reports.results import SAVE, USE, Entry, Result, bisection_result
from buddy.app.reports.searches import CRITERIA, bisection_texts, parse_criterion, write_bisection
from buddy.app.workspace.files import write_text_atomically
from buddy.compiler.protocol import Bisect, BisectionResult, Criterion, GraphInfo
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.tools.reduce.failure import Failure, FailureKind, describe, reproduction_script, resolved_command
from buddy.compiler.tools.reduce.reduction import Reduction, ReductionError, ReductionProgress, original_execution

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane
    from buddy.compiler.tools.dumps.bisecting import FirstFailure


# ---- reduction, and bisection of a dump ------------------------------------------------------------------------------


# The module that runs one pass on a file.
_PASS_RUNNER_MODULE = "buddy.compiler.driver.one_pass"
# The answer of the entry of a result that saves the reduced module.
_SAVE_MODULE = "save"
# The failures that the user can choose to keep: kind, title and summary of each.
_FAILURE_CHOICES: tuple[tuple[FailureKind, str, str], ...] = (
    ("crash", "a command crashes", "such as your own mlir-opt, with the same failed assertion"),
    ("verifier", "a command reports an error", "the same error each time, apart from numbers, types and names"),
    ("test", "a test exits with 0", "a script that decides whether a module is interesting"),
)


class _Stopped(Exception):
    """The user has stopped the reduction."""


class ReduceCommands:
    """Reduces the shown stage or the input of the failed pass, and bisects dumps, in processes of this machine."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir
        self._job = context.jobs.single_job(
            "reduce", f"a reduction or bisection is running: press {key_of('cancel')} to stop it"
        )
        # Set when the user stops the job, and when the job has ended. Each job has a new event.
        self._stop_event = threading.Event()

    def reduce(self) -> None:
        """Asks which failure to keep: that of the failed pass, or that of a command on the shown stage."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        if not self._job.may_begin():
            return
        choices, text_and_failed_step = [], self._failed_step()
        if text_and_failed_step is not None:
            text, step = text_and_failed_step
            summary = "reduce the IR before the pass"
            choices.append(PickerChoice(f"{step.name} fails", summary, (text, self._failure_of_step(step))))
        stage = self._ir.chosen_stage
        if stage is not None and stage.language == "mlir" and stage.state != "failed":
            choices += [PickerChoice(title, summary, kind) for kind, title, summary in _FAILURE_CHOICES]
        if not choices:
            self._context.say("only MLIR can be reduced: choose a stage in MLIR")
            return
        name = stage.name if stage is not None else ""

        def use_choice(answer: object) -> None:
            if isinstance(answer, tuple):  # the text before the failed pass, and the failure of that pass
                self._job.begin(self._reduce, *answer)
            elif stage is not None:
                self._ask_command(answer, lambda failure: self._job.begin(self._reduce, stage.text, failure))

        self._context.dialogs.open(PickerScreen(f"Reduce {name} while", choices), use_choice)

    def bisect_dump(self) -> None:
        """Asks for a command, and finds the first stage of the shown graph of a dump on which it fails."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen
        from buddy.compiler.importers.dumps.records import ALL_STAGES

        if not self._context.session.is_local:
            self._context.say("the dump is on the engine's machine: run buddy-tui bisect there")
            return
        if not self._job.may_begin():
            return
        info, source = self._context.state.info, self._context.workspace.source
        graph = "" if info is None or info.name == ALL_STAGES else info.name
        choices = [PickerChoice(title, summary, kind) for kind, title, summary in _FAILURE_CHOICES]

        def use_choice(answer: object) -> None:
            self._ask_command(answer, lambda failure: self._job.begin(self._bisect_dump, source, graph, failure))

        self._context.dialogs.open(PickerScreen("Find the first stage on which", choices), use_choice)

    async def _bisect_dump(self, source: str, graph: str, failure: Failure) -> None:
        """Bisects a dump in a thread, and shows the result. An empty `graph` stands for all stages."""
        from buddy.compiler.tools.dumps.bisecting import BisectionError

        loop, self._stop_event = asyncio.get_running_loop(), threading.Event()
        stop, path = self._stop_event, Path(self._context.session.directory, source)

        def show_progress(message: str) -> None:
            loop.call_soon_threadsafe(self._context.status.show_progress, f"bisecting: {message}")
            if stop.is_set():
                raise _Stopped

        self._job.running = True
        try:
            with self._context.jobs.busy():
                first_failure = await asyncio.to_thread(_first_failure, path, graph, failure, show_progress)
        except BisectionError as error:
            self._context.say(f"not found: {error.diagnostic}")
        except OSError as error:
            self._context.say(f"not found: {failure.command[0]}: {error.strerror or error}")
        except _Stopped:
            self._context.say("the bisection was stopped")
        else:
            texts = tuple((name.partition(".")[0], text) for name, text in first_failure.texts())
            result = Result("First failing stage", tuple(first_failure.lines()), texts=texts)
            self._context.results.show(result, _ignore_answer)
        finally:
            self._job.running = False
            stop.set()

    def stop(self) -> None:
        """Stops the running reduction or bisection, if any. A reduction keeps its smallest module."""
        self._stop_event.set()

    # ---- failures ------------------------------------------------------------------------------------------------

    def _failed_step(self) -> tuple[str, PassStep] | None:
        """The hash of the text of the stage before the pass that failed, and that pass; `None` if none failed."""
        stages, recipe = [row.stage for row in self._context.state.board.rows()], self._context.workspace.recipe
        for before, after in pairwise(stages):
            if after.state == "failed" and 0 <= after.step < len(recipe.steps) and before.language == "mlir":
                return before.text, recipe.steps[after.step]
        return None

    def _failure_of_step(self, step: PassStep) -> Failure:
        """The failure of a pass, as a command that runs the pass alone and reports the same error."""
        recipe: Recipe = self._context.workspace.recipe
        command = [sys.executable, "-m", _PASS_RUNNER_MODULE, "{}", "--pass", step.spelling(), "--anchor", step.anchor]
        for plugin in recipe.plugins:
            command += ["--plugin", str(Path(plugin.path).resolve())]
        return Failure("verifier", tuple(command), os.getcwd(), forks=True)

    def _ask_command(self, answer: object, use_failure: Callable[[Failure], object]) -> None:
        """Asks for the command of a failure, whose kind is `answer`, and calls `use_failure` with the failure.

        Does nothing if `answer` is not a kind of failure: the user chose none.
        """
        kind = next((kind for kind, _, _ in _FAILURE_CHOICES if kind == answer), None)
        if kind is None:
            return
        title = "test, with {} for the module" if kind == "test" else "command, with {} for the module"
        initial = "./interesting.sh {}" if kind == "test" else "mlir-opt {}"

        def begin(typed: str) -> None:
            if not typed.strip():
                return
            try:
                command = resolved_command(shlex.split(typed))
            except ValueError as error:
                self._context.say(f"{typed}: {error}")
            except FileNotFoundError as error:
                self._context.say(f"{error} is neither a program on the path nor an executable file")
            else:
                use_failure(Failure(kind, command, os.getcwd()))

        self._context.dialogs.ask(title, initial, begin)

    # ---- the job -------------------------------------------------------------------------------------------------

    async def _reduce(self, text: str, failure: Failure) -> None:
        """Reduces the module whose text has the hash `text`, in a thread, and shows the result."""
        module = await self._context.queries.fetch_text(text)
        if module is None:
            return
        loop, self._stop_event = asyncio.get_running_loop(), threading.Event()

        def show_progress(message: str) -> None:
            loop.call_soon_threadsafe(self._context.status.show_progress, message)

        self._job.running = True
        try:
            with self._context.jobs.busy():
                reduction = await asyncio.to_thread(_reduce_module, module, failure, self._stop_event, show_progress)
        except ReductionError as error:
            self._context.say(f"not reduced: {error.diagnostic.what}")
            return
        except OSError as error:
            self._context.say(f"not reduced: {failure.command[0]}: {error.strerror or error}")
            return
        finally:
            self._job.running = False
            self._stop_event.set()
        self._show(reduction)

    def _show(self, reduction: Reduction) -> None:
        """Shows a result. The answer acts on this result, even if the log shows it again after a later one."""
        self._context.results.show(_result(reduction), partial(self._use_answer, reduction))

    def _use_answer(self, reduction: Reduction, action: str) -> None:
        if action == _SAVE_MODULE:
            self._context.dialogs.ask("write the reduced module to", "reduced.mlir", partial(self._save, reduction))

    def _save(self, reduction: Reduction, typed: str) -> None:
        """Writes the reduced module to the typed path. Asks before it overwrites a file."""

        def question(path: Path) -> str:
            return f"{path} already exists. Overwrite?" if path.exists() else ""

        self._context.files.use_path(typed, lambda path, _confirmed: self._write(path, reduction), question)

    def _write(self, path: Path, reduction: Reduction) -> None:
        """Writes the reduced module to `path`, and the script that shows the failure next to it."""
        script = path.with_name(f"{path.name}.sh")
        try:
            write_text_atomically(path, reduction.best)
            write_text_atomically(script, reproduction_script(reduction.failure, path))
            script.chmod(0o755)
        except OSError as error:
            self._context.say(f"{path} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {path}, and {script.name}, which shows the failure")


def _ignore_answer(_answer: object) -> None:
    """Does nothing: the result of a bisected dump has no entries to choose."""


def _first_failure(path: Path, graph: str, failure: Failure, show: Callable[[str], object]) -> FirstFailure:
    """Finds the first stage of a dump that shows `failure`, in this thread.

    Raises `BisectionError`, `OSError`, and `_Stopped` if `show` raises it.
    """
    from buddy.compiler.tools.dumps.bisecting import StageBisection, read_dump, stages_to_test

    dump = read_dump(path, show)
    return StageBisection(dump, failure, show).run(stages_to_test(dump, graph))


def _reduce_module(text: str, failure: Failure, stop: threading.Event, show: Callable[[str], object]) -> Reduction:
    """Reduces `text` in this thread until no step applies, or until `stop` is set. Raises like `Reduction.start`."""

    def report(state: ReductionProgress) -> None:
        show(f"reducing {state.original} -> {state.current} {state.unit}, {state.tests} tests: {state.step}")
        if stop.is_set():
            raise _Stopped

    with tempfile.TemporaryDirectory(prefix="buddy-reduce-") as folder:
        original = original_execution(text, failure, folder, "the stage")
        with Reduction(text, failure, report=report) as reduction:
            try:
                reduction.start(original)
                reduction.run()
            except _Stopped:
                pass
    return reduction


def _result(reduction: Reduction) -> Result:
    """The result that the screen shows: the sizes, the failure, and an entry that saves the reduced module."""
    state = reduction.progress
    completeness = "no single step makes it smaller" if reduction.minimal else "stopped: smaller modules may exist"
    conclusions = (
        f"{state.original} -> {state.current} {state.unit}: {completeness}",
        f"{describe(reduction.failure)}; {state.tests} tests in {state.seconds:.1f} s; {state.form}",
    )
    save = Entry("Save", "write the module, and a script that shows the failure", answer=_SAVE_MODULE, key="s")
    return Result("Reduction", conclusions, (save,), texts=(("reduced module", reduction.best),))


# ---- bisection of a recipe -------------------------------------------------------------------------------------------


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
        """Shows the latest result, of any graph. Before the first one, asks what is wrong and starts a bisection.

        For a dump, asks for a command that shows the failure.
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
        """Shows a result. The answer acts on this result, even if the log shows it again after a later one."""
        self._context.results.show(bisection_result(bisection.result), partial(self._use_answer, bisection))

    def _ask_criterion(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(title, summary, kind) for kind, title, summary in CRITERIA]
        self._context.dialogs.open(PickerScreen("What is wrong?", choices), self._ask_limits)

    def _ask_limits(self, kind: str | None) -> None:
        """Asks for the tolerance multiplier or minimum speedup, and for the time limit of each step of a trial."""
        if kind is None:
            return
        defaults = Criterion()
        title, limit = "tolerance multiplier", defaults.tolerance
        if kind == "slower":
            title, limit = "minimum speedup when the pass is disabled", defaults.slower
        self._context.dialogs.ask(
            f"{title}, and seconds per step of a trial",
            f"{limit:g}, {defaults.step_seconds:g} s",
            lambda text: self._begin_bisection(kind, text),
        )

    def _begin_bisection(self, kind: str, text: str) -> None:
        """Starts a bisection for the chosen kind of fault, with the limits in `text`."""
        try:
            criterion = parse_criterion(kind, text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self.job.begin(self._bisect, self._context.workspace.recipe, criterion)

    async def _bisect(self, recipe: Recipe, criterion: Criterion) -> None:
        """Waits for the engine's bisection, and shows the result."""
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
        """Does what the user chooses in the result: uses the recipe, saves it, or bisects again."""
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

    def _save_result(self, result: BisectionResult, typed: str) -> None:
        """Writes the recipe and the reduced module to the typed folder. Asks before it overwrites files."""

        def question(folder: Path) -> str:
            existing = [name for name in bisection_texts(result) if (folder / name).exists()]
            return f"{typed.strip()} already has {' and '.join(existing)}. Overwrite?" if existing else ""

        self._context.files.use_path(typed, lambda folder, _: self._write_result(folder, result), question)

    def _write_result(self, folder: Path, result: BisectionResult) -> None:
        try:
            written = write_bisection(folder, result)
        except OSError as error:
            self._context.say(f"{folder} could not be written: {error.strerror or error}")
        else:
            self._context.say(f"wrote {', '.join(map(str, written))}")
