"""Answers requests about the backends that are other compilers, IREE and Inductor, and compiles with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from buddy.compiler.codegen.iree.options import INSTALL_COMMAND, missing_packages
from buddy.compiler.engine.compiling import CompilationRequest
from buddy.compiler.engine.iree import CheckIreeFlags, CompileByIree, DescribeIree, IreeMessage
from buddy.compiler.engine.programs import CompileResult
from buddy.compiler.engine.worker import (
    EngineWorker,
    WorkerDied,
    WorkerListener,
    call_for_job,
    describe_death,
    wait_for_start,
)
from buddy.compiler.protocol import (
    COMPILER_NAMES,
    IREE_PHASES,
    BackendDescribed,
    CheckFlags,
    Compiled,
    DescribeBackend,
    Diagnostic,
    FlagsChecked,
    Progress,
    Stage,
)
from buddy.compiler.protocol.recipe import INDUCTOR, IREE, NATIVE, OTHER_COMPILERS, Recipe
from buddy.compiler.protocol.worker_messages import Activity, CompileDone, InductorFlags, Message
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.support.target import CXX_TODO, missing_cxx_message

if TYPE_CHECKING:
    from buddy.compiler.engine.compiling import Call
    from buddy.compiler.protocol.connection import Frame


_IREE_EXITED = "the IREE process exited"


class IreeCompilation(CompilationRequest):
    """A compilation by IREE: `compile` compiles to top-level IR in the compiler worker, then `run_iree` runs IREE."""

    # The result of the first part, once the second has started.
    _top_level: CompileResult | None = None

    async def run_iree(self, top_level: CompileResult, call: Call) -> CompileResult:
        """Runs IREE's phases on the artifact of `top_level`; reports each finished phase. Raises `JobFailed`.

        `call` calls the IREE worker.
        """
        self._top_level = top_level
        owner = ("top-level IR", self._request)
        self._store.pin(owner, [stage.text for stage in top_level.stages])
        self._report_phase(top_level)
        try:
            flags, first = self._recipe.backend_flags, len(top_level.stages) - 1  # the worker does not count `fx`
            return await self._follow(
                lambda known_texts: CompileByIree(top_level.artifact, flags, known_texts, first),
                call,
                lambda done: self._finish_iree(top_level, done),
            )
        finally:
            self._store.unpin(owner)

    def _finish(self, done: CompileDone) -> CompileResult:
        stages = (self._graph.fx, *(self._add_stage(data) for data in done.stages))
        return CompileResult(stages, done.artifact, done.assignments, done.remarks, done.seconds, done.reused)

    def _finish_iree(self, top_level: CompileResult, done: CompileDone) -> CompileResult:
        stages = (*top_level.stages, *(self._add_stage(data) for data in done.stages))
        seconds, reused = top_level.seconds + done.seconds, top_level.reused + done.reused
        self._pin(self._kind, stages)
        self._send(Compiled(self._request, self._recipe.graph, stages, seconds, reused, top_level.remarks))
        return CompileResult(stages, done.artifact, top_level.assignments, top_level.remarks, seconds, reused)

    def _add_finished_stage(self, stage: Stage) -> None:
        super()._add_finished_stage(stage)
        if self._top_level is not None:
            self._report_phase(self._top_level)

    def _report_phase(self, top_level: CompileResult) -> None:
        """Sends the progress: the phase of IREE that runs now, which follows the finished stages."""
        number = len(self._stages) - len(top_level.stages)
        name = IREE_PHASES[number] if number < len(IREE_PHASES) else "the module"
        self._send(
            Progress(self._request, f"IREE {number + 1}/{len(IREE_PHASES)} {name}", number / (len(IREE_PHASES) + 1))
        )

    def _describe_crash(self, died: WorkerDied) -> Diagnostic:
        if self._top_level is None:
            return super()._describe_crash(died)
        return describe_death(
            died, _IREE_EXITED, "IREE's compiler", "the stages before it are available; compile again"
        )


class InductorCompilation(CompilationRequest):
    """A compilation by Inductor in a fork of the host, because Inductor needs the graph's inputs."""

    def _handle_note(self, note: Message) -> None:
        if isinstance(note, Activity):
            self._send(Progress(self._request, note.activity, note.done, "compile"))
        else:
            super()._handle_note(note)

    def _describe_crash(self, died: WorkerDied) -> Diagnostic:
        return describe_death(died, "the process with the program exited", "Inductor", "compile again")


class OtherCompiler(Protocol):
    """A backend that is another compiler.

    `compilation` is the class of its compilations. If it `needs_program`, a compilation starts in a fork of the host,
    otherwise in the compiler worker; `finish` completes it.
    """

    @property
    def compilation(self) -> type[CompilationRequest]: ...
    @property
    def needs_program(self) -> bool: ...

    def problem(self) -> Diagnostic | None:
        """Returns the reason why the compiler cannot be used on this machine, `None` if it can."""

    async def finish(self, compilation: Any, result: CompileResult, job: Job) -> CompileResult:
        """Completes a compilation from `result`, that of the host or the compiler worker. Raises `JobFailed`."""

    async def describe(self, job: Job) -> BackendDescribed:
        """Returns the compiler's versions, flags and devices. Raises `JobFailed`."""

    async def flag_problem(self, flags: tuple[str, ...], job: Job) -> str:
        """Returns the reason why the compiler rejects `flags`, "" if it accepts them. Raises `JobFailed`."""

    async def close(self) -> None:
        """Ends the compiler's processes."""


class _Iree:
    """IREE, which compiles top-level IR in a worker that starts when it is first needed."""

    compilation: type[CompilationRequest] = IreeCompilation
    needs_program = False

    def __init__(self, send: Callable[[Frame], None], listener: WorkerListener) -> None:
        self._send = send
        self._worker = EngineWorker("iree", "buddy.compiler.engine.iree:serve", IreeMessage, listener)

    def problem(self) -> Diagnostic | None:
        missing = missing_packages()
        return Diagnostic(missing, "the recipe's backend", INSTALL_COMMAND) if missing else None

    async def close(self) -> None:
        await self._worker.close()

    async def finish(self, compilation: Any, result: CompileResult, job: Job) -> CompileResult:
        async with self._worker.lock:
            await self._wait_for_start(job)
            return await compilation.run_iree(result, self._worker.call)

    async def describe(self, job: Job) -> BackendDescribed:
        described = await self._call(DescribeIree(), job)
        return BackendDescribed(
            job.request,
            IREE,
            described.versions,
            described.flags,
            described.defaults,
            described.targets,
            described.devices,
        )

    async def flag_problem(self, flags: tuple[str, ...], job: Job) -> str:
        return str((await self._call(CheckIreeFlags(flags), job)).problem)

    async def _call(self, request: Message, job: Job) -> Any:
        async with self._worker.lock:
            await self._wait_for_start(job)
            return await call_for_job(self._worker, request, Diagnostic(_IREE_EXITED, "IREE", "try again"))

    async def _wait_for_start(self, job: Job) -> None:
        if not self._worker.is_ready:
            self._send(Progress(job.request, "starting IREE"))
        todo = "check that `python -c 'import iree.compiler'` works in this environment"
        await wait_for_start(self._worker, Diagnostic("the IREE process does not start", "the backend", todo))


class _Inductor:
    """Inductor, which compiles in forks of the host; one-shot processes list and check its settings."""

    compilation: type[CompilationRequest] = InductorCompilation
    needs_program = True

    def problem(self) -> Diagnostic | None:
        missing = missing_cxx_message()
        return Diagnostic(missing, "the recipe's backend", CXX_TODO) if missing else None

    async def close(self) -> None:
        """Does nothing: the processes end with the host, or after one answer."""

    async def finish(self, compilation: Any, result: CompileResult, job: Job) -> CompileResult:
        return result

    async def describe(self, job: Job) -> BackendDescribed:
        settings = await self._call((), job)
        return BackendDescribed(job.request, INDUCTOR, settings.versions, settings.flags, (), ("cpu",), ())

    async def flag_problem(self, flags: tuple[str, ...], job: Job) -> str:
        return str((await self._call(flags, job)).problem)

    async def _call(self, flags: tuple[str, ...], job: Job) -> InductorFlags:
        try:
            return await call_in_process(_DESCRIBE_INDUCTOR, flags, InductorFlags, _DESCRIBE_TIMEOUT)
        except (TookTooLong, CallFailed, OSError) as error:
            what = f"Inductor's settings are not available: {error}"
            raise JobFailed(Diagnostic(what, "a separate process", "try again")) from error


# Lists and checks the settings; run by name, because importing the function here would load torch into the engine.
_DESCRIBE_INDUCTOR = "buddy.compiler.runtime.inductor.program:describe"
# The time limit in seconds for a process that imports torch, which takes a few seconds, and lists Inductor's settings.
_DESCRIBE_TIMEOUT = 120.0


class BackendWorkers:
    """The backends that are other compilers, by name, with their workers."""

    def __init__(self, send: Callable[[Frame], None], listener: WorkerListener) -> None:
        self._send = send
        self._compilers: dict[str, OtherCompiler] = {IREE: _Iree(send, listener), INDUCTOR: _Inductor()}

    async def close(self) -> None:
        for compiler in self._compilers.values():
            await compiler.close()

    def compiler_of(self, recipe: Recipe) -> OtherCompiler | None:
        """Returns the compiler that a recipe names as its backend; `None` if the recipe's own passes compile it.

        Raises `JobFailed` if the compiler is not installed, or if the recipe names a target.
        """
        if recipe.runs_passes:
            return None
        compiler = self._compiler_named(recipe.backend)
        if recipe.target:
            what = f"the target {recipe.target} applies to the native backend only, not to {recipe.backend}"
            todo = "use flags of the backend (--backend-flag=--iree-llvmcpu-target-triple=…), and reset the target"
            raise JobFailed(Diagnostic(what, "the recipe's target", todo))
        return compiler

    async def describe(self, frame: DescribeBackend, job: Job) -> None:
        """Sends the versions, flags and devices of a backend. Raises `JobFailed`."""
        compiler = self._compiler_named(frame.name)
        self._send(Progress(job.request, f"asking {COMPILER_NAMES[frame.name]} for its flags"))
        self._send(await compiler.describe(job))

    async def check_flags(self, frame: CheckFlags, job: Job) -> None:
        """Checks whether a backend accepts flags. Raises `JobFailed`."""
        problem = await self._compiler_named(frame.name).flag_problem(frame.flags, job)
        self._send(FlagsChecked(job.request, problem))

    def _compiler_named(self, name: str) -> OtherCompiler:
        """Returns the compiler called `name`. Raises `JobFailed` if it is unknown or cannot be used here."""
        compiler = self._compilers.get(name)
        if compiler is None:
            todo = f"choose {NATIVE} or {' or '.join(OTHER_COMPILERS)}"
            raise JobFailed(Diagnostic(f"unknown backend {name!r}", "the recipe's backend", todo))
        if (problem := compiler.problem()) is not None:
            raise JobFailed(problem)
        return compiler


def reject_other_backends(what: str) -> Callable[[Any, Job], Any]:
    """Returns a handler that raises `JobFailed`: the request, named `what`, applies to this compiler's code only."""

    async def reject(frame: Any, job: Job) -> None:
        where, todo = "the recipe's backend", "choose the native backend first (--backend native)"
        raise JobFailed(
            Diagnostic(f"{what} applies to this compiler's own code only, not to {frame.recipe.backend}'s", where, todo)
        )

    return reject
