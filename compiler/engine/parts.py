"""Answers requests about subgraphs of an open program: extracts, scripts and bisections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from buddy.compiler.engine.listening import ListeningSocket
from buddy.compiler.protocol import (
    Bisect,
    Bisected,
    Diagnostic,
    Extract,
    Extracted,
    Progress,
    Script,
    WriteScript,
)
from buddy.compiler.protocol.worker_messages import (
    Activity,
    BeginBisection,
    BisectionDone,
    BisectionMessage,
    ExtractNodes,
    MakeScript,
    Refused,
    Trouble,
)
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession

log = logging.getLogger("buddy.engine")
# Time limit for a process to be forked, and to exit after its own time limit, in seconds.
_GRACE = 30.0


class SubgraphHandler:
    """Answers `Extract`, `WriteScript` and `Bisect`."""

    def __init__(self, session: EngineSession, send: Callable[[Any], None]) -> None:
        self._session, self._send = session, send

    async def extract(self, frame: Extract, job: Job) -> None:
        number = self._session.extracted_before(frame.recipe, frame.nodes)
        if number is None:
            self._send(Progress(job.request, "running eager up to the nodes"))
            request = ExtractNodes(frame.recipe.graph, frame.nodes)
            made = await self._session.ask_of_program(frame.recipe, request, job)
            number = self._session.add_extract(frame.recipe, frame.nodes, made.graph)
        self._send(Extracted(job.request, number, self._session.graph_info(frame.recipe, number)))

    async def script(self, frame: WriteScript, job: Job) -> None:
        made = await self._session.ask_of_program(frame.recipe, MakeScript(frame.recipe.graph), job)
        self._send(Script(job.request, made.name, made.text, made.values))

    async def bisect(self, frame: Bisect, job: Job) -> None:
        """Bisects in a separate process; the process ends with this job."""
        self._send(Progress(job.request, "preparing"))
        async with ListeningSocket(BisectionMessage) as listening:
            begin = BeginBisection(frame.recipe.graph, frame.recipe, frame.criterion, listening.address)
            await self._session.ask_of_program(frame.recipe, begin, job)
            try:
                limit = frame.criterion.within + frame.criterion.each + _GRACE
                await asyncio.wait_for(self._follow(listening, job), limit)
            except asyncio.TimeoutError as error:
                what = f"the search did not stop by itself after {frame.criterion.within:g} s and was stopped"
                raise JobFailed(Diagnostic(what, "a forked process", "give it more time")) from error

    async def _follow(self, listening: ListeningSocket, job: Job) -> None:
        async for message in (await listening.peer()).messages():
            if isinstance(message, Activity):
                self._send(Progress(job.request, message.what, message.done))
            elif isinstance(message, Trouble):
                log.error("bisection: %s", message.text)
            elif isinstance(message, Refused):
                raise JobFailed(message.diagnostic)
            elif isinstance(message, BisectionDone):
                self._send(Bisected(job.request, message.finding))
                return
        raise JobFailed(Diagnostic("the search process exited", "a forked process", "see the log"))
