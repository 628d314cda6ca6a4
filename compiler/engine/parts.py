"""Extracts, scripts and bisections: what a client asks of the parts of a program that is open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from buddy.compiler.engine.jobs import Job, JobFailed
from buddy.compiler.engine.messages import (
    Activity,
    BeginBisection,
    BisectionDone,
    BisectionMessage,
    ExtractNodes,
    MakeScript,
    Refused,
    Trouble,
)
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
from buddy.compiler.wire import FrameBuffer, FrameDecoder

if TYPE_CHECKING:
    from buddy.compiler.engine.session import Session

log = logging.getLogger("buddy.engine")
_READ = 1 << 20
# How long a process may take to be forked and to connect, and to end after its own time is up.
_START, _GRACE = 30.0, 30.0


class Parts:
    """Answers `Extract`, `WriteScript` and `Bisect`."""

    def __init__(self, session: Session, send: Callable[[Any], None]) -> None:
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
        """Bisect in a process of its own; it ends when this job does."""
        self._send(Progress(job.request, "preparing"))
        async with _Listening() as listening:
            begin = BeginBisection(frame.recipe.graph, frame.recipe, frame.criterion, listening.address)
            await self._session.ask_of_program(frame.recipe, begin, job)
            try:
                limit = frame.criterion.within + frame.criterion.each + _GRACE
                await asyncio.wait_for(self._follow(listening, job), limit)
            except asyncio.TimeoutError as error:
                what = f"the search did not end by itself after {frame.criterion.within:g} s and was stopped"
                raise JobFailed(Diagnostic(what, "a process forked for it", "give it more time")) from error

    async def _follow(self, listening: _Listening, job: Job) -> None:
        async for message in listening.messages():
            if isinstance(message, Activity):
                self._send(Progress(job.request, message.what, message.done))
            elif isinstance(message, Trouble):
                log.error("bisection: %s", message.text)
            elif isinstance(message, Refused):
                raise JobFailed(message.diagnostic)
            elif isinstance(message, BisectionDone):
                self._send(Bisected(job.request, message.finding))
                return
        raise JobFailed(Diagnostic("the process that searches ended", "a process forked for it", "see the log"))


class _Listening:
    """A socket that one process connects to; closing it ends that process."""

    async def __aenter__(self) -> _Listening:
        self._folder = tempfile.TemporaryDirectory(prefix="buddy-")
        self.address = os.path.join(self._folder.name, "bisect")
        self._came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        self._came = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_unix_server(self._connected, self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        if self._came.done() and not self._came.cancelled():
            self._came.result()[1].close()
        self._folder.cleanup()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._came.done():
            writer.close()
        else:
            self._came.set_result((reader, writer))

    async def messages(self) -> AsyncIterator[Any]:
        """What the process says, until it goes."""
        reader, _ = await asyncio.wait_for(self._came, _START)
        buffer, decoder = FrameBuffer(), FrameDecoder(BisectionMessage)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ):
                for body in buffer.feed(data):
                    yield decoder.decode(body)
