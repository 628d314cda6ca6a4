"""A headless client: starts an engine, sends requests, waits for their answers, and writes files."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from buddy.app.cli import FAILURE, USAGE
from buddy.app.cli.arguments import (
    Parser,
    engine_place,
    log_options,
    parse_with_script_arguments,
    shapes_of,
    working_folder,
)
from buddy.app.cli.console import Console
from buddy.app.cli.recipes import (
    UsageError,
    base_recipes,
    enter_at_phase,
    graph_numbers,
    graph_recipes,
    with_eager_nodes,
)
from buddy.app.session.client import EngineClient, EngineLost, RequestFailed
from buddy.app.workspace.command_line import write_script
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
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import Recipe, rebased
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice

Answer = TypeVar("Answer")


class Failure(Exception):
    """A request failed. `stages` has the stages that were compiled before the failure."""

    def __init__(self, diagnostic: Diagnostic, stages: tuple[Stage, ...] = ()) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic, self.stages = diagnostic, stages


@dataclass
class CollectedCompilation:
    """The results of a compilation, collected from its frames."""

    stages: dict[int, Stage] = field(default_factory=dict)
    assignments: tuple[Assignment, ...] = ()
    compiled: Compiled | None = None
    report: RunReport | None = None

    def take(self, frame: Any) -> None:
        if isinstance(frame, StageDone):
            self.stages[frame.stage.index] = frame.stage
        elif isinstance(frame, Assigned):
            self.assignments = frame.assignments
        elif isinstance(frame, Compiled):
            self.compiled = frame
        elif isinstance(frame, Ran):
            self.report = frame.report

    def ordered(self, at_failure: tuple[Stage, ...] = ()) -> tuple[Stage, ...]:
        return (*(stage for _, stage in sorted(self.stages.items())), *at_failure)


class _Opening:
    """Waits for the graphs of a script, and stops a script that exceeds the time limit. Only its run time counts."""

    def __init__(self, timeout: float, stop: Callable[[], None]) -> None:
        self._timeout, self._stop = timeout, stop
        self._clock: asyncio.TimerHandle | None = None
        self.captured: Captured | None = None
        self.too_long = False

    def take(self, frame: Any) -> None:
        if isinstance(frame, Captured):
            self.captured = frame
        elif isinstance(frame, WorkerState) and (frame.worker, frame.state) == ("host", "busy") and not self._clock:
            self._clock = asyncio.get_running_loop().call_later(self._timeout, self._stop_script)

    def stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()

    def _stop_script(self) -> None:
        self.too_long = True
        self._stop()


class Headless:
    """An engine that handles one request at a time, with a console for progress and messages.

    `graphs` are the graphs of the opened program, `files` are its files. `step_seconds` limits each step of a
    compilation.
    """

    def __init__(self, client: EngineClient, console: Console, step_seconds: float = math.inf) -> None:
        self.client, self.console, self._step_seconds = client, console, step_seconds
        self.graphs: tuple[GraphInfo, ...] = ()
        self.files: tuple[str, ...] = ()

    async def program(self, options: argparse.Namespace, arguments: tuple[str, ...]) -> list[Recipe]:
        """Open the source. Returns the recipes of the graphs that the options select."""
        presets = await self.client.request(ListPresets(0))
        bases = base_recipes(options, presets.presets, arguments)
        wanted = tuple(dict.fromkeys(plugin for base in bases for plugin in base.plugins))
        frontend = bases[0].frontend
        request, shapes = self.client.next_request(), shapes_of(options)
        trusts = getattr(options, "trust", False)
        frame = Open(request, options.source, arguments, working_folder(options), wanted, shapes, frontend, trusts)
        captured = await self._open(frame, options.timeout)
        for note in captured.notes:
            self.console.note(f"note: {note}")
        bases = [msgspec.structs.replace(base, plugins=captured.plugins) for base in bases]
        self.graphs, self.files = captured.graphs, captured.files
        recipes = graph_recipes(bases, graph_numbers(options.graph, captured.graphs))
        recipes = [enter_at_phase(recipe, options, captured.graphs[recipe.graph]) for recipe in recipes]
        return with_eager_nodes(recipes, options.eager, captured.graphs)

    def from_preset(self, preset: Recipe, recipe: Recipe) -> Recipe:
        """`recipe` with the passes of a preset."""
        graph = self.graphs[recipe.graph]
        return adapt_to_phase(rebased(preset, recipe), graph.enters, graph.dialects)

    async def graph_of_program(
        self, options: argparse.Namespace, arguments: tuple[str, ...], nodes: Collection[str] = ()
    ) -> Recipe:
        """Open the source. Returns the recipe of the one graph that the options select.

        Without `--graph`, this is the first graph that has `nodes`, or the first graph; a note says which.
        """
        recipes = await self.program(options, arguments)
        found = next((recipe for recipe in recipes if self._has(recipe.graph, nodes)), recipes[0])
        if len(recipes) > 1:
            names = ", ".join(f"{number} ({graph.name})" for number, graph in enumerate(self.graphs))
            self.console.note(f"note: this is graph {found.graph} of {names}; use --graph for another one")
        return found

    def _has(self, graph: int, nodes: Collection[str]) -> bool:
        names = {name for row in self.graphs[graph].rows for name in (row.name, row.stable)}
        return names.issuperset(nodes)

    async def compile(self, recipe: Recipe) -> CollectedCompilation:
        """Compile `recipe`. Returns all stages. Raises `Failure`."""
        return await self._collect(Compile(self.client.next_request(), recipe))

    async def run(
        self, recipe: Recipe, repeats: int, timeout: float, inputs: InputChoice = OWN_INPUTS, equal_nan: bool = False
    ) -> CollectedCompilation:
        """Compile and run `recipe`. Returns all stages and the report. Raises `Failure`."""
        request = self.client.next_request()
        return await self._collect(Run(request, recipe, repeats, timeout, inputs=inputs, equal_nan=equal_nan))

    async def answer(self, frame: Request[Answer]) -> Answer:
        """Sends `frame`, prints progress, and returns the answer. Raises `Failure`."""
        found: list[Any] = []
        await self._follow(frame, found.append)
        answer: Answer = found[-1]
        return answer

    async def _open(self, frame: Open, timeout: float) -> Captured:
        opening = _Opening(timeout, lambda: self.client.send(Cancel(frame.request)))
        try:
            await self._follow(frame, opening.take)
        except Failure:
            if not opening.too_long:
                raise
            what = f"{frame.source} exceeded the time limit of {timeout:g} s and was stopped"
            todo = "let the script end, or give it more time (--timeout)"
            raise Failure(Diagnostic(what, frame.source, todo)) from None
        finally:
            opening.stop_clock()
        assert opening.captured is not None
        return opening.captured

    async def _collect(self, frame: Request[Any]) -> CollectedCompilation:
        compilation = CollectedCompilation()
        try:
            limit = lambda: self._step_seconds if compilation.compiled is None else math.inf  # noqa: E731
            await self._follow(frame, compilation.take, limit)
        except Failure as failure:
            raise Failure(failure.diagnostic, compilation.ordered(failure.stages)) from failure
        for who, _node, text in compilation.compiled.remarks if compilation.compiled else ():
            if who == NOT_APPLIED:
                self.console.note(f"note: {text}")
        return compilation

    async def _follow(
        self, frame: Request[Any], take: Callable[[Any], None], limit: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Send `frame`, and call `take` with each frame of its answer.

        Raises `Failure` if the request fails, or if there is no frame for `limit()` seconds during a step.
        """
        self.client.send(frame)
        frames, at = self.client.frames(), ""
        while True:
            seconds = limit() if at else math.inf
            try:
                answer = await asyncio.wait_for(anext(frames), None if seconds == math.inf else seconds)
            except asyncio.TimeoutError:
                self.client.send(Cancel(frame.request))
                todo = "disable it (--disable), or give it more time (--step-timeout)"
                raise Failure(
                    Diagnostic(f"{at} exceeded the time limit of {seconds:g} s and was stopped", "", todo)
                ) from None
            if isinstance(answer, Progress):
                at = answer.what
            if isinstance(answer, Printout):
                self.console.printed(answer.text, answer.stream)
            elif isinstance(answer, Progress):
                self.console.progress(answer.what)
            elif isinstance(answer, Failed):
                raise Failure(answer.diagnostic, answer.stages)
            else:
                take(answer)
            if isinstance(answer, answer_type(type(frame))):
                self.console.done()
                return


def run_with_engine(options: argparse.Namespace, console: Console, talk: Callable[[Headless], Awaitable[int]]) -> int:
    """Start an engine, call `talk` with it, and stop it. A failure becomes one message and an exit code."""
    try:
        return asyncio.run(_talk(options, console, talk))
    except UsageError as error:
        console.error(Diagnostic(str(error)))
        return USAGE
    except (Failure, RequestFailed) as error:
        console.error(error.diagnostic)
        return FAILURE
    except EngineLost as error:
        console.error(
            Diagnostic(error.reason, "the engine", "write a log with --log FILE and read it", detail=error.detail)
        )
        return FAILURE


Talk = Callable[[Headless, argparse.Namespace, tuple[str, ...]], Awaitable[int]]


def run_verb_on_program(parser: Parser, words: Sequence[str], talk: Talk, *, data_with_json: bool = False) -> int:
    """Like `run_with_engine`, for a verb on a program: parses `words`, and passes the script's arguments to `talk`.

    Stdout is for data; with `data_with_json`, only if the user asks for JSON.
    """
    options, script = parse_with_script_arguments(parser, words)
    console = Console(options.plain, stdout_is_data=not data_with_json or options.json)
    return run_with_engine(options, console, lambda engine: talk(engine, options, script))


async def _talk(options: argparse.Namespace, console: Console, talk: Callable[[Headless], Awaitable[int]]) -> int:
    client = EngineClient(engine_place(options), log_options(options), lambda what: console.note(what or "reconnected"))
    try:
        await client.start()
        return await talk(Headless(client, console, getattr(options, "step_timeout", math.inf)))
    finally:
        await client.close()


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` in this block into a `UsageError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from error


async def save_script(engine: Headless, recipe: Recipe, path: Path) -> list[str]:
    """Write the graph of `recipe` as a script, with a `.npz` of its tensors. Prints and returns both paths."""
    made = await engine.client.request(WriteScript(0, recipe))
    with reporting_write_errors(path):
        files = [str(found) for found in write_script(path, made)]
    engine.console.note(f"wrote {' and '.join(files)}")
    return files
