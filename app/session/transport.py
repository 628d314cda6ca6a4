"""Transports of bytes to and from an engine: the pipes of a local process, and an ssh connection that is resumed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from buddy.app.session.engine_options import NO_LOG, LogFile, LogOptions, RemoteHost
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.resumable_stream import (
    EXIT_UNANSWERED,
    HEARTBEAT_SECONDS,
    SILENCE_SECONDS,
    GreetingReader,
    ResumableStream,
    ResumeError,
    StreamError,
    encode_greeting,
)

# The most bytes that one read returns.
_READ_BYTES = 1 << 18
# The end of the output on stderr that is kept for error messages.
_TAIL_BYTES = 4000
# How long the rest of stderr is read after a process has exited. A child of the process may keep stderr open.
_LOG_SECONDS = 0.5
# How long an engine may take to exit after the goodbye, before it is killed.
_EXIT_SECONDS = 3.0


class EngineError(BuddyError):
    """The engine could not be started, or has exited. The text is the reason, `detail` is the end of its log.

    If the error is permanent, a restart fails too until the user changes something.
    """

    def __init__(self, reason: str, detail: str = "", *, is_permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.is_permanent = reason, detail, is_permanent


class Transport(Protocol):
    """A bidirectional byte stream to one engine."""

    async def open(self) -> None:
        """Opens the connection. Raises `EngineError`."""

    async def read(self) -> bytes:
        """Returns the next bytes, or an empty result at the end."""

    def write(self, data: bytes) -> None:
        """Sends bytes without waiting."""

    def kill(self) -> None:
        """Closes the connection at once, because the engine does not answer or has sent invalid data."""

    async def exit_error(self) -> EngineError:
        """Returns the reason why `read` reached the end."""

    async def close(self, goodbye: bytes) -> None:
        """Sends `goodbye`, and stops the engine, with a signal if necessary. Returns when no local process is left."""


class ProcessTransport:
    """A transport over stdin and stdout of a local command. Its stderr goes to the file of `log`, if any."""

    def __init__(self, command: Sequence[str], log: LogOptions = NO_LOG) -> None:
        self._command, self._log_path = list(command), log.path
        self._stderr_tail = bytearray()
        self._started = False

    async def open(self) -> None:
        self._process = await self._spawn()
        self._started = True
        self._log_task = asyncio.create_task(self._read_log(self._process, self._open_log()))

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(_READ_BYTES)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    def kill(self) -> None:
        if not self._started:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def exit_code(self) -> int:
        """Waits for the exit code (negative for a signal), and for the rest of stderr."""
        await asyncio.wait([self._log_task], timeout=_LOG_SECONDS)
        return await self._process.wait()

    @property
    def stderr_tail(self) -> str:
        return self._stderr_tail.decode(errors="replace").strip()

    async def exit_error(self) -> EngineError:
        code = await self.exit_code()
        cause = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        last_line = self.stderr_tail.rpartition("\n")[2]
        return EngineError(f"the engine exited ({cause})" + (f": {last_line}" if last_line else ""), self.stderr_tail)

    async def close(self, goodbye: bytes = b"") -> None:
        if goodbye:
            self.write(goodbye)
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_SECONDS)
        except asyncio.TimeoutError:
            self.kill()
            await self._process.wait()
        await asyncio.wait([self._log_task], timeout=_LOG_SECONDS)
        self._log_task.cancel()

    async def _spawn(self) -> asyncio.subprocess.Process:
        """Starts the command. Raises `EngineError`."""
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=_READ_BYTES << 4, start_new_session=True
            )
        except OSError as error:
            reason = f"the engine does not start: {self._command[0]}: {error.strerror or error}"
            raise EngineError(reason, is_permanent=True) from error

    def _open_log(self) -> LogFile | None:
        """Opens the file of the log, `None` without one. Raises `EngineError` after killing the process."""
        try:
            return LogFile(self._log_path) if self._log_path else None
        except OSError as error:
            self.kill()
            raise EngineError(f"the log cannot be written: {self._log_path}: {error.strerror or error}") from error

    async def _read_log(self, process: asyncio.subprocess.Process, log: LogFile | None) -> None:
        """Reads stderr to its end: keeps its tail, and appends it to the log."""
        assert process.stderr is not None
        while data := await process.stderr.read(_READ_BYTES):
            self._stderr_tail = (self._stderr_tail + data)[-_TAIL_BYTES:]
            if log is not None:
                log.write(data)
        if log is not None:
            log.close()


# The limit of one attempt to connect, with a login over a slow connection and Python's startup on a slow machine.
_CONNECT_SECONDS = 60.0
# How long the stop command is waited for: a login, and a second for the engine to exit by itself.
_STOP_SECONDS = 5.0
# The waits before the attempts to reconnect; the last one repeats.
_RECONNECT_DELAYS = (0.3, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


class ResumingTransport:
    """A transport to one engine on the host `remote`. A lost connection is replaced, without loss of data.

    `on_connection_change` is called with the error of a lost connection, and with an empty string after the reconnect.
    """

    def __init__(self, remote: RemoteHost, log: LogOptions, on_connection_change: Callable[[str], None]) -> None:
        self._remote, self._log, self._on_connection_change = remote, log, on_connection_change
        self._engine_name = secrets.token_hex(8)
        self._stream = ResumableStream()
        self._connection: ProcessTransport | None = None
        self._new_connection: ProcessTransport | None = None
        # Data of the connection that is not decoded yet.
        self._received = b""
        self._retry_now = asyncio.Event()
        self._closing = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._exit_error = EngineError("the connection was closed")
        self._last_data_time = time.monotonic()
        self._engine_is_silent = self._engine_has_exited = False

    async def open(self) -> None:
        try:
            self._received = await self._connect(self._remote.start_command(self._engine_name))
        except ResumeError as error:
            reason = f"the engine does not start on {self._remote.host}: {error}"
            raise EngineError(reason, is_permanent=True) from error
        self._heartbeat = asyncio.create_task(self._send_heartbeats())

    async def read(self) -> bytes:
        """Returns the next bytes, or an empty result at the end.

        Reconnects if the connection is lost, which may take long.
        """
        while not self._closing:
            try:
                payload = self._decode_received()
                if payload:
                    return payload
                error_text = await self._receive()
            except StreamError as error:
                error_text = str(error)
            if error_text and not await self._reconnect(error_text):
                break
        return b""

    def _decode_received(self) -> bytes:
        """Returns the engine's bytes in the data that the connection has received. Raises `StreamError`."""
        data, self._received = self._received, b""
        if data:
            self._last_data_time = time.monotonic()
        payload = self._stream.feed(data)
        if self._stream.should_confirm and self._connection is not None:
            self._connection.write(self._stream.confirmation())
        return payload

    async def _receive(self) -> str:
        """Waits for data of the connection. Returns an error if none arrives; otherwise an empty string."""
        connection = self._connection
        assert connection is not None
        try:
            self._received = await asyncio.wait_for(connection.read(), SILENCE_SECONDS)
        except asyncio.TimeoutError:
            return f"no data for {SILENCE_SECONDS:g} s"
        if self._received or self._closing:
            return ""
        reason, _ = await self._exit_reason(connection)
        return reason

    async def _exit_reason(self, connection: ProcessTransport, noise: str = "") -> tuple[str, bool]:
        """Returns the reason why a connection has ended, and whether a new attempt would fail too.

        `noise` is what the host has printed to stdout instead of frames: the reason if stderr is empty.
        """
        code = await connection.exit_code()
        self._engine_is_silent = code == EXIT_UNANSWERED
        return self._remote.explain_exit(code, connection.stderr_tail or noise)

    @property
    def silent_seconds(self) -> int:
        """The seconds since the last data of an engine that does not answer on a reachable host; otherwise 0."""
        return int(time.monotonic() - self._last_data_time) if self._engine_is_silent else 0

    def write(self, data: bytes) -> None:
        record = self._stream.write(data)
        if self._connection is not None:
            self._connection.write(record)

    def kill(self) -> None:
        self._closing = True
        self._retry_now.set()
        for connection in (self._connection, self._new_connection):
            if connection is not None:
                connection.kill()

    def reconnect_now(self) -> None:
        """If the connection is lost, tries to reconnect now."""
        self._retry_now.set()

    async def exit_error(self) -> EngineError:
        await self._close_connection()
        return self._exit_error

    async def close(self, goodbye: bytes) -> None:
        self._closing = True
        self._retry_now.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(self._stream.write(goodbye))
        if not self._engine_has_exited and (connection is None or await connection.exit_code() != 0):
            await self._run_stop_command()

    async def _run_stop_command(self) -> None:
        """Stops an engine that did not receive the goodbye. An unreachable engine exits by itself."""
        null = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._remote.stop_command(self._engine_name),
                stdin=null,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
        except OSError:
            return
        # Do not wait long on a bad network: the command continues in the background until ssh gives up.
        deadline = time.monotonic() + _STOP_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    # ---- connections ---------------------------------------------------------------------------------------------

    async def _reconnect(self, reason: str) -> bool:
        """Reconnects after the connection was lost for `reason`, until it succeeds.

        Returns false if the engine has exited, an error is permanent, or the transport is closed.
        """
        await self._close_connection()
        attempt = 0
        while not self._closing:
            delay = _RECONNECT_DELAYS[min(attempt, len(_RECONNECT_DELAYS) - 1)]
            error_text = reason if self._engine_is_silent else f"connection lost: {reason}"
            self._on_connection_change(f"{error_text} · reconnecting in {max(1, round(delay))} s")
            await self._wait_before_retry(delay)
            try:
                if not self._closing:
                    self._received = await self._connect(self._remote.reconnect_command(self._engine_name))
                    self._engine_is_silent = False
                    self._on_connection_change("")
                    return True
            except ResumeError as error:
                self._engine_has_exited = True
                self._exit_error = EngineError(f"the engine on {self._remote.host} has exited: {error}")
                return False
            except EngineError as error:
                reason, attempt, self._exit_error = error.reason, attempt + 1, error
                if error.is_permanent:
                    return False
        return False

    async def _wait_before_retry(self, seconds: float) -> None:
        """Waits for `seconds`, or until `reconnect_now` is called."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._retry_now.wait(), seconds)
        self._retry_now.clear()

    async def _connect(self, command: list[str]) -> bytes:
        """Connects by `command`. Returns the data after the handshake. Raises `EngineError` and `ResumeError`."""
        connection = self._new_connection = ProcessTransport(command, self._log)
        await connection.open()
        try:
            if self._closing:
                raise EngineError("cancelled while connecting")
            connection.write(encode_greeting(self._stream.received))
            engine_received, early_data = await asyncio.wait_for(self._handshake(connection), _CONNECT_SECONDS)
            connection.write(self._stream.resume(engine_received))
        except BaseException as error:
            connection.kill()
            await connection.close()
            if isinstance(error, asyncio.TimeoutError):
                raise EngineError(f"no answer from {self._remote.host} for {_CONNECT_SECONDS:g} s") from error
            if isinstance(error, StreamError):
                raise EngineError(str(error), connection.stderr_tail, is_permanent=True) from error
            raise
        finally:
            self._new_connection = None
        self._connection = connection
        return early_data

    async def _handshake(self, connection: ProcessTransport) -> tuple[int, bytes]:
        """Returns the number of bytes that the engine has received so far, and the data after its greeting.

        Raises `EngineError` if the connection ends before the greeting.
        """
        greeting_reader = GreetingReader()
        while data := await connection.read():
            result = greeting_reader.feed(data)
            if result is not None:
                return result
        reason, is_permanent = await self._exit_reason(connection, greeting_reader.noise)
        raise EngineError(reason, connection.stderr_tail, is_permanent=is_permanent)

    async def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.kill()
            await connection.close()

    async def _send_heartbeats(self) -> None:
        """Regularly sends the number of received bytes, so that the engine knows that the connection works."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self._connection is not None:
                self._connection.write(self._stream.confirmation())
