"""Answers requests to export an open program, extract a subgraph, write a graph as a script, and bisect a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from buddy.compiler.engine.connection import ListeningSocket
from buddy.compiler.engine.texts import stored_text
from buddy.compiler.protocol import (
    Bisect,
    Bisected,
    Diagnostic,
    Export,
    Exported,
    Extract,
    Extracted,
    Progress,
    Script,
    Stage,
    WriteScript,
)
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import (
    Activity,
    BisectionDone,
    BisectionMessage,
    ExportProgram,
    ExtractNodes,
    FailureReply,
    LogText,
    MakeScript,
    StartBisection,
    StopRunner,
)
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession
    from buddy.compiler.protocol.connection import Frame


class ExportHandler:
    """Answers `Export`."""

    def __init__(self, session: EngineSession, store: TextStore, send: Callable[[Frame], None]) -> None:
        self._session, self._store, self._send = session, store, send

    async def export(self, frame: Export, job: Job) -> None:
        recipe = frame.recipe
        if not recipe.runs_passes:
            todo = f"choose the native backend, or use the tools of {recipe.backend}"
            raise JobFailed(Diagnostic(f"code of the backend {recipe.backend} cannot be exported", "the recipe", todo))
        compiled = await self._session.result_of(recipe, job, "export")
        llvm_ir = self._stage_text(compiled.stages, "llvm")
        mlir = (
            stored_text(self._store, frame.stage).content if frame.stage else self._stage_text(compiled.stages, "mlir")
        )
        request = ExportProgram(
            recipe.graph,
            recipe,
            compiled.artifact,
            compiled.assignments,
            llvm_ir,
            mlir,
            frame.kinds,
            frame.folder,
            frame.directory,
            frame.name,
            frame.force,
            frame.command,
        )
        reply = await self._session.call_host_for(recipe, request, job, StopRunner())
        self._send(Exported(job.request, reply.folder, reply.files))

    def _stage_text(self, stages: Sequence[Stage], language: str) -> str:
        """Returns the text of the first stage in `language`. Raises `JobFailed` if no stage has this language."""
        stage = next((stage for stage in stages if stage.language == language), None)
        if stage is None:
            what = f"this program has no stage in the language {language}"
            raise JobFailed(Diagnostic(what, "the recipe", "choose a recipe whose code is for a CPU"))
        return stored_text(self._store, stage.text).content


log = logging.getLogger("buddy.engine")
# The time in seconds that the bisection process may take in addition to its own limits, to start and to exit.
_EXTRA_SECONDS = 30.0


class SubgraphHandler:
    """Answers `Extract`, `WriteScript` and `Bisect`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None]) -> None:
        self._session, self._send = session, send

    async def extract(self, frame: Extract, job: Job) -> None:
        number = self._session.programs.opened(frame.recipe).extract_of(frame.recipe.graph, frame.nodes)
        if number is None:
            self._send(Progress(job.request, "running eager up to the nodes"))
            request = ExtractNodes(frame.recipe.graph, frame.nodes)
            reply = await self._session.call_host_for(frame.recipe, request, job)
            number = self._session.add_extract(frame.recipe, frame.nodes, reply.graph)
        info = self._session.programs.opened(frame.recipe).graphs[number].info
        self._send(Extracted(job.request, number, info))

    async def write_script(self, frame: WriteScript, job: Job) -> None:
        reply = await self._session.call_host_for(frame.recipe, MakeScript(frame.recipe.graph), job)
        self._send(Script(job.request, reply.name, reply.text, reply.values))

    async def bisect(self, frame: Bisect, job: Job) -> None:
        """Bisects in a separate process, which exits when this job ends."""
        self._send(Progress(job.request, "preparing"))
        async with ListeningSocket(BisectionMessage) as listening:
            request = StartBisection(frame.recipe.graph, frame.recipe, frame.criterion, listening.address)
            await self._session.call_host_for(frame.recipe, request, job)
            try:
                limit = frame.criterion.seconds + frame.criterion.step_seconds + _EXTRA_SECONDS
                await asyncio.wait_for(self._follow(listening, job), limit)
            except asyncio.TimeoutError as error:
                what = f"the bisection exceeded its limit of {frame.criterion.seconds:g} s and was stopped"
                raise JobFailed(Diagnostic(what, "a forked process", "allow more time")) from error

    async def _follow(self, listening: ListeningSocket, job: Job) -> None:
        """Passes on the messages of the process that bisects, until it has finished. Raises `JobFailed`."""
        async for message in (await listening.peer()).messages():
            if isinstance(message, Activity):
                self._send(Progress(job.request, message.activity, message.done))
            elif isinstance(message, LogText):
                log.error("bisection: %s", message.text)
            elif isinstance(message, FailureReply):
                raise JobFailed(message.diagnostic)
            elif isinstance(message, BisectionDone):
                self._send(Bisected(job.request, message.finding))
                return
        raise JobFailed(Diagnostic("the bisection process exited", "a forked process", "see the log"))
