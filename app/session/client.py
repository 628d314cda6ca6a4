"""The client of the engine: starts it, sends requests, returns frames, and reports why it has exited."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from buddy.app.session.log_file import NO_LOG, LogOptions
from buddy.app.session.transport import EngineLost as EngineLost
from buddy.app.session.transport import ProcessTransport, RemoteHost, ResumingTransport, Transport
from buddy.compiler.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Diagnostic,
    EngineFrame,
    Failed,
    FetchLines,
    FetchText,
    Hello,
    Lines,
    Ping,
    Request,
    Shutdown,
    Welcome,
    answer_type,
)
from buddy.compiler.protocol.wire import FrameBuffer, FrameDecoder, FrameError, WireError, encode

Answer = TypeVar("Answer")
Interim = Callable[[Any], object]
# The location of an engine: a command that starts it, or an ssh host.
Place = Sequence[str] | RemoteHost


class RequestFailed(Exception):
    """The engine answered a request with `Failed`."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(str(failed.diagnostic))
        self.failed = failed

    @property
    def diagnostic(self) -> Diagnostic:
        return self.failed.diagnostic

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled, so that its failure is not the program's."""
        return self.failed.cancelled


class EngineClient:
    """One engine at a time: a process here, a command such as `ssh HOST buddy-tui engine`, or a `RemoteHost`.

    Frames that answer a `request` go only to its caller; `frames` yields all others. `link_changed` is called with
    the error of a lost connection to a `RemoteHost`, and with an empty string after the reconnect.
    """

    def __init__(
        self,
        place: Place | None = None,
        log: LogOptions = NO_LOG,
        link_changed: Callable[[str], None] = lambda _what: None,
    ) -> None:
        self._place: Place = place or default_command()
        self._log, self._link_changed = log, link_changed
        self._numbers = 0
        self._transport: Transport | None = None
        self._opening: asyncio.Future[None] | None = None
        self._given_up = False
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Any], type, Interim]] = {}
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._lost: EngineLost | None = None
        self.welcome: Welcome | None = None
        self.received_bytes = 0
        self.last_data_time = time.monotonic()

    # ---- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> Welcome:
        """Start the engine and do the handshake.

        Raises `EngineLost` if it does not start, does not answer, or has another protocol version.
        """
        self._lost, self._frames, self.last_data_time = None, asyncio.Queue(), time.monotonic()
        transport = self._make_transport()
        await self._open(transport)
        self._transport = transport
        greeted: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read_frames(transport, greeted))
        self.send(Hello(log=self._log.level))
        self.welcome = await greeted
        return self.welcome

    def _make_transport(self) -> Transport:
        if isinstance(self._place, RemoteHost):
            return ResumingTransport(self._place, self._log, self._link_changed)
        return ProcessTransport(self._place, self._log)

    async def _open(self, transport: Transport) -> None:
        """Wait for a connection to a remote engine, until `close` is called. Raises `EngineLost`."""
        self._given_up = False
        self._opening = asyncio.ensure_future(transport.open())
        try:
            await self._opening
        except asyncio.CancelledError:
            if self._given_up:
                raise EngineLost("the engine was closed") from None
            raise
        finally:
            self._opening = None

    async def restart(self) -> Welcome:
        """Stop the engine, even if it is busy, and start another one."""
        await self.close()
        return await self.start()

    @property
    def greeted(self) -> bool:
        """Whether the handshake is complete."""
        return self.welcome is not None

    def ping(self) -> None:
        """Send a ping, whose answer updates `last_data_time`."""
        with contextlib.suppress(EngineLost):
            self.send(Ping(self.next_request()))

    def kill(self) -> None:
        """Kill an engine that does not answer. `frames` then ends as for any engine that has exited."""
        if self._transport is not None:
            self._transport.kill()

    @property
    def unanswered(self) -> int:
        """The seconds since a connected remote engine last sent data."""
        return self._transport.silent if isinstance(self._transport, ResumingTransport) else 0

    def reconnect_now(self) -> None:
        """Try to reconnect at once."""
        if isinstance(self._transport, ResumingTransport):
            self._transport.reconnect_now()

    async def close(self) -> None:
        """Stop the engine and its workers, with a signal if necessary. Returns when the process has exited."""
        if self._opening is not None:
            self._given_up = True
            self._opening.cancel()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        await transport.close(encode(Shutdown()))
        await self._end_reading()
        self._record_loss(EngineLost("the engine was closed"))

    async def _end_reading(self) -> None:
        if self._reading is not None:
            _, late = await asyncio.wait([self._reading], timeout=0.5)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # ---- requests ------------------------------------------------------------------------------------------------

    def next_request(self) -> int:
        """A new request number."""
        self._numbers += 1
        return self._numbers

    def send(self, frame: Any) -> None:
        """Send a frame. Raises `EngineLost` if no engine is running."""
        if self._lost is not None or self._transport is None:
            raise self._lost or EngineLost("the engine has not been started")
        self._transport.write(encode(frame))

    async def frames(self) -> AsyncIterator[Any]:
        """Yields frames as they arrive. Raises `EngineLost` when the engine has exited."""
        frames = self._frames
        while True:
            frame = await frames.get()
            if isinstance(frame, EngineLost):
                raise frame
            yield frame

    async def request(self, frame: Request[Answer], interim: Interim = lambda _frame: None) -> Answer:
        """Send a request and return its answer; `interim` is called with each frame before it.

        The frame gets a request number unless it has one. If the caller is cancelled, the engine cancels the request.
        Raises `RequestFailed` and `EngineLost`.
        """
        frame = frame if frame.request else replace(frame, request=self.next_request())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[frame.request] = future, answer_type(type(frame)), interim
        try:
            self.send(frame)
            found: Answer | Failed = await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                with contextlib.suppress(EngineLost):
                    self.send(Cancel(frame.request))
            raise
        finally:
            self._waiting.pop(frame.request, None)
        if isinstance(found, Failed):
            raise RequestFailed(found)
        return found

    async def fetch_lines(self, text: str, start: int, count: int) -> Lines:
        """At most `count` lines of `text` from line `start` (starting at 0)."""
        return await self.request(FetchLines(0, text, start, count))

    async def fetch_text(self, text: str) -> str:
        """The full text of `text`."""
        return (await self.request(FetchText(0, text))).content

    # ---- frames --------------------------------------------------------------------------------------------------

    async def _read_frames(self, transport: Transport, greeted: asyncio.Future[Welcome]) -> None:
        """Read to the end of the stream, and report why it ended."""
        buffer, decoder, reason = FrameBuffer(), FrameDecoder(EngineFrame), ""
        try:
            while data := await transport.read():
                self.received_bytes += len(data)
                self.last_data_time = time.monotonic()
                for body in buffer.feed(data):
                    reason = self._dispatch(decoder.decode(body), greeted) or reason
            buffer.finish()
        except (WireError, FrameError) as error:
            reason = reason or f"the engine's output is not a valid frame: {error}{self._hint()}"
            transport.kill()
        lost = await transport.ended()
        # An engine that rejects the handshake would reject it again.
        lasting = lost.lasting or (bool(reason) and not greeted.done())
        lost = EngineLost(reason or lost.reason, lost.detail, lasting=lasting)
        if transport is self._transport or not greeted.done():
            self._record_loss(lost)
        if not greeted.done():
            greeted.set_exception(lost)

    def _dispatch(self, frame: Any, greeted: asyncio.Future[Welcome]) -> str:
        """Dispatch a frame. Returns the reason if the frame announces the end of the engine."""
        if not greeted.done():
            return self._check_greeting(frame, greeted)
        waiting = self._waiting.get(getattr(frame, "request", 0))
        if waiting is None:
            self._frames.put_nowait(frame)
            return ""
        future, answer, interim = waiting
        if not isinstance(frame, (answer, Failed)):
            interim(frame)
        elif not future.done():
            future.set_result(frame)
        return ""

    def _check_greeting(self, frame: Any, greeted: asyncio.Future[Welcome]) -> str:
        if isinstance(frame, Failed):
            return str(frame.diagnostic)
        if not isinstance(frame, Welcome):
            raise FrameError(f"handshake failed: the engine sent {type(frame).__name__}")
        if frame.version != PROTOCOL_VERSION:
            raise FrameError(
                f"its protocol version is {frame.version}, this client has {PROTOCOL_VERSION}: install the same version"
            )
        greeted.set_result(frame)
        return ""

    def _record_loss(self, lost: EngineLost) -> None:
        self._lost = lost
        self._frames.put_nowait(lost)
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_exception(lost)

    def _hint(self) -> str:
        if isinstance(self._place, RemoteHost) or Path(self._place[0]).name not in ("ssh", "mosh"):
            return ""
        return " · remove output from the remote shell's startup files: a non-interactive login must print nothing"


def default_command() -> list[str]:
    """The command that starts the engine of this installation."""
    return module_command("buddy.compiler.engine")


def module_command(module: str) -> list[str]:
    """The command that runs a module of this installation, without the current folder on its import path."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", module]
