"""A headless client: starts an engine, sends requests, waits for their answers, and writes files."""

from __future__ import annotations

import argparse
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from buddy.app.cli import FAILURE, USAGE_ERROR
from buddy.app.cli.arguments import (
    Parser,
    engine_location,
    is_dump,
    log_options,
    parse_program,
    plugins_of,
    shapes_of,
    working_folder,
)
from buddy.app.cli.console import Console
from buddy.app.cli.recipes import (
    UsageError,
    base_recipes,
    disable_earlier_phases,
    graph_numbers,
    graph_recipes,
    with_eager_nodes,
)
from buddy.app.session.progress import PartTimes
from buddy.app.workspace.files import write_script
from buddy.app.workspace.presets import with_steps_of
from buddy.compiler.protocol import (
    NOT_APPLIED,
    Assigned,
    Assignment,
    Cancel,
    Captured,
    Compile,
    Compiled,
    Diagnostic,
    Failed,
    GraphInfo,
    ListPresets,
    Open,
    Preset,
    Printout,
    Progress,
    Ran,
    Request,
    Run,
    RunReport,
    Stage,
    StageDone,
    WorkerState,
    WriteScript,
    answer_type,
)
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice, Mark

if TYPE_CHECKING:
    import asyncio

    from buddy.app.session.client import EngineClient
    from buddy.compiler.protocol.connection import Frame

Answer = TypeVar("Answer")


class Failure(BuddyError):
    """A request failed. `stages` are the stages before the failure, and the IR at the failure, as far as they exist."""

    def __init__(self, diagnostic: Diagnostic, stages: tuple[Stage, ...] = ()) -> None:
        super().__init__(diagnostic)
        self.stages = stages


@dataclass
class CollectedCompilation:
    """The results of a compilation, collected from its frames.

    `stages` are by their index in the pipeline. `compiled` is the answer to a compilation, `report` that to a run.
    """

    stages: dict[int, Stage] = field(default_factory=dict)
    assignments: tuple[Assignment, ...] = ()
    compiled: Compiled | None = None
    report: RunReport | None = None

    def add(self, frame: Frame) -> None:
        """Adds the result that a frame has."""
        if isinstance(frame, StageDone):
            self.stages[frame.stage.index] = frame.stage
        elif isinstance(frame, Assigned):
            self.assignments = frame.assignments
        elif isinstance(frame, Compiled):
            self.compiled = frame
        elif isinstance(frame, Ran):
            self.report = frame.report

    def ordered_stages(self) -> tuple[Stage, ...]:
        """The stages in pipeline order."""
        return tuple(stage for _, stage in sorted(self.stages.items()))


class _CaptureWatch:
    """Handles the frames up to the capture of a script, and calls `stop` if the script runs longer than `timeout`.

    `timeout` is in seconds, from when the host worker starts the script. `captured` is the answer, and `timed_out` says
    whether `stop` was called.
    """

    def __init__(self, timeout: float, stop: Callable[[], None]) -> None:
        self._timeout, self._stop = timeout, stop
        self._timer: asyncio.TimerHandle | None = None
        self.captured: Captured | None = None
        self.timed_out = False

    def handle(self, frame: Frame) -> None:
        """Takes the answer, and starts the timer when the script starts."""
        if isinstance(frame, Captured):
            self.captured = frame
        elif isinstance(frame, WorkerState) and (frame.worker, frame.state) == ("host", "busy") and not self._timer:
            import asyncio

            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._stop_script)

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _stop_script(self) -> None:
        self.timed_out = True
        self._stop()


class Headless:
    """A client that sends one request at a time to the engine, and shows progress and messages on a console.

    `graphs` are the graphs of the opened program, `files` are its files, `presets` the presets that it may use.
    `step_seconds` is the time limit of each step of a compilation. With `reopens`, the engine uses compilations of
    earlier sessions; with `reuses`, also captured graphs of earlier sessions that still give the model's results.
    `times` are the seconds that the parts of all requests took, such as capture and lowering.
    """

    def __init__(self, client: EngineClient, console: Console, step_seconds: float = math.inf) -> None:
        self.client, self.console, self._step_seconds = client, console, step_seconds
        self.graphs: tuple[GraphInfo, ...] = ()
        self.presets: tuple[Preset, ...] = ()
        self.files: tuple[str, ...] = ()
        self.reopens = self.reuses = False
        self.times = PartTimes()

    async def open_program(self, options: argparse.Namespace, arguments: tuple[str, ...]) -> list[Recipe]:
        """Opens the source. Returns the recipes of the graphs that the options select.

        `arguments` are those of the script. Raises `UsageError`, and `Failure` if the program cannot be captured.
        """
        presets = await self.client.request(ListPresets(0, working_folder(options), plugins_of(options)))
        self.presets = presets.presets
        for note in presets.notes:
            self.console.note(f"note: {note}")
        bases = base_recipes(options, presets.presets, arguments)
        frame = Open(
            self.client.new_request_id(),
            options.source,
            arguments,
            working_folder(options),
            plugins=tuple(dict.fromkeys(plugin for base in bases for plugin in base.plugins)),
            shapes=shapes_of(options),
            frontend=bases[0].frontend,
            trusts=getattr(options, "trust", False),
            reopens=self.reopens,
            reuses=self.reuses,
        )
        captured = await self._open(frame, options.timeout)
        for note in captured.notes:
            self.console.note(f"note: {note}")
        bases = [msgspec.structs.replace(base, plugins=captured.plugins) for base in bases]
        self.graphs, self.files = captured.graphs, captured.files
        recipes = graph_recipes(bases, graph_numbers(options.graph, captured.graphs))
        recipes = [disable_earlier_phases(recipe, options, captured.graphs[recipe.graph]) for recipe in recipes]
        if is_dump(options) and options.disable:
            recipes = [await self._without_dump_steps(recipe, options.disable) for recipe in recipes]
        return with_eager_nodes(recipes, options.eager, captured.graphs)

    async def _without_dump_steps(self, recipe: Recipe, selectors: Sequence[str]) -> Recipe:
        """The recipe of a dump without the selected steps: by `NAME` all of that name, by `NAME#2` the second.

        Raises `UsageError` for an unknown step.
        """
        stages = (await self.compile(recipe)).ordered_stages()
        skipped: set[int] = set()
        for selector in selectors:
            name, _, number = selector.partition("#")
            steps = list(dict.fromkeys(stage.step for stage in stages if stage.name == name and stage.step >= 0))
            if number.isdigit() and int(number) > 0:
                steps = steps[int(number) - 1 : int(number)]
            if not steps:
                known = ", ".join(dict.fromkeys(stage.name for stage in stages if stage.step >= 0))
                raise UsageError(
                    f"the dump has no step {selector!r} that can be run again; its steps: {known or 'none'}"
                )
            skipped.update(steps)
        return msgspec.structs.replace(recipe, skipped_steps=tuple(sorted(skipped)))

    def with_steps_of(self, preset: Recipe, recipe: Recipe) -> Recipe:
        """`recipe` with the passes of `preset`, except those of phases before the entry phase of its graph."""
        graph = self.graphs[recipe.graph]
        return adapt_to_phase(with_steps_of(recipe, preset), graph.entry_phase, graph.dialects)

    async def open_graph(
        self, options: argparse.Namespace, arguments: tuple[str, ...], nodes: Collection[str] = ()
    ) -> Recipe:
        """Opens the source. Returns the recipe of one graph: of the first that has all `nodes`, or else of the first.

        With `--graph`, it is the recipe of that graph. Otherwise, if there are several graphs, prints its name.
        Raises like `open_program`.
        """
        recipes = await self.open_program(options, arguments)
        selected = next((recipe for recipe in recipes if self._has_nodes(recipe.graph, nodes)), recipes[0])
        if len(recipes) > 1:
            names = ", ".join(f"{number} ({graph.name})" for number, graph in enumerate(self.graphs))
            self.console.note(f"note: only graph {selected.graph} of {names}; use --graph for another one")
        return selected

    def _has_nodes(self, graph: int, nodes: Collection[str]) -> bool:
        return all(self.graphs[graph].nodes_named(node) for node in nodes)

    async def compile(self, recipe: Recipe) -> CollectedCompilation:
        """Compiles `recipe`. Returns all stages. Raises `Failure`."""
        return await self._collect(Compile(self.client.new_request_id(), recipe))

    async def run(
        self, recipe: Recipe, repeats: int, timeout: float, inputs: InputChoice = OWN_INPUTS, equal_nan: bool = False,
        runtimes: tuple[str, ...] = (), mark: Mark = "auto", stages: bool = True,
    ) -> CollectedCompilation:  # fmt: skip
        """Compiles and runs `recipe`. Returns all stages and the report. Raises `Failure`.

        `timeout` is in seconds. The other parameters are those of `Run`; without `stages`, stages after `fx` may be
        missing.
        """
        frame = Run(
            self.client.new_request_id(),
            recipe,
            repeats,
            timeout,
            inputs=inputs,
            equal_nan=equal_nan,
            runtimes=runtimes,
            mark=mark,
            stages=stages,
        )
        return await self._collect(frame)

    async def request(self, frame: Request[Answer]) -> Answer:
        """Sends `frame` and shows its progress. Returns the answer. Raises `Failure`."""
        frames: list[Any] = []
        await self._follow(frame, frames.append)
        answer: Answer = frames[-1]
        return answer

    async def _open(self, frame: Open, timeout: float) -> Captured:
        """Sends `frame`. Returns the answer. Raises `Failure`, also if the script takes more than `timeout` seconds."""
        watch = _CaptureWatch(timeout, lambda: self.client.send(Cancel(frame.request)))
        try:
            await self._follow(frame, watch.handle)
        except Failure:
            if not watch.timed_out:
                raise
            what = f"{frame.source} exceeded the time limit of {timeout:g} s and was stopped"
            todo = "change the script so that it ends, or give it more time (--timeout)"
            raise Failure(Diagnostic(what, frame.source, todo)) from None
        finally:
            watch.cancel_timer()
        assert watch.captured is not None
        return watch.captured

    async def _collect(self, frame: Request[Frame]) -> CollectedCompilation:
        """Sends `frame`, which compiles a recipe. Returns the results. Prints the notes, and the choices not applied.

        Raises `Failure`, also if a step of the compilation exceeds its time limit. The engine limits the time of a run.
        """
        compilation = CollectedCompilation()

        def step_limit() -> float:
            return self._step_seconds if compilation.compiled is None else math.inf

        try:
            await self._follow(frame, compilation.add, step_limit)
        except Failure as failure:
            raise Failure(failure.diagnostic, (*compilation.ordered_stages(), *failure.stages)) from failure
        if compilation.compiled is not None:
            for note in compilation.compiled.notes:
                self.console.note(f"note: {note}")
            for author, _node, text in compilation.compiled.remarks:
                if author == NOT_APPLIED:
                    self.console.note(f"note: {text}")
        return compilation

    async def _follow(
        self,
        request: Request[Answer],
        handle: Callable[[Frame], None],
        step_limit: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Sends `request`, shows progress and output, and calls `handle` with each other frame, up to the answer.

        Raises `Failure` if the request fails. After the first progress frame, also raises it if no frame arrives for
        `step_limit()` seconds: it cancels the request, and the error names the step of the last progress frame.
        """
        import asyncio

        self.client.send(request)
        frames, step = self.client.frames(), ""
        while True:
            seconds = step_limit() if step else math.inf
            try:
                frame = await asyncio.wait_for(anext(frames), None if seconds == math.inf else seconds)
            except asyncio.TimeoutError:
                self.client.send(Cancel(request.request))
                todo = "disable it (--disable), or give it more time (--step-timeout)"
                raise Failure(
                    Diagnostic(f"{step} exceeded the time limit of {seconds:g} s and was stopped", "", todo)
                ) from None
            if isinstance(frame, Printout):
                self.console.print_output(frame.text, frame.stream)
            elif isinstance(frame, Progress):
                step = frame.activity
                self.times.record(frame.part)
                self.console.progress(step)
            elif isinstance(frame, Failed):
                raise Failure(frame.diagnostic, frame.stages)
            else:
                handle(frame)
            if isinstance(frame, answer_type(type(request))):
                self.console.clear_progress()
                self.times.stop()
                return


def run_with_engine(
    options: argparse.Namespace,
    console: Console,
    verb: Callable[[Headless], Awaitable[int]],
    failure_code: int = FAILURE,
) -> int:
    """Calls `verb` with the client of a new engine. Returns the exit code.

    Prints a failure, and then returns `failure_code`, or `USAGE_ERROR`. Modules that only an engine needs are imported
    here, after the command line has been checked.
    """
    import asyncio

    from buddy.app.session.client import EngineError, RequestFailed

    try:
        return asyncio.run(_run_with_client(options, console, verb))
    except UsageError as error:
        console.error(Diagnostic(str(error)))
        return USAGE_ERROR
    except (Failure, RequestFailed) as error:
        console.error(error.diagnostic)
        return failure_code
    except EngineError as error:
        console.error(
            Diagnostic(error.reason, "the engine", "write a log with --log FILE and read it", detail=error.detail)
        )
        return failure_code


# A verb on a program: called with the engine, the options and the script's arguments; returns the exit code.
Verb = Callable[[Headless, argparse.Namespace, tuple[str, ...]], Awaitable[int]]


def run_verb_on_program(parser: Parser, words: Sequence[str], verb: Verb, *, data_with_json: bool = False) -> int:
    """Parses `words`, starts an engine, and calls `verb`. Returns the exit code, like `run_with_engine`.

    The script's output goes to stderr, because stdout is for data; with `data_with_json`, only if `--json` is given.
    """
    options, script = parse_program(parser, words)
    console = Console(options.plain, stdout_is_data=not data_with_json or options.json)
    return run_with_engine(options, console, lambda engine: verb(engine, options, script))


async def _run_with_client(
    options: argparse.Namespace, console: Console, verb: Callable[[Headless], Awaitable[int]]
) -> int:
    """Starts an engine, calls `verb` with its client, and stops the engine. Returns the exit code of `verb`."""
    from buddy.app.session.client import EngineClient

    def note_connection(lost: str) -> None:
        console.note(lost or "reconnected")

    # A dump needs no worker with torch or MLIR: with this flag, the engine starts none before it knows what it opens.
    client = EngineClient(
        engine_location(options), log_options(options), note_connection, reopens_saved_graphs=is_dump(options)
    )
    try:
        await client.start()
        return await verb(Headless(client, console, getattr(options, "step_timeout", math.inf)))
    finally:
        await client.close()


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Turns an `OSError` in this block into a `UsageError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from error


async def save_script(engine: Headless, recipe: Recipe, path: Path) -> list[str]:
    """Writes the graph of `recipe` as a script, with a `.npz` of its tensors. Prints and returns both paths.

    Raises `UsageError` if a file cannot be written.
    """
    script = await engine.client.request(WriteScript(0, recipe))
    with reporting_write_errors(path):
        files = [str(file) for file in write_script(path, script)]
    engine.console.note(f"wrote {' and '.join(files)}")
    return files
