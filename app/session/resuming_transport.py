"""A transport to a remote engine that reconnects after a lost connection without losing data."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import time
from collections.abc import Callable

from buddy.app.session.log_file import LogOptions
from buddy.app.session.ssh import RemoteHost
from buddy.app.session.transport import EngineLost, ProcessTransport
from buddy.compiler.protocol.resuming import (
    BEAT,
    SILENCE,
    UNANSWERED,
    GoneError,
    Greeted,
    ResumableStream,
    StreamError,
    greeting,
)

# Includes a login over a slow connection, and Python's startup on a slow machine.
_CONNECT_SECONDS = 60.0
# Includes a login, and a second for the engine to exit by itself.
_END_SECONDS = 5.0
_DELAYS = (0.3, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)

LinkChanged = Callable[[str], None]


class ResumingTransport:
    """A connection to one engine on `remote`, which is replaced when it is lost.

    `link_changed` is called with the error of a lost connection, and with an empty string after the reconnect.
    """

    def __init__(self, remote: RemoteHost, log: LogOptions, link_changed: LinkChanged) -> None:
        self._remote, self._log, self._link_changed = remote, log, link_changed
        self._name = secrets.token_hex(8)
        self._stream = ResumableStream()
        self._link: ProcessTransport | None = None
        self._new_link: ProcessTransport | None = None
        self._received = b""
        self._retry_now = asyncio.Event()
        self._closing = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._end = EngineLost("the connection was closed")
        self._heard = time.monotonic()
        self._unanswered = self._has_exited = False

    async def open(self) -> None:
        try:
            self._received = await self._connect(self._remote.start_command(self._name))
        except GoneError as error:
            raise EngineLost(f"the engine does not start on {self._remote.host}: {error}", lasting=True) from error
        self._heartbeat = asyncio.create_task(self._send_heartbeats())

    async def read(self) -> bytes:
        """Read like any transport. A failed connection is replaced here, which may take long."""
        while not self._closing:
            try:
                if payload := self._decode():
                    return payload
                why = await self._receive()
            except StreamError as error:
                why = str(error)
            if why and not await self._reconnect(why):
                break
        return b""

    def _decode(self) -> bytes:
        """The engine's bytes in the data of the connection."""
        data, self._received = self._received, b""
        if data:
            self._heard = time.monotonic()
        payload = self._stream.feed(data)
        if self._stream.owes_count and self._link is not None:
            self._link.write(self._stream.count())
        return payload

    async def _receive(self) -> str:
        """Wait for data. Returns the error of the connection if none arrives."""
        link = self._link
        assert link is not None
        try:
            self._received = await asyncio.wait_for(link.read(), SILENCE)
        except asyncio.TimeoutError:
            return f"no data for {SILENCE:g} s"
        return "" if self._received or self._closing else (await self._exit_reason(link))[0]

    async def _exit_reason(self, link: ProcessTransport, said: str = "") -> tuple[str, bool]:
        """The reason why a connection has ended, and whether it is permanent."""
        code = await link.exit_code()
        self._unanswered = code == UNANSWERED
        return self._remote.explain(code, link.tail or said)

    @property
    def silent(self) -> int:
        """The seconds since a connected engine last sent data; 0 if the connection is lost."""
        return int(time.monotonic() - self._heard) if self._unanswered else 0

    def write(self, data: bytes) -> None:
        record = self._stream.write(data)
        if self._link is not None:
            self._link.write(record)

    def kill(self) -> None:
        self._closing = True
        self._retry_now.set()
        for link in (self._link, self._new_link):
            if link is not None:
                link.kill()

    def reconnect_now(self) -> None:
        """Try to reconnect at once, if the connection is lost."""
        self._retry_now.set()

    async def ended(self) -> EngineLost:
        await self._close_link()
        return self._end

    async def close(self, goodbye: bytes) -> None:
        self._closing = True
        self._retry_now.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        link, self._link = self._link, None
        if link is not None:
            await link.close(self._stream.write(goodbye))
        if not self._has_exited and (link is None or await link.exit_code() != 0):
            await self._end_remotely()

    async def _end_remotely(self) -> None:
        """Kill an engine that did not receive the goodbye. An unreachable engine exits after its wait time."""
        nowhere = subprocess.DEVNULL
        try:
            ending = subprocess.Popen(
                self._remote.stop_command(self._name),
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
            )
        except OSError:
            return
        # Do not wait long on a bad network: the command continues in the background until ssh gives up.
        end = time.monotonic() + _END_SECONDS
        while ending.poll() is None and time.monotonic() < end:
            await asyncio.sleep(0.02)

    # ---- connections ---------------------------------------------------------------------------------------------

    async def _reconnect(self, why: str) -> bool:
        """Reconnect after the error `why`. Returns whether it succeeded."""
        await self._close_link()
        attempt = 0
        while not self._closing:
            delay = _DELAYS[min(attempt, len(_DELAYS) - 1)]
            what = why if self._unanswered else f"connection lost: {why}"
            self._link_changed(f"{what} · reconnecting in {max(1, round(delay))} s")
            await self._wait(delay)
            try:
                if not self._closing:
                    self._received = await self._connect(self._remote.reconnect_command(self._name))
                    self._unanswered = False
                    self._link_changed("")
                    return True
            except GoneError as error:
                self._end, self._has_exited = EngineLost(f"the engine on {self._remote.host} has exited: {error}"), True
                return False
            except EngineLost as error:
                why, attempt, self._end = error.reason, attempt + 1, error
                if error.lasting:
                    return False
        return False

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._retry_now.wait(), seconds)
        self._retry_now.clear()

    async def _connect(self, command: list[str]) -> bytes:
        """Connect by `command`. Returns the data after the handshake. Raises `EngineLost` and `GoneError`."""
        link = self._new_link = ProcessTransport(command, self._log)
        await link.open()
        try:
            if self._closing:
                raise EngineLost("cancelled while connecting")
            link.write(greeting(self._stream.received))
            theirs, rest = await asyncio.wait_for(self._handshake(link), _CONNECT_SECONDS)
            link.write(self._stream.resume(theirs))
        except BaseException as error:
            link.kill()
            await link.close()
            if isinstance(error, asyncio.TimeoutError):
                raise EngineLost(f"no answer from {self._remote.host} for {_CONNECT_SECONDS:g} s") from error
            if isinstance(error, StreamError):
                raise EngineLost(str(error), link.tail, lasting=True) from error
            raise
        finally:
            self._new_link = None
        self._link = link
        return rest

    async def _handshake(self, link: ProcessTransport) -> tuple[int, bytes]:
        """The number of bytes that the engine has received, and the data after its handshake."""
        greeted = Greeted()
        while data := await link.read():
            if (found := greeted.feed(data)) is not None:
                return found
        what, lasting = await self._exit_reason(link, greeted.noise)
        raise EngineLost(what, link.tail, lasting=lasting)

    async def _close_link(self) -> None:
        """Close a failed connection."""
        link, self._link = self._link, None
        if link is not None:
            link.kill()
            await link.close()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            if self._link is not None:
                self._link.write(self._stream.count())
