"""The client's side of the engine: starts it, sends requests, hands back frames, and says why when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from buddy.app.session.log_file import NO_LOG, Log
from buddy.app.session.resuming_transport import ResumingTransport
from buddy.app.session.ssh import Remote
from buddy.app.session.transport import EngineLost as EngineLost
from buddy.app.session.transport import ProcessTransport, Transport
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
# Where an engine is: a command that starts one, or a machine that ssh reaches.
Place = Sequence[str] | Remote


class RequestFailed(Exception):
    """A request that was waited for came back as `Failed`."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(str(failed.diagnostic))
        self.failed = failed

    @property
    def diagnostic(self) -> Diagnostic:
        return self.failed.diagnostic

    @property
    def cancelled(self) -> bool:
        """Whether somebody has stopped it, so that it says nothing of the program."""
        return self.failed.cancelled


class EngineClient:
    """One engine at a time: a process here, one behind a command such as `ssh HOST buddy-tui engine`, or a `Remote`.

    Frames that answer a `request` go to its caller alone; all others come out of `frames`. `link_changed` hears what is
    wrong with the link to a `Remote`, and "" once it is well again.
    """

    def __init__(
        self,
        place: Place | None = None,
        log: Log = NO_LOG,
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
        self.heard = time.monotonic()

    # ---- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> Welcome:
        """Start the engine and greet it.

        Raises `EngineLost` when it does not start, does not greet back, or is of another version.
        """
        self._lost, self._frames, self.heard = None, asyncio.Queue(), time.monotonic()
        transport = self._way()
        await self._opened(transport)
        self._transport = transport
        greeted: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read_frames(transport, greeted))
        self.send(Hello(log=self._log.level))
        self.welcome = await greeted
        return self.welcome

    def _way(self) -> Transport:
        if isinstance(self._place, Remote):
            return ResumingTransport(self._place, self._log, self._link_changed)
        return ProcessTransport(self._place, self._log)

    async def _opened(self, transport: Transport) -> None:
        """A way to an engine elsewhere takes as long as a login does; `close` gives it up. Raises `EngineLost`."""
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
        """End the engine, whatever it is doing, and start another one."""
        await self.close()
        return await self.start()

    @property
    def greeted(self) -> bool:
        """Whether the engine has said who it is."""
        return self.welcome is not None

    def ping(self) -> None:
        """Ask for a sign of life, after which `heard` is later."""
        with contextlib.suppress(EngineLost):
            self.send(Ping(self.next_request()))

    def kill(self) -> None:
        """End the engine at once, which answers nothing any more; `frames` ends as with any engine that is gone."""
        if self._transport is not None:
            self._transport.kill()

    @property
    def unanswered(self) -> int:
        """For how many seconds an engine elsewhere that can be reached has said nothing."""
        return self._transport.silent if isinstance(self._transport, ResumingTransport) else 0

    def hurry(self) -> None:
        """Try at once to mend a link that is lost."""
        if isinstance(self._transport, ResumingTransport):
            self._transport.hurry()

    async def close(self) -> None:
        """End the engine and its workers, kindly at first; returns when the process is gone."""
        if self._opening is not None:
            self._given_up = True
            self._opening.cancel()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        await transport.close(encode(Shutdown()))
        await self._end_reading()
        self._lose(EngineLost("the engine was closed"))

    async def _end_reading(self) -> None:
        if self._reading is not None:
            _, late = await asyncio.wait([self._reading], timeout=0.5)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # ---- requests -----------------------------------------------------------------------------------------------

    def next_request(self) -> int:
        """A number that no request has had."""
        self._numbers += 1
        return self._numbers

    def send(self, frame: Any) -> None:
        """Send a frame. Raises `EngineLost` when there is no engine to send it to."""
        if self._lost is not None or self._transport is None:
            raise self._lost or EngineLost("the engine has not been started")
        self._transport.write(encode(frame))

    async def frames(self) -> AsyncIterator[Any]:
        """Frames as they come; ends by raising `EngineLost` when the engine is gone."""
        frames = self._frames
        while True:
            frame = await frames.get()
            if isinstance(frame, EngineLost):
                raise frame
            yield frame

    async def request(self, frame: Request[Answer], interim: Interim = lambda _frame: None) -> Answer:
        """Number a frame, send it, and wait for the one that ends it; `interim` gets those before.

        A frame that has a number keeps it. The engine stops working on what its caller no longer waits for. Raises
        `RequestFailed` and `EngineLost`.
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
        """At most `count` lines of `text` from line `start`, counted from 0."""
        return await self.request(FetchLines(0, text, start, count))

    async def fetch_text(self, text: str) -> str:
        """The whole of `text`."""
        return (await self.request(FetchText(0, text))).content

    # ---- the wire -----------------------------------------------------------------------------------------------

    async def _read_frames(self, transport: Transport, greeted: asyncio.Future[Welcome]) -> None:
        """Read to the end of the stream, then say why it ended."""
        buffer, decoder, reason = FrameBuffer(), FrameDecoder(EngineFrame), ""
        try:
            while data := await transport.read():
                self.received_bytes += len(data)
                self.heard = time.monotonic()
                for body in buffer.feed(data):
                    reason = self._frame_came(decoder.decode(body), greeted) or reason
            buffer.finish()
        except (WireError, FrameError) as error:
            reason = reason or f"what came from the engine is not the engine's: {error}{self._hint()}"
            transport.kill()
        lost = await transport.ended()
        # An engine that refuses the greeting, or does not know it, would do so again.
        lasting = lost.lasting or (bool(reason) and not greeted.done())
        lost = EngineLost(reason or lost.reason, lost.detail, lasting=lasting)
        if transport is self._transport or not greeted.done():
            self._lose(lost)
        if not greeted.done():
            greeted.set_exception(lost)

    def _frame_came(self, frame: Any, greeted: asyncio.Future[Welcome]) -> str:
        """Pass a frame on; the reason why the engine is about to end, where the frame is one."""
        if not greeted.done():
            return self._greeting_came(frame, greeted)
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

    def _greeting_came(self, frame: Any, greeted: asyncio.Future[Welcome]) -> str:
        if isinstance(frame, Failed):
            return str(frame.diagnostic)
        if not isinstance(frame, Welcome):
            raise FrameError(f"it did not greet but sent {type(frame).__name__}")
        if frame.version != PROTOCOL_VERSION:
            raise FrameError(f"it speaks protocol {frame.version}, this client {PROTOCOL_VERSION}")
        greeted.set_result(frame)
        return ""

    def _lose(self, lost: EngineLost) -> None:
        self._lost = lost
        self._frames.put_nowait(lost)
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_exception(lost)

    def _hint(self) -> str:
        if isinstance(self._place, Remote) or Path(self._place[0]).name not in ("ssh", "mosh"):
            return ""
        return " · does the remote shell print something at login? It must be silent when it is not interactive"


def default_command() -> list[str]:
    """The engine of this installation."""
    return module_command("buddy.compiler.engine")


def module_command(module: str) -> list[str]:
    """The command that runs a module of this installation; the current folder is kept off its import path."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", module]
