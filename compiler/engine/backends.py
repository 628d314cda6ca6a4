"""IREE as a backend: compiles top-level IR, describes IREE's versions, flags and devices, and checks recipes for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.codegen.iree.installed import TODO, missing_packages
from buddy.compiler.engine.compiling import CompilationRequest
from buddy.compiler.engine.iree_messages import CheckIreeFlags, CompileByIree, DescribeIree, IreeMessage
from buddy.compiler.engine.programs import CompileResult
from buddy.compiler.engine.worker import EngineWorker, Listener, RequestRefused, WorkerDied, describe_death
from buddy.compiler.protocol import (
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
from buddy.compiler.protocol.recipe import IREE, NATIVE, Recipe
from buddy.compiler.protocol.worker_messages import CompileDone, Message
from buddy.compiler.support.processes.jobs import Job, JobFailed

_EXITED = "the IREE process exited"


class IreeCompilation(CompilationRequest):
    """A compilation by IREE: `result` compiles to top-level IR in the compiler worker, then `run_iree` runs IREE."""

    _top_level: CompileResult | None = None

    async def run_iree(
        self, top_level: CompileResult, call: Callable[[Message, Callable[[Message], None]], Any]
    ) -> CompileResult:
        """Runs IREE's phases on the artifact of `top_level`; reports each finished phase. Raises `JobFailed`."""
        self._top_level = top_level
        owner = ("top-level IR", self._request)
        self._store.pin(owner, [stage.text for stage in top_level.stages])
        self._report_phase(top_level)
        try:
            flags, number = self._recipe.backend_flags, len(top_level.stages) - 1
            return await self._follow(
                lambda known: CompileByIree(top_level.artifact, flags, known, number),
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
        number = len(self._stages) - len(top_level.stages)
        name = IREE_PHASES[number] if number < len(IREE_PHASES) else "the module"
        self._send(
            Progress(self._request, f"IREE {number + 1}/{len(IREE_PHASES)} {name}", number / (len(IREE_PHASES) + 1))
        )

    def _describe_crash(self, died: WorkerDied) -> Diagnostic:
        if self._top_level is None:
            return super()._describe_crash(died)
        return describe_death(died, _EXITED, "IREE's compiler", "the stages before it are available; compile again")


class BackendWorkers:
    """The worker of IREE, which starts when it is first needed."""

    def __init__(self, send: Callable[[Any], None], listener: Listener) -> None:
        self._send = send
        self._iree = EngineWorker("iree", "buddy.compiler.engine.iree:serve", IreeMessage, listener)

    async def close(self) -> None:
        await self._iree.close()

    async def continue_with_iree(
        self, compilation: IreeCompilation, top_level: CompileResult, job: Job
    ) -> CompileResult:
        """Runs IREE's part of a compilation, on the top-level IR of `top_level`. Raises `JobFailed`."""
        async with self._iree.lock:
            await self._wait_until_ready(job)
            return await compilation.run_iree(top_level, self._iree.call)

    async def describe(self, frame: DescribeBackend, job: Job) -> None:
        """Describes a backend: its versions, flags and devices. Raises `JobFailed`."""
        _require_backend(frame.name)
        self._send(Progress(job.request, "asking IREE for its flags"))
        found = await self._ask(DescribeIree(), job)
        self._send(
            BackendDescribed(
                job.request, frame.name, found.versions, found.flags, found.defaults, found.targets, found.devices
            )
        )

    async def check(self, frame: CheckFlags, job: Job) -> None:
        """Checks whether a backend accepts flags. Raises `JobFailed`."""
        _require_backend(frame.name)
        found = await self._ask(CheckIreeFlags(frame.flags), job)
        self._send(FlagsChecked(job.request, found.problem))

    async def _ask(self, request: Message, job: Job) -> Any:
        async with self._iree.lock:
            await self._wait_until_ready(job)
            try:
                return await self._iree.call(request)
            except RequestRefused as refused:
                raise JobFailed(refused.refused.diagnostic) from refused
            except WorkerDied as died:
                raise JobFailed(describe_death(died, _EXITED, "IREE", "try again")) from died

    async def _wait_until_ready(self, job: Job) -> None:
        if not self._iree.is_ready:
            self._send(Progress(job.request, "starting IREE"))
        try:
            await self._iree.ready()
        except WorkerDied as died:
            todo = "check that `python -c 'import iree.compiler'` works in this environment"
            raise JobFailed(describe_death(died, "the IREE process does not start", "the backend", todo)) from died


def require_backend(recipe: Recipe) -> None:
    """Raises `JobFailed` if the backend of `recipe` is not installed, or does not support its target."""
    if recipe.runs_passes:
        return
    _require_backend(recipe.backend)
    if recipe.target:
        what = f"the target {recipe.target} applies to the native backend only, not to {recipe.backend}"
        todo = "use flags of the backend (--backend-flag=--iree-llvmcpu-target-triple=…), and reset the target"
        raise JobFailed(Diagnostic(what, "the recipe's target", todo))


def _require_backend(name: str) -> None:
    if name != IREE:
        raise JobFailed(Diagnostic(f"unknown backend {name!r}", "the recipe's backend", f"choose {NATIVE} or {IREE}"))
    if problem := missing_packages():
        raise JobFailed(Diagnostic(problem, "the recipe's backend", TODO))


def reject_other_backends(what: str) -> Callable[[Any, Job], Any]:
    """Returns a handler that rejects a request: `what` applies to this compiler's code only. It raises `JobFailed`."""

    async def reject(frame: Any, job: Job) -> None:
        where, todo = "the recipe's backend", "choose the native backend first (--backend native)"
        raise JobFailed(
            Diagnostic(f"{what} applies to this compiler's own code only, not to {frame.recipe.backend}'s", where, todo)
        )

    return reject
