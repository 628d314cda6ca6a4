"""A client of the engine: starts the engine, sends requests, returns answers, and reports why the engine has exited."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from buddy.app.session.engine_options import NO_LOG, LogOptions, RemoteHost
from buddy.app.session.transport import EngineError as EngineError
from buddy.app.session.transport import ProcessTransport, ResumingTransport, Transport
from buddy.compiler.protocol import (
    PROTOCOL_VERSION,
    Cancel,
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
from buddy.compiler.protocol.connection import FrameBuffer, FrameDecoder, FrameError, WireError, encode, version_of_peer
from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


Answer = TypeVar("Answer")
FrameCallback = Callable[[Any], object]
# How long the task that reads frames may take to end after its transport was closed, before it is cancelled.
_READER_SECONDS = 0.5
# The location of an engine: the command that starts it, or an ssh host.
EngineLocation = Sequence[str] | RemoteHost


class RequestFailed(BuddyError):
    """The engine answered a request with `Failed`."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.diagnostic)
        self.failed = failed

    @property
    def cancelled(self) -> bool:
        """Whether the request failed because it was cancelled."""
        return self.failed.cancelled


class OtherVersion(BuddyError):
    """The engine speaks another version of the protocol."""


class EngineClient:
    """Connects to one engine at a time, by default to a process of this installation.

    Frames that answer a `request` go only to its caller; `frames` yields all others. `on_connection_change` is called
    with the error of a lost connection to a `RemoteHost`, and with an empty string after the reconnect. With
    `reopens_saved_graphs`, the engine sends the graphs of an earlier session before it imports torch.

    `welcome` is the engine's answer to the greeting, `None` before it. `received_bytes` counts the bytes from engines,
    and `last_data_time` is when the last ones arrived, by `time.monotonic`.
    """

    def __init__(
        self,
        location: EngineLocation | None = None,
        log: LogOptions = NO_LOG,
        on_connection_change: Callable[[str], None] = lambda _error: None,
        *,
        reopens_saved_graphs: bool = False,
    ) -> None:
        self._location: EngineLocation = location or default_command()
        self._log, self._on_connection_change = log, on_connection_change
        self._reopens_saved_graphs = reopens_saved_graphs
        self._last_request = 0
        self._transport: Transport | None = None
        self._opening_task: asyncio.Future[None] | None = None
        self._closed_while_opening = False
        self._reader_task: asyncio.Task[None] | None = None
        # The requests without an answer, by number: the future of the answer, its class, and the callback for frames.
        self._pending: dict[int, tuple[asyncio.Future[Any], type, FrameCallback]] = {}
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self._exit_error: EngineError | None = None
        self.welcome: Welcome | None = None
        self.received_bytes = 0
        self.last_data_time = time.monotonic()

    # ---- starting and ending -------------------------------------------------------------------------------------

    async def start(self) -> Welcome:
        """Starts the engine and does the handshake.

        Raises `EngineError` if the engine does not start, exits before it answers, or has another protocol version.
        """
        self._exit_error, self._frames, self.last_data_time = None, asyncio.Queue(), time.monotonic()
        transport = self._make_transport()
        await self._open(transport)
        self._transport = transport
        welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._reader_task = asyncio.create_task(self._read_frames(transport, welcome))
        self.send(Hello(log=self._log.level, reopens=self._reopens_saved_graphs))
        self.welcome = await welcome
        return self.welcome

    def _make_transport(self) -> Transport:
        if isinstance(self._location, RemoteHost):
            return ResumingTransport(self._location, self._log, self._on_connection_change)
        return ProcessTransport(self._location, self._log)

    async def _open(self, transport: Transport) -> None:
        """Opens `transport`. Raises `EngineError`, also if `close` is called before a remote engine is connected."""
        self._closed_while_opening = False
        self._opening_task = asyncio.ensure_future(transport.open())
        try:
            await self._opening_task
        except asyncio.CancelledError:
            if self._closed_while_opening:
                raise EngineError("the engine was closed") from None
            raise
        finally:
            self._opening_task = None

    async def restart(self) -> Welcome:
        """Stops the engine, even if it is busy, and starts another one."""
        await self.close()
        return await self.start()

    @property
    def handshake_done(self) -> bool:
        return self.welcome is not None

    def ping(self) -> None:
        """Sends a ping. Its answer updates `last_data_time`."""
        with contextlib.suppress(EngineError):
            self.send(Ping(self.new_request_id()))

    def kill(self) -> None:
        """Kills an engine that does not answer. `frames` then ends as for any engine that has exited."""
        if self._transport is not None:
            self._transport.kill()

    @property
    def silent_seconds(self) -> int:
        """The seconds since a remote engine that does not answer last sent data; 0 for other engines."""
        return self._transport.silent_seconds if isinstance(self._transport, ResumingTransport) else 0

    def reconnect_now(self) -> None:
        """Tries to reconnect to a remote engine now, without waiting for the next attempt."""
        if isinstance(self._transport, ResumingTransport):
            self._transport.reconnect_now()

    async def close(self) -> None:
        """Stops the engine and its workers, with a signal if necessary. Returns when the process has exited."""
        if self._opening_task is not None:
            self._closed_while_opening = True
            self._opening_task.cancel()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        await transport.close(encode(Shutdown()))
        await self._end_reading()
        self._record_exit(EngineError("the engine was closed"))

    async def _end_reading(self) -> None:
        """Waits for the task that reads frames, and cancels it if it does not end soon."""
        if self._reader_task is not None:
            _, unfinished = await asyncio.wait([self._reader_task], timeout=_READER_SECONDS)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    # ---- requests ------------------------------------------------------------------------------------------------

    def new_request_id(self) -> int:
        self._last_request += 1
        return self._last_request

    def send(self, frame: Frame) -> None:
        """Sends a frame. Raises `EngineError` if no engine is running."""
        if self._exit_error is not None or self._transport is None:
            raise self._exit_error or EngineError("the engine has not been started")
        self._transport.write(encode(frame))

    async def frames(self) -> AsyncIterator[Frame]:
        """Yields the frames that no `request` waits for. Raises `EngineError` when the engine has exited."""
        frames = self._frames
        while True:
            frame = await frames.get()
            if isinstance(frame, EngineError):
                raise frame
            yield frame

    async def request(self, frame: Request[Answer], on_frame: FrameCallback = lambda _frame: None) -> Answer:
        """Sends a request and returns its answer; `on_frame` is called with each frame before the answer.

        The request gets a number unless it has one. If the caller is cancelled, the engine cancels the request.
        Raises `RequestFailed` and `EngineError`.
        """
        frame = frame if frame.request else replace(frame, request=self.new_request_id())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[frame.request] = future, answer_type(type(frame)), on_frame
        try:
            self.send(frame)
            answer: Answer | Failed = await future
        except asyncio.CancelledError:
            if not future.done() or future.cancelled():
                with contextlib.suppress(EngineError):
                    self.send(Cancel(frame.request))
            raise
        finally:
            self._pending.pop(frame.request, None)
        if isinstance(answer, Failed):
            raise RequestFailed(answer)
        return answer

    async def fetch_lines(self, text_hash: str, start: int, count: int) -> Lines:
        """Returns at most `count` lines of a text from line `start` (from 0). Raises like `request`."""
        return await self.request(FetchLines(0, text_hash, start, count))

    async def fetch_text(self, text_hash: str) -> str:
        """Returns a whole text. Raises like `request`."""
        return (await self.request(FetchText(0, text_hash))).content

    # ---- frames --------------------------------------------------------------------------------------------------

    async def _read_frames(self, transport: Transport, welcome: asyncio.Future[Welcome]) -> None:
        """Dispatches frames until the stream ends, then reports why it ended. The first frame sets `welcome`."""
        buffer, decoder, reason = FrameBuffer(), FrameDecoder(EngineFrame), ""
        try:
            while data := await transport.read():
                self.received_bytes += len(data)
                self.last_data_time = time.monotonic()
                for body in buffer.feed(data):
                    if not welcome.done():
                        _check_version(body)
                    reason = self._dispatch(decoder.decode(body), welcome) or reason
            buffer.finish()
        except OtherVersion as mismatch:
            reason = str(mismatch)
            transport.kill()
        except (WireError, FrameError) as invalid:
            reason = reason or f"the engine's output is not a valid frame: {invalid}{self._ssh_hint()}"
            transport.kill()
        error = await transport.exit_error()
        # An engine that rejects the handshake would reject it again.
        is_permanent = error.is_permanent or (bool(reason) and not welcome.done())
        error = EngineError(reason or error.reason, error.detail, is_permanent=is_permanent)
        # After the handshake, `close` removes the transport first, and records the exit itself.
        if transport is self._transport or not welcome.done():
            self._record_exit(error)
        if not welcome.done():
            welcome.set_exception(error)

    def _dispatch(self, frame: Frame, welcome: asyncio.Future[Welcome]) -> str:
        """Dispatches a frame. Returns an error if the engine rejects the handshake; otherwise an empty string."""
        if not welcome.done():
            return self._finish_handshake(frame, welcome)
        pending = self._pending.get(getattr(frame, "request", 0))
        if pending is None:
            self._frames.put_nowait(frame)
            return ""
        future, answer_class, on_frame = pending
        if not isinstance(frame, (answer_class, Failed)):
            on_frame(frame)
        elif not future.done():
            future.set_result(frame)
        return ""

    def _finish_handshake(self, frame: Frame, welcome: asyncio.Future[Welcome]) -> str:
        """Sets `welcome` to `frame`. Returns the error of an engine that rejects the handshake.

        Raises `FrameError` if `frame` is not an answer to a handshake.
        """
        if isinstance(frame, Failed):
            return str(frame.diagnostic)
        if not isinstance(frame, Welcome):
            raise FrameError(f"handshake failed: the engine sent {type(frame).__name__}")
        welcome.set_result(frame)
        return ""

    def _record_exit(self, error: EngineError) -> None:
        """Ends `frames` and all pending requests with `error`."""
        self._exit_error = error
        self._frames.put_nowait(error)
        for future, _, _ in self._pending.values():
            if not future.done():
                future.set_exception(error)

    def _ssh_hint(self) -> str:
        """Returns what to do if the command is ssh and its output is not a frame; empty for other commands."""
        if isinstance(self._location, RemoteHost) or Path(self._location[0]).name not in ("ssh", "mosh"):
            return ""
        return " · remove output from the remote shell's startup files: a non-interactive login must print nothing"


def _check_version(body: bytes) -> None:
    """Raises `OtherVersion` if the first frame of an engine is a greeting of another version of the protocol.

    A frame that is no greeting passes: `_finish_handshake` handles it.
    """
    version = version_of_peer(body, Welcome.__name__)
    if version not in (0, PROTOCOL_VERSION):
        reason = f"the engine speaks protocol {version}, this client {PROTOCOL_VERSION}"
        raise OtherVersion(reason, todo="install the same version of buddy-tui on both sides")


def default_command() -> list[str]:
    """Returns the command that starts the engine of this installation."""
    return module_command("buddy.compiler.engine")


def module_command(module: str) -> list[str]:
    """Returns the command that runs a module of this installation, without the current folder on its import path."""
    safe_path_option = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe_path_option, "-m", module]
