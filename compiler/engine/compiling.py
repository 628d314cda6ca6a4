"""Compiles in workers: what the compiler worker has loaded, and the course of one compilation.

`CompilerClient` makes sure that the compiler worker has the plug-ins and the graph that a request needs.
`CompilationRequest` collects the stages, texts and result of a compilation from the worker's notes and reply.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.engine.programs import CompileResult, GraphRecord
from buddy.compiler.engine.worker import (
    EngineWorker,
    WorkerDied,
    WorkerListener,
    WorkerRequestError,
    call_for_job,
    describe_death,
    wait_for_start,
)
from buddy.compiler.protocol import Assigned, Compiled, Diagnostic, Progress, Stage, StageDone
from buddy.compiler.protocol.recipe import CODE_STEP, LOWERING_STEP, PluginFile, Recipe
from buddy.compiler.protocol.text.lines import IndexedText, MachineCode
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import (
    Assignments,
    CompileDone,
    CompilerMessage,
    LoadPlugins,
    Message,
    StageData,
    StageNote,
    StepNote,
    StoreGraph,
    TextData,
)
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


# ---- the compiler worker ---------------------------------------------------------------------------------------------


_NO_PLUGINS: tuple[PluginFile, ...] = ()
_NOT_STARTED = Diagnostic(
    "the compiler's process does not start",
    "the compiler",
    "check that the MLIR bindings are installed: `pip install torch-mlir`",
)
_EXITED = Diagnostic("the compiler process exited", "the compiler", "try again")


@dataclass
class _ProcessState:
    """The plug-ins and graphs that one compiler process (`generation`) has, and its plug-ins' errors (`notes`).

    `has_loaded` says whether the process has been asked to load plug-ins. Even a request without `plugins` loads the
    installed ones.
    """

    generation: int = 0
    graphs: set[str] = field(default_factory=set)
    plugins: tuple[PluginFile, ...] = _NO_PLUGINS
    notes: tuple[str, ...] = ()
    has_loaded: bool = False

    def record_plugins(self, plugins: tuple[PluginFile, ...], notes: tuple[str, ...]) -> None:
        """Records that `plugins` are loaded.

        Graphs that were sent before must be sent again, because they may contain ops that `plugins` register.
        """
        self.plugins, self.notes, self.has_loaded = plugins, notes, True
        self.graphs.clear()

    def record_graph(self, key: str, stored: Collection[str]) -> None:
        """Records that graph `key` was sent; the worker, which evicts old graphs, now has the graphs `stored`."""
        self.graphs = {*self.graphs.intersection(stored), key}


class CompilerClient:
    """The compiler worker, and what its current process has loaded. Callers hold `worker.lock`."""

    def __init__(self, send: Callable[[Frame], None], listener: WorkerListener) -> None:
        self._send = send
        self.worker = EngineWorker("compiler", "buddy.compiler.engine.compiler:serve", CompilerMessage, listener)
        self._process = _ProcessState()

    async def send_graph(self, graph: GraphRecord, plugins: tuple[PluginFile, ...], job: Job) -> None:
        """Makes sure that the process has `plugins` and `graph`. Raises `JobFailed`."""
        await self.load_plugins(plugins, job)
        if graph.key not in self._process.graphs:
            stored = await self.call(StoreGraph(graph.key, graph.data))
            self._process.record_graph(graph.key, stored.keys)

    async def load_plugins(self, plugins: tuple[PluginFile, ...], job: Job) -> tuple[str, ...]:
        """Makes sure that the process has exactly `plugins`; returns their errors. Raises `JobFailed`.

        A process cannot unload a plug-in, so one that has loaded other plug-ins is replaced.
        """
        await self._wait_for_start(job)
        is_current = self._process.generation == self.worker.generation
        if is_current and self._process.plugins not in (_NO_PLUGINS, plugins):
            await self.worker.restart("new compiler for other plug-ins")
            await self._wait_for_start(job)
        if self._process.generation != self.worker.generation:
            self._process = _ProcessState(self.worker.generation)
        if self._process.plugins != plugins or not self._process.has_loaded:
            loaded = await self.call(LoadPlugins(plugins))
            self._process.record_plugins(plugins, tuple(map(str, loaded.problems)))
        return self._process.notes

    async def call(self, request: Message) -> Any:
        """Returns the process's reply. Raises `JobFailed`."""
        return await call_for_job(self.worker, request, _EXITED)

    async def _wait_for_start(self, job: Job) -> None:
        if not self.worker.is_ready:
            self._send(Progress(job.request, "starting the compiler"))
        await wait_for_start(self.worker, _NOT_STARTED)


# ---- one compilation -------------------------------------------------------------------------------------------------


_CRASH_HINT = "the stages before the crash are available; switch the pass off, or compile again"


def store_text(store: TextStore, text: TextData | None) -> None:
    """Adds a text from a worker to the store."""
    if text is not None:
        machine = MachineCode(text.machine, text.machine_sizes)
        line_sets = array("I", text.line_sets)
        store.put(text.name, IndexedText(text.content, line_sets, text.sets, text.derived, machine))


# Sends a message to a worker and returns the reply; the notes before the reply go to the second argument.
Call = Callable[[Message, Callable[[Message], None]], Awaitable[Any]]


# The kinds under which texts of a graph are pinned: the purposes of compilations, and "failed" for the stages of a
# compilation that failed.
PIN_KINDS = ("main", "comparison", "native", "failed", "profile", "export")


class CompilationRequest:
    """One compilation of `graph` for request number `request`.

    `kind` is the purpose of the compilation: "main" for the client's recipe, "comparison" for a comparison with it,
    "native" for this compiler's code in a run of another backend, "profile" or "export". The texts stay stored until
    the next complete compilation of the graph with the same `kind`.
    """

    def __init__(
        self, send: Callable[[Frame], None], store: TextStore, graph: GraphRecord, recipe: Recipe, request: int,
        kind: str = "main",
    ) -> None:  # fmt: skip
        self._send, self._store, self._kind = send, store, kind
        self._graph, self._recipe, self._request = graph, recipe, request
        # The step that runs: its index in the recipe, `LOWERING_STEP` or `CODE_STEP`; `None` before the first one.
        self._step: int | None = None
        # The finished stages, by their index.
        self._stages: dict[int, Stage] = {}

    async def compile(
        self,
        make_request: Callable[[tuple[str, ...]], Message],
        call: Call,
    ) -> CompileResult:
        """Compiles the graph, and returns the result.

        `make_request` makes the request to the worker from the names of the texts that the engine already has, and
        `call` sends it. Raises `JobFailed` with the stages at the failure.
        """
        return await self._follow(make_request, call, self._finish)

    async def _follow(
        self,
        make_request: Callable[[tuple[str, ...]], Message],
        call: Call,
        finish: Callable[[CompileDone], CompileResult],
    ) -> CompileResult:
        """Calls the worker, handles its notes, and returns the result of `finish` for its reply. Raises `JobFailed`."""
        known_texts = self._store.names()
        self._store.pin(("request", self._request), known_texts)
        try:
            return finish(await call(make_request(known_texts), self._handle_note))
        except WorkerRequestError as error:
            stages = self._failed_stages(error.reply.stages)
            self._pin("failed", [*self._stages.values(), *stages])
            raise JobFailed(error.diagnostic, stages) from error
        except WorkerDied as died:
            self._pin("failed", self._stages.values())
            raise JobFailed(self._describe_crash(died)) from died
        finally:
            self._store.unpin(("request", self._request))

    def _handle_note(self, note: Message) -> None:
        if isinstance(note, Assignments):
            self._send(Assigned(self._request, self._recipe.graph, note.assignments))
            self._add_finished_stage(self._graph.fx)
        elif isinstance(note, StepNote):
            self._start_step(note.step)
        elif isinstance(note, StageNote):
            stage = self._add_stage(note.data)
            self._add_finished_stage(stage)

    def _add_finished_stage(self, stage: Stage) -> None:
        self._stages[stage.index] = stage
        self._send(StageDone(self._request, self._recipe.graph, stage))

    def _add_stage(self, data: StageData) -> Stage:
        """Stores the text of a stage, and returns the stage with its index increased by one: stage 0 is `fx`."""
        store_text(self._store, data.text)
        return msgspec.structs.replace(data.stage, index=data.stage.index + 1)

    def _failed_stages(self, stages: tuple[StageData, ...]) -> tuple[Stage, ...]:
        """Stores the texts of the stages at the failure, and returns these stages, numbered after the finished ones."""
        numbered_stages = enumerate(stages, start=len(self._stages))
        return tuple(msgspec.structs.replace(self._add_stage(data), index=index) for index, data in numbered_stages)

    def _finish(self, done: CompileDone) -> CompileResult:
        stages = (self._graph.fx, *(self._add_stage(data) for data in done.stages))
        has_stages = bool(done.stages)  # a compilation without stages has only `fx`
        if has_stages:
            self._pin(self._kind, stages)
        self._send(Compiled(self._request, self._recipe.graph, stages, done.seconds, done.reused, done.remarks))
        return CompileResult(
            stages, done.artifact, done.assignments, done.remarks, done.seconds, done.reused, has_stages
        )

    def _pin(self, kind: str, stages: Iterable[Stage]) -> None:
        """Pins the texts of `stages`, and unpins those of the graph's previous compilation of the same kind."""
        self._store.pin((kind, self._graph.key), [stage.text for stage in stages])

    def _start_step(self, step: int) -> None:
        """Records the step that starts, and reports the progress."""
        self._step = step
        order = _execution_order(self._recipe)
        done = order.index(step) / len(order)
        self._send(Progress(self._request, self._step_text(step), done, "compile"))

    def _step_text(self, step: int) -> str:
        """Returns the text of the progress, such as "pass 2/7 canonicalize"."""
        if step == LOWERING_STEP:
            return "lowering"
        if step == CODE_STEP:
            return "generating machine code"
        passes = [index for index in _execution_order(self._recipe) if index >= 0]
        return f"pass {1 + passes.index(step)}/{len(passes)} {self._recipe.steps[step].name}"

    def _describe_crash(self, died: WorkerDied) -> Diagnostic:
        """Returns the diagnostic of a crash of the worker, with the step at which it occurred."""
        step = self._step
        if step is None:
            where = "before the first pass"
        elif step >= 0:
            where = f"pass {self._recipe.steps[step].name} (step {step + 1})"
        else:
            where = "lowering" if step == LOWERING_STEP else "translating to LLVM IR and generating machine code"
        diagnostic = describe_death(died, "the compiler crashed", where, _CRASH_HINT)
        return msgspec.structs.replace(diagnostic, step=-1 if step is None else max(step, -1))


def _execution_order(recipe: Recipe) -> list[int]:
    """Returns the indices of the enabled steps, with `LOWERING_STEP` and `CODE_STEP`, in execution order.

    Graph passes run before lowering, wherever the recipe lists them.
    """
    enabled = [(index, step) for index, step in enumerate(recipe.steps) if step.enabled]
    graph_passes = [index for index, step in enabled if step.level == "graph"]
    mlir_passes = [index for index, step in enabled if step.level != "graph"]
    return [*graph_passes, LOWERING_STEP, *mlir_passes, CODE_STEP]
