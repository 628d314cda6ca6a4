"""Opens, compiles and runs programs for the engine's client, in workers that may exit at any moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from buddy.compiler.engine.backends import BackendWorkers
from buddy.compiler.engine.compiling import PIN_KINDS, CompilationRequest, CompilerClient, store_text
from buddy.compiler.engine.programs import (
    CompileResult,
    CompileResults,
    GraphRecord,
    OpenedProgram,
    ProgramKey,
    Programs,
    program_of,
    record_of,
    resolve_plugins,
)
from buddy.compiler.engine.reopening import SavedPrograms
from buddy.compiler.engine.run_values import RunValues, drop_values
from buddy.compiler.engine.worker import (
    EngineWorker,
    HostStart,
    WorkerDied,
    WorkerListener,
    WorkerRequestError,
    call_for_job,
    wait_for_start,
)
from buddy.compiler.protocol import (
    Assigned,
    Captured,
    CodeExplained,
    Compile,
    Compiled,
    Diagnostic,
    ExplainCode,
    Open,
    Part,
    Progress,
    Ran,
    Reopened,
    Run,
    StageDone,
    WorkerState,
)
from buddy.compiler.protocol.connection import WorkerStatus
from buddy.compiler.protocol.recipe import F32, OWN_FRONTENDS, Recipe
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import (
    Activity,
    CapturedGraphData,
    CollectRemarks,
    CollectRemarksInHost,
    CompileGraph,
    CompileInHost,
    Execute,
    ExtractNodes,
    HostMessage,
    ImportGraph,
    Message,
    NativeCode,
    PrepareRun,
    RunnerState,
    StopRunner,
)
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


# Sends a frame to the client.
Send = Callable[[Any], None]


class _HostProgram(NamedTuple):
    """The program that a host process (`generation`) has loaded or tried to load; `key` is `None` if that failed."""

    generation: int
    key: ProgramKey | None


class EngineSession:
    """The opened programs, their compilations and texts, and the workers that load, compile and run them."""

    def __init__(self, send: Send, store: TextStore, listener: WorkerListener) -> None:
        self._send, self._store = send, store
        self.programs, self._results = Programs(), CompileResults()
        self.values = RunValues(send)
        self.host = EngineWorker("host", "buddy.compiler.engine.host:serve", HostMessage, listener)
        self.compiler = CompilerClient(send, listener)
        self.backends = BackendWorkers(send, listener)
        self._host_program = _HostProgram(0, None)
        # Whether an earlier session captured the host's graphs: the host can then run their code, but nothing else.
        self._host_reuses_graphs = False
        self._saved = SavedPrograms(store)
        # Held by a compilation, so that the latest compilation pins its texts last. Taken before a worker's lock.
        self._compiling = asyncio.Lock()
        # For each program, an event that is set when the latest request to open it has ended.
        self._openings: dict[ProgramKey, asyncio.Event] = {}
        self.host_start = HostStart(self.host.start)

    def replace_unstarted_workers(self) -> None:
        """Replaces the host and the compiler worker if they have not started in time."""
        self.host.replace_if_unstarted()
        self.compiler.worker.replace_if_unstarted()

    async def close(self) -> None:
        await self.host.close()
        await self.compiler.worker.close()
        await self.backends.close()
        await self._saved.close()
        self.values.close()

    # ---- opening ------------------------------------------------------------------------------------------------

    async def open(self, frame: Open, job: Job) -> None:
        """Loads a program, and sends its graphs; before that, those of an earlier session if they are saved."""
        plugins, plugin_notes = resolve_plugins(frame.plugins, frame.directory)
        shapes, frontend, trusts = frame.shapes, frame.frontend, frame.trusts
        key = ProgramKey(frame.source, frame.arguments, frame.directory, plugins, shapes, frontend, trusts)
        has_ended, known_graph = asyncio.Event(), b""
        self._openings[key] = has_ended
        try:
            if frame.reopens and self.programs.latest(key) is None:
                known_graph = await self._restore(key, job)
            latest = self.programs.latest(key)
            if latest is None or not latest.is_restored:
                self.compiler.worker.start()
            self.host_start.start_now()
            async with self.host.lock:
                job.started = True
                loaded = await self._load(key, job, frame.reopens, known_graph if frame.reuses else b"")
                program = replace(loaded, reopens=frame.reopens)
            self._unpin_old_graphs(self.programs.add(program), program)
        finally:
            has_ended.set()
        self.values.clear()
        graphs = tuple(record.info for record in program.graphs)
        notes = (*plugin_notes, *program.notes)
        self._send(Captured(job.request, graphs, notes, program.seconds, plugins, program.files))

    async def _restore(self, key: ProgramKey, job: Job) -> bytes:
        """Adds the program that an earlier session has saved, unless a file has changed, and sends its graphs.

        Then waits, so that the client can draw the program before the workers start. Returns
        `ProgramLoaded.known_graph` of the saved program; b"" if no program was added.
        """
        with self.host_start.postponed():
            saved = await self._saved.find(key)
            if saved is None:
                return b""
            self._store_texts(saved.loaded.graphs)
            program = replace(program_of(key, saved.loaded), reopens=True, is_restored=True)
            self._pin_graph_texts(program)
            self.programs.add(program)
            graphs = tuple(record.info for record in program.graphs)
            self._send(Reopened(job.request, graphs, program.notes, program.files, saved.saved_at))
            await asyncio.sleep(_SHOW_SECONDS)
        return saved.loaded.known_graph

    def _unpin_old_graphs(self, old: OpenedProgram | None, new: OpenedProgram) -> None:
        """Unpins the texts of the graphs of `old` that `new` does not have."""
        new_keys = {record.key for record in new.graphs}
        for record in old.graphs if old else ():
            if record.key not in new_keys:
                imported = self.programs.imports.pop(record.key, record)
                for kind in PIN_KINDS:
                    self._store.unpin((kind, record.key))
                    self._store.unpin((kind, imported.key))

    async def _load(self, key: ProgramKey, job: Job, saves: bool = False, known_graph: bytes = b"") -> OpenedProgram:
        """Loads the program in the host, after replacing a host that has loaded a program before.

        `saves` says whether to save the program on disk. The graph that `known_graph` describes is not captured again
        if the program still computes the same results.
        """
        if self._host_program.generation == self.host.generation and self.host.is_ready:
            await self.host.restart("new host for the next program")
        await self._wait_for_host(job)
        self._host_program = _HostProgram(self.host.generation, None)
        self._send_progress(job, "running the script", part="script")
        started_at = time.time()
        try:
            request = msgspec.structs.replace(key.load_request(), known_graph=known_graph)
            loaded = await self._call_host(request, _describe_load_crash(key), job)
        except JobFailed:
            self._replace_host()
            raise
        self._host_program, self._host_reuses_graphs = _HostProgram(self.host.generation, key), loaded.is_reused
        self._store_texts(loaded.graphs)
        program = program_of(key, loaded)
        self._pin_graph_texts(program)
        if saves and not loaded.is_reused:
            self._saved.save(key, loaded, started_at)
        return program

    def _pin_graph_texts(self, program: OpenedProgram) -> None:
        """Pins the texts of each graph's first stage and code; unpins those of the program's previous loading."""
        names = [name for record in program.graphs for name in (record.fx.text, record.info.code)]
        self._store.pin(("fx", program.key), names)

    def _replace_host(self) -> None:
        """Replaces the host that failed, so that a new one is ready when the user has corrected the script."""
        if self._host_program.generation == self.host.generation:
            self.host.kill("new host for the next attempt")

    async def _wait_for_host(self, job: Job) -> None:
        if not self.host.is_ready:
            self._send_progress(job, "importing torch", part="torch")
        todo = "check that `python -c 'import torch'` works in this environment"
        await wait_for_start(self.host, Diagnostic("the process that runs scripts does not start", "the host", todo))

    async def _call_host(self, request: Message, crash: Diagnostic, job: Job, stop: Message | None = None) -> Any:
        """Returns the host's reply. Raises `JobFailed`, with `crash` if the host exits."""
        return await call_for_job(self.host, request, crash, lambda note: self._handle_host_note(note, job), stop)

    def _handle_host_note(self, note: Message, job: Job) -> None:
        if isinstance(note, Activity):
            self._send_progress(job, note.activity, note.done, note.part)
        elif isinstance(note, RunnerState):
            running_state: WorkerStatus = "stopped" if note.stopped else "busy"
            ended_state: WorkerStatus = "dead" if note.reason else "ready"
            self._send(WorkerState("runner", running_state if note.running else ended_state, note.reason))

    # ---- compiling ----------------------------------------------------------------------------------------------

    async def compile(self, frame: Compile, job: Job) -> None:
        """Compiles a graph, and sends its stages."""
        program = self.programs.opened(frame.recipe)
        kind = "comparison" if frame.for_comparison else "main"
        await self._compile(program, frame.recipe, job, resend=True, kind=kind)

    async def result_of(self, recipe: Recipe, job: Job, kind: str) -> CompileResult:
        """Compiles `recipe`; its texts are stored until the next compilation of that `kind`."""
        return await self._compile(await self._program_for_host(recipe), recipe, job, kind=kind)

    async def _compile(
        self, program: OpenedProgram, recipe: Recipe, job: Job, resend: bool = False, kind: str = "main",
        send: Send | None = None, needs_stages: bool = True, meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> CompileResult:  # fmt: skip
        """Returns the result of compiling `recipe`, from the cache if possible.

        Stages and progress are sent to `send`, by default the client; the stages of a cached result are sent only if
        `resend` is set. The texts are stored until the next compilation of that `kind`. Without `needs_stages`, the
        result may have no stages. While the compiler worker compiles native code, `meanwhile` runs.
        """
        other_compiler = self.backends.compiler_of(recipe)
        needs_program = other_compiler is not None and other_compiler.needs_program
        if needs_program:
            program = await self._program_for_host(recipe)
        program = await self._with_import(program, recipe, job)
        graph = program.graph_of(recipe)
        compilation_class = other_compiler.compilation if other_compiler is not None else CompilationRequest
        compilation = compilation_class(send or self._send, self._store, graph, recipe, job.request, kind)
        async with self._compiling:
            cached, is_from_disk = await self._find_result(program, graph, recipe, needs_stages)
            resend |= is_from_disk and send is None  # the client has not seen these stages
            if cached is not None:
                job.started = True
                if resend:
                    self._send_cached(cached, recipe, job)
                    self._store.pin((kind, graph.key), [stage.text for stage in cached.stages])
                return cached
            if needs_program:
                job.started = True
                result = await self._compile_in_host(compilation, program, recipe, job)
            else:
                if other_compiler is not None:
                    needs_stages, meanwhile = True, None
                result = await self._compile_graph(compilation, program, recipe, job, needs_stages, meanwhile)
        if other_compiler is not None:
            result = await other_compiler.finish(compilation, result, job)
        self._results.put(graph.key, recipe, result)
        if kind == "main":
            self._saved.save_result(program, graph, recipe, result)
        return result

    async def _compile_graph(
        self, compilation: CompilationRequest, program: OpenedProgram, recipe: Recipe, job: Job, needs_stages: bool,
        meanwhile: Callable[[], Awaitable[None]] | None,
    ) -> CompileResult:  # fmt: skip
        """Compiles in the compiler worker while `meanwhile` runs; in the host if the script has registrations."""
        async with self.compiler.worker.lock:
            job.started = True
            if program.graph_of(recipe).registrations:
                return await self._compile_in_host(compilation, program, recipe, job)
            compiling = self._compile_in_worker(compilation, program, recipe, job, needs_stages)
            return await _run_alongside(compiling, meanwhile)

    async def _find_result(
        self, program: OpenedProgram, graph: GraphRecord, recipe: Recipe, needs_stages: bool
    ) -> tuple[CompileResult | None, bool]:
        """Returns the result of an earlier compilation, or `None`, and whether the result was read from disk.

        The store has the texts of the result. A result without stages is returned only without `needs_stages`.
        """
        allowed = (True,) if needs_stages else (False, True)
        for has_stages in allowed:
            if (result := self._cached_result(graph, recipe, has_stages)) is not None:
                return result, False
        for has_stages in allowed:
            if (result := await self._saved.find_result(program, graph, recipe, has_stages)) is not None:
                self._results.put(graph.key, recipe, result)
                return result, True
        return None, False

    def _cached_result(self, graph: GraphRecord, recipe: Recipe, has_stages: bool) -> CompileResult | None:
        """Returns the result of an earlier compilation in this session whose texts are stored, or `None`."""
        result = self._results.get(graph.key, recipe, has_stages)
        return result if result is not None and all(stage.text in self._store for stage in result.stages) else None

    async def _with_import(self, program: OpenedProgram, recipe: Recipe, job: Job) -> OpenedProgram:
        """Returns the program. If the recipe's frontend needs an import, the program's graph has the import."""
        graph = program.graph_of(recipe)
        if recipe.frontend in (*OWN_FRONTENDS, program.key.frontend) or graph.info.entry_phase:
            return program
        imports = self.programs.imports
        # A graph whose script has added to the registries is compiled in the host, so the host needs the import.
        if graph.key not in imports or graph.registrations:
            async with self.host.lock:
                job.started = True
                await self._reload_in_host(program, recipe, job)
                self._send_progress(job, f"importing by {recipe.frontend}")
                reply = await self._call_host(ImportGraph(recipe.graph), _HOST_EXITED, job, StopRunner())
            imports[graph.key] = record_of(reply.graph, graph.registrations)
        return program.with_import(recipe.graph, imports[graph.key])

    async def _compile_in_worker(
        self, compilation: CompilationRequest, program: OpenedProgram, recipe: Recipe, job: Job, needs_stages: bool
    ) -> CompileResult:
        graph = program.graph_of(recipe)
        await self.compiler.send_graph(graph, program.key.plugins, job)

        def make_request(known_texts: tuple[str, ...]) -> Message:
            return CompileGraph(graph.key, recipe, known_texts, needs_stages)

        return await compilation.compile(make_request, self.compiler.worker.call)

    async def _compile_in_host(
        self, compilation: CompilationRequest, program: OpenedProgram, recipe: Recipe, job: Job
    ) -> CompileResult:
        """Compiles in a fork of the host, which has the program's inputs and the script's registrations."""
        async with self.host.lock:
            await self._reload_in_host(program, recipe, job)

            def call(request: Message, note: Callable[[Message], None]) -> Any:
                return self.host.call(request, note, StopRunner())

            return await compilation.compile(lambda known_texts: CompileInHost(recipe.graph, recipe, known_texts), call)

    async def explain_code(self, frame: ExplainCode, job: Job) -> None:
        """Collects LLVM's remarks on the code of a recipe."""
        recipe = frame.recipe
        program = self.programs.opened(recipe)
        graph = program.graph_of(recipe)
        self._send_progress(job, "collecting LLVM's remarks")
        if graph.registrations:
            reply = await self.call_host_for(recipe, CollectRemarksInHost(recipe.graph, recipe), job, StopRunner())
        else:
            async with self.compiler.worker.lock:
                await self.compiler.send_graph(graph, program.key.plugins, job)
                reply = await self.compiler.call(CollectRemarks(graph.key, recipe))
        self._send(CodeExplained(job.request, recipe.graph, reply.remarks))

    def _send_cached(self, result: CompileResult, recipe: Recipe, job: Job) -> None:
        """Sends the frames of a compilation whose result was cached."""
        self._send(Assigned(job.request, recipe.graph, result.assignments))
        for stage in result.stages:
            self._send(StageDone(job.request, recipe.graph, stage))
        reused = len(result.stages)
        self._send(Compiled(job.request, recipe.graph, result.stages, 0.0, reused, result.remarks))

    async def _program_for_host(self, recipe: Recipe) -> OpenedProgram:
        """Returns the program of `recipe`, for a request to the host. Raises like `Programs.opened`.

        If the graphs come from an earlier session, first waits until the script has run again.
        """
        program = self.programs.opened(recipe)
        if program.is_restored and (has_ended := self._openings.get(program.key)) is not None:
            await has_ended.wait()
        return self.programs.opened(recipe)

    # ---- running ------------------------------------------------------------------------------------------------

    async def run(self, frame: Run, job: Job) -> None:
        """Compiles a graph, then runs its code in a fork of the host and compares the results with eager's."""
        recipe = frame.recipe
        program = await self._program_for_host(recipe)
        compiled = await self._compile(
            program, recipe, job, kind="comparison" if frame.for_comparison else "main", needs_stages=frame.stages,
            meanwhile=lambda: self._prepare_run(program, frame),
        )  # fmt: skip
        native = None if recipe.runs_passes else await self._compile_native(program, recipe, job)
        async with self.host.lock:
            only_runs = recipe.runs_passes and not frame.runtimes
            await self._reload_in_host(program, recipe, job, only_runs)
            self._send_progress(job, "running", part="run")
            folder = self.values.new_folder() if frame.store_values else None
            request = Execute(
                graph=recipe.graph,
                artifact=compiled.artifact,
                repeats=frame.repeats,
                threads=recipe.threads,
                nodes=compiled.nodes,
                compile_seconds=compiled.seconds,
                timeout=frame.timeout * (_RUNTIMES_TIME_FACTOR if frame.runtimes else 1),
                inputs=frame.inputs,
                values=frame.values,
                values_folder=str(folder or ""),
                native=native,
                equal_nan=frame.equal_nan,
                runtimes=frame.runtimes,
                mark=frame.mark,
                backend=recipe.backend,
            )
            try:
                executed = await self._call_host(request, _HOST_EXITED_IN_RUN, job, StopRunner())
            except BaseException:
                drop_values(folder)
                raise
        if folder is not None:
            self.values.add(recipe.graph, folder)
        self._send(Ran(job.request, executed.report, executed.values))

    async def _prepare_run(self, program: OpenedProgram, frame: Run) -> None:
        """Computes what the verdict of a run needs while the code is compiled.

        Does nothing if precisions or runtimes give the run another reference than eager, or if the host must first load
        the program. An error is not reported: the run computes the same again.
        """
        recipe = frame.recipe
        has_other_reference = recipe.precision != F32 or recipe.precisions or frame.runtimes
        if has_other_reference or self._host_program != (self.host.generation, program.key):
            return
        async with self.host.lock:
            request = PrepareRun(recipe.graph, recipe.threads, frame.timeout, frame.inputs)
            with suppress(WorkerRequestError, WorkerDied):
                await self.host.call(request, stop=StopRunner())

    async def _compile_native(self, program: OpenedProgram, recipe: Recipe, job: Job) -> NativeCode:
        """Compiles the recipe of another backend with this compiler, to run both codes. Sends progress, no stages."""

        def send_progress(frame: Frame) -> None:
            if isinstance(frame, Progress):
                self._send(frame)

        try:
            result = await self._compile(program, recipe.for_native(), job, kind="native", send=send_progress)
        except JobFailed as failed:
            return NativeCode(problem=str(failed.diagnostic))
        return NativeCode(result.artifact, result.seconds)

    # ---- other requests about a program --------------------------------------------------------------------------

    async def call_host_for(self, recipe: Recipe, request: Message, job: Job, stop: Message | None = None) -> Any:
        """Returns the host's reply to a request about the program of `recipe`, after loading it again if necessary.

        Cancelling the job sends `stop`, if the request can be stopped; otherwise it kills the host.
        """
        program = await self._program_for_host(recipe)
        program.graph_of(recipe)  # raises if the graph is unknown
        async with self.host.lock:
            await self._reload_in_host(program, recipe, job)
            return await self._call_host(request, _HOST_EXITED, job, stop)

    def add_extract(self, recipe: Recipe, nodes: tuple[str, ...], data: CapturedGraphData) -> int:
        """Adds a graph that was extracted from the graph of `recipe` to its program; returns its number."""
        program = self.programs.find(recipe)
        assert program is not None
        self._store_texts((data,))
        extended = program.with_extract(recipe.graph, nodes, data)
        self.programs.add(extended)
        record = extended.graphs[-1]
        self._store.pin(("fx", extended.key, len(extended.graphs)), [record.fx.text, record.info.code])
        return len(extended.graphs) - 1

    def _store_texts(self, graphs: Sequence[CapturedGraphData]) -> None:
        for data in graphs:
            store_text(self._store, data.fx.text)
            store_text(self._store, data.code)

    async def _reload_in_host(self, program: OpenedProgram, recipe: Recipe, job: Job, only_runs: bool = False) -> None:
        """Loads the program in the host unless the host has loaded it.

        With `only_runs`, the request only runs compiled code: the host may have reused the graph of an earlier session.
        Otherwise the host must have captured the graph. Raises `JobFailed` if the graph of `recipe` has changed.
        """
        if self._host_program == (self.host.generation, program.key) and (only_runs or not self._host_reuses_graphs):
            self._check_same_graph(self.programs.latest(program.key) or program, program, recipe)
            return
        reloaded = await self._load(program.key, job)
        for graph, nodes in program.extracts:
            reply = await self._call_host(ExtractNodes(graph, nodes), _HOST_EXITED, job)
            reloaded = reloaded.with_extract(graph, nodes, reply.graph)
        self._check_same_graph(reloaded, program, recipe)
        if program.is_restored:
            self.programs.add(replace(program, is_restored=False))

    def _check_same_graph(self, loaded: OpenedProgram, program: OpenedProgram, recipe: Recipe) -> None:
        """Raises `JobFailed` if the graph of `recipe` in `program` is not the same as in `loaded`."""
        loaded_keys = [record.key for record in loaded.graphs[recipe.graph : recipe.graph + 1]]
        # A graph with its import by another frontend has another key than the captured graph.
        imports = [self.programs.imports.get(key) for key in loaded_keys]
        loaded_keys += [record.key for record in imports if record is not None]
        if program.graph_of(recipe).key not in loaded_keys:
            what = f"{program.key.source} now has other graphs than when it was opened"
            raise JobFailed(Diagnostic(what, program.key.source, "open it again, then compile and run"))

    # ---- helpers ------------------------------------------------------------------------------------------------

    def _send_progress(self, job: Job, activity: str, done: float = -1.0, part: Part | Literal[""] = "") -> None:
        self._send(Progress(job.request, activity, done, part))


# The delay of the workers' start, in seconds, in which the client draws a program of an earlier session.
_SHOW_SECONDS = 0.5
# The export of a program to other runtimes, and the search for a node, take several times as long as a run.
_RUNTIMES_TIME_FACTOR = 5
_HOST_EXITED = Diagnostic("the process with the program exited", "the host", "try again: the source is loaded again")
_HOST_EXITED_IN_RUN = Diagnostic(
    "the process with the program exited", "the host, while it ran", "run again: the source is loaded again first"
)


async def _run_alongside(
    work: Coroutine[Any, Any, CompileResult], meanwhile: Callable[[], Awaitable[None]] | None
) -> CompileResult:
    """Returns the result of `work`, when `meanwhile` has ended too; if `work` fails, `meanwhile` is cancelled."""
    if meanwhile is None:
        return await work
    meanwhile_task = asyncio.ensure_future(meanwhile())
    try:
        result = await work
        await meanwhile_task
        return result
    finally:
        if not meanwhile_task.done():
            meanwhile_task.cancel()
            await asyncio.wait([meanwhile_task])


def _describe_load_crash(key: ProgramKey) -> Diagnostic:
    todo = "the script, or a library it uses, ended its process; see its printout, then open it again"
    return Diagnostic(f"{key.source} ended the process that runs it", key.source, todo)
