"""Transports to an engine: the interface, and the pipes of a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Protocol

from buddy.app.session.log_file import NO_LOG, LogFile, LogOptions

_READ = 1 << 18
_TAIL = 4000
_PATIENCE = 3.0


class EngineLost(Exception):
    """The engine could not be started, or has exited. The text is the reason, `detail` is the end of its log.

    `lasting` means that the error is permanent: a restart fails until the user changes something.
    """

    def __init__(self, reason: str, detail: str = "", *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.detail, self.lasting = reason, detail, lasting


class Transport(Protocol):
    """A bidirectional byte stream to one engine."""

    async def open(self) -> None:
        """Open the connection. Raises `EngineLost`."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""

    def write(self, data: bytes) -> None:
        """Send bytes without waiting."""

    def kill(self) -> None:
        """Close the connection at once, after invalid data."""

    async def ended(self) -> EngineLost:
        """The reason why `read` reached the end."""

    async def close(self, goodbye: bytes) -> None:
        """Send `goodbye`, and stop the engine, with a signal if necessary. Returns when no local process is left."""


class ProcessTransport:
    """A transport over stdin and stdout of a command. Its stderr goes to the file of `log`, if any."""

    def __init__(self, command: Sequence[str], log: LogOptions = NO_LOG) -> None:
        self._command, self._log_path = list(command), log.path
        self._tail = bytearray()
        self._started = False

    async def open(self) -> None:
        self._process = await self._spawn()
        self._started = True
        self._errors = asyncio.create_task(self._read_log(self._process, self._open_log()))

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(_READ)

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
        """Wait for the exit code (negative for a signal). The output on stderr is complete afterwards."""
        await asyncio.wait([self._errors], timeout=0.5)
        return await self._process.wait()

    @property
    def tail(self) -> str:
        """The end of the output on stderr."""
        return self._tail.decode(errors="replace").strip()

    async def ended(self) -> EngineLost:
        code = await self.exit_code()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        last = self.tail.rpartition("\n")[2]
        return EngineLost(f"the engine exited ({how})" + (f": {last}" if last else ""), self.tail)

    async def close(self, goodbye: bytes = b"") -> None:
        if goodbye:
            self.write(goodbye)
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            await asyncio.wait_for(self._process.wait(), _PATIENCE)
        except asyncio.TimeoutError:
            self.kill()
            await self._process.wait()
        await asyncio.wait([self._errors], timeout=0.5)
        self._errors.cancel()

    async def _spawn(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=_READ << 4, start_new_session=True
            )
        except OSError as error:
            reason = f"the engine does not start: {self._command[0]}: {error.strerror or error}"
            raise EngineLost(reason, lasting=True) from error

    def _open_log(self) -> LogFile | None:
        try:
            return LogFile(self._log_path) if self._log_path else None
        except OSError as error:
            self.kill()
            raise EngineLost(f"the log cannot be written: {self._log_path}: {error.strerror or error}") from error

    async def _read_log(self, process: asyncio.subprocess.Process, log: LogFile | None) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(_READ):
            self._tail = (self._tail + data)[-_TAIL:]
            if log is not None:
                log.write(data)
        if log is not None:
            log.close()
