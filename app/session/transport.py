"""Transports to an engine: the pipes of a process, ssh, and reconnection after a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from buddy.app.session.log_file import NO_LOG, LogFile, LogOptions
from buddy.compiler.protocol.wire import (
    BEAT,
    SILENCE,
    UNANSWERED,
    GoneError,
    GreetingReader,
    ResumableStream,
    StreamError,
    greeting,
)

# Covers a long network outage, but does not keep resources of the host for a day.
PATIENCE = 600.0
PROGRAM = "buddy-tui"


@dataclass(frozen=True)
class RemoteHost:
    """An engine on `host`, a host name for ssh.

    `ssh` is the command that connects, `options` are passed as `-o`, `program` is the path of buddy-tui on the host.
    Sources are relative to `folder` on the host (empty: the home folder). The engine exits after `patience` seconds
    without a connection.
    """

    host: str
    ssh: tuple[str, ...] = ("ssh",)
    options: tuple[str, ...] = ()
    program: str = PROGRAM
    folder: str = ""
    patience: float = PATIENCE

    @property
    def place(self) -> str:
        """A key that distinguishes programs with the same path on different hosts."""
        return f"{self.host} {self.folder}"

    def start_command(self, name: str) -> list[str]:
        """The command that starts an engine called `name` on the host, and connects to it."""
        return self._command("--keep", name, "--wait", f"{self.patience:g}")

    def reconnect_command(self, name: str) -> list[str]:
        """The command that reconnects to that engine."""
        return self._command("--back", name)

    def stop_command(self, name: str) -> list[str]:
        """The command that stops that engine, even if it is busy."""
        return self._command("--end", name)

    def _command(self, *words: str) -> list[str]:
        """The ssh command. The words for the remote shell are quoted; the user's options precede ours."""
        # ssh uses the first value of an option. BatchMode: the user cannot answer prompts while the workbench is drawn.
        ours = ("BatchMode=yes", "ConnectTimeout=15")
        options = [word for option in (*self.options, *ours) for word in ("-o", option)]
        return [*self.ssh, "-T", *options, "--", self.host, shlex.join([self.program, "engine", *words])]

    def explain(self, code: int, stderr: str) -> tuple[str, bool]:
        """The cause of ssh's exit and what to do, and whether the error is permanent."""
        if code == UNANSWERED:
            return f"the engine on {self.host} does not answer", False
        for sign, what, todo in _COMPLAINTS:
            if sign in stderr:
                return f"{what.format(self=self)} · {todo.format(self=self)}", True
        if code == 127 or "not found" in stderr.rpartition("\n")[2]:
            return f"{self.program} not found on {self.host} · {_INSTALL.format(self=self)}", True
        last = stderr.rpartition("\n")[2].strip() or f"exit code {code}"
        return f"ssh {self.host}: {last}", False


def check_host(text: str) -> str:
    """A valid host argument for ssh. Raises `ValueError` for an option or an invalid host.

    ssh inserts the name into the shell commands of `ProxyCommand` and `Match exec`, and older versions do not check it.
    So shell metacharacters and parts that start with a dash are rejected.
    """
    if not _HOST.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a host: use HOST, USER@HOST, ssh://USER@HOST:PORT or a name in ~/.ssh/config"
        )
    return text


# USER@ and the rest: names, addresses, `[::1]`, `%eth0`, `:PORT`; letters of any script.
_PART = r"(?!-)[\w.+~%,=:\[\]][\w.+~%,=:\[\]-]*"
_HOST = re.compile(rf"(ssh://)?({_PART}@)*{_PART}")
_INSTALL = "install it there, or give its path: --remote-program venv/bin/buddy-tui"
_COMPLAINTS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host key of {self.host} has changed",
        "find out why; `ssh {self.host}` shows the line in known_hosts",
    ),
    (
        "Host key verification failed",
        "ssh does not know the host key of {self.host} yet",
        "connect once with `ssh {self.host}` and answer its question",
    ),
    (
        "Permission denied (",
        "ssh needs a password or a passphrase for {self.host}, which cannot be entered here",
        "add your key to the agent (`ssh-add`), or share a connection you have opened (docs/remote.md)",
    ),
    ("Could not resolve hostname", "ssh cannot resolve the host {self.host}", "check the name, or ~/.ssh/config"),
    ("Bad configuration option", "ssh rejects an option", "check --ssh-option and ~/.ssh/config"),
    (
        "unrecognized arguments: --",
        "buddy-tui on {self.host} has another version",
        "install the same version on both sides",
    ),
    (
        "no such option: --",
        "buddy-tui on {self.host} has another version",
        "install the same version on both sides",
    ),
)


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
        greeted = GreetingReader()
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
