"""Other backends: their compilation of top-level IR, and their descriptions."""

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

_GONE = "the IREE process exited"


class HandedOver(CompilationRequest):
    """A compilation that IREE continues from top-level IR: `result` is the part up to there, `rest` is IREE's part."""

    _first: CompileResult | None = None

    async def rest(
        self, first: CompileResult, call: Callable[[Message, Callable[[Message], None]], Any]
    ) -> CompileResult:
        """Runs IREE's phases after the stages of `first`, and reports each when it is done. Raises `JobFailed`."""
        self._first = first
        held = ("handed over", self._request)
        self._store.pin(held, [stage.text for stage in first.stages])
        self._tell_phase(first)
        try:
            flags, number = self._recipe.backend_flags, len(first.stages) - 1
            return await self._followed(
                lambda known: CompileByIree(first.artifact, flags, known, number),
                call,
                lambda done: self._whole(first, done),
            )
        finally:
            self._store.unpin(held)

    def _finished(self, done: CompileDone) -> CompileResult:
        stages = (self._graph.fx, *(self._shifted(data) for data in done.stages))
        return CompileResult(stages, done.artifact, done.assignments, done.remarks, done.seconds, done.reused)

    def _whole(self, first: CompileResult, done: CompileDone) -> CompileResult:
        stages = (*first.stages, *(self._shifted(data) for data in done.stages))
        seconds, reused = first.seconds + done.seconds, first.reused + done.reused
        self._pin(self._kind, stages)
        self._send(Compiled(self._request, self._recipe.graph, stages, seconds, reused, first.remarks))
        return CompileResult(stages, done.artifact, first.assignments, first.remarks, seconds, reused)

    def _stage_done(self, stage: Stage) -> None:
        super()._stage_done(stage)
        if self._first is not None:
            self._tell_phase(self._first)

    def _tell_phase(self, first: CompileResult) -> None:
        number = len(self._stages) - len(first.stages)
        name = IREE_PHASES[number] if number < len(IREE_PHASES) else "the module"
        self._send(
            Progress(self._request, f"IREE {number + 1}/{len(IREE_PHASES)} {name}", number / (len(IREE_PHASES) + 1))
        )

    def _crash(self, died: WorkerDied) -> Diagnostic:
        if self._first is None:
            return super()._crash(died)
        return describe_death(died, _GONE, "IREE's compiler", "the stages before it are available; compile again")


class BackendWorkers:
    """The workers of other backends, which start when they are first needed."""

    def __init__(self, send: Callable[[Any], None], listener: Listener) -> None:
        self._send = send
        self._iree = EngineWorker("iree", "buddy.compiler.engine.iree:serve", IreeMessage, listener)

    async def close(self) -> None:
        await self._iree.close()

    async def take_on(self, compilation: HandedOver, first: CompileResult, job: Job) -> CompileResult:
        """Continues a compilation that has reached top-level IR with IREE. Raises `JobFailed`."""
        async with self._iree.turn:
            await self._up(job)
            return await compilation.rest(first, self._iree.call)

    async def describe(self, frame: DescribeBackend, job: Job) -> None:
        """Describes a backend: its versions, flags and devices. Raises `JobFailed`."""
        _needs(frame.name)
        self._send(Progress(job.request, "asking IREE for its flags"))
        found = await self._ask(DescribeIree(), job)
        self._send(
            BackendDescribed(
                job.request, frame.name, found.versions, found.flags, found.defaults, found.targets, found.devices
            )
        )

    async def check(self, frame: CheckFlags, job: Job) -> None:
        """Checks whether a backend accepts flags. Raises `JobFailed`."""
        _needs(frame.name)
        found = await self._ask(CheckIreeFlags(frame.flags), job)
        self._send(FlagsChecked(job.request, found.problem))

    async def _ask(self, request: Message, job: Job) -> Any:
        async with self._iree.turn:
            await self._up(job)
            try:
                return await self._iree.call(request)
            except RequestRefused as refused:
                raise JobFailed(refused.refused.diagnostic) from refused
            except WorkerDied as died:
                raise JobFailed(describe_death(died, _GONE, "IREE", "try again")) from died

    async def _up(self, job: Job) -> None:
        if not self._iree.is_ready:
            self._send(Progress(job.request, "starting IREE"))
        try:
            await self._iree.ready()
        except WorkerDied as died:
            todo = "check that `python -c 'import iree.compiler'` works in this environment"
            raise JobFailed(describe_death(died, "the IREE process does not start", "the backend", todo)) from died


def needs_backend(recipe: Recipe) -> None:
    """Raises `JobFailed` if the backend of `recipe` is not installed, or does not support its target."""
    if recipe.runs_passes:
        return
    _needs(recipe.backend)
    if recipe.target:
        what = f"the target {recipe.target} is for this compiler's own code, not for {recipe.backend}'s"
        todo = (
            "name the machine by its own flags (--backend-flag=--iree-llvmcpu-target-triple=…), or set the target back"
        )
        raise JobFailed(Diagnostic(what, "the recipe's target", todo))


def _needs(name: str) -> None:
    if name != IREE:
        raise JobFailed(Diagnostic(f"unknown backend {name!r}", "the recipe's backend", f"choose {NATIVE} or {IREE}"))
    if problem := missing_packages():
        raise JobFailed(Diagnostic(problem, "the recipe's backend", TODO))


def refuse_other_backends(what: str) -> Callable[[Any, Job], Any]:
    """Returns a handler that rejects requests for another backend's recipe about this compiler's own code with
    `JobFailed`.
    """

    async def refuse(frame: Any, job: Job) -> None:
        where, todo = "the recipe's backend", "choose the native backend first (--backend native)"
        raise JobFailed(
            Diagnostic(f"{what} applies to this compiler's own code only, not to {frame.recipe.backend}'s", where, todo)
        )

    return refuse
