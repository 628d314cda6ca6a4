"""Starts worker processes, and handles their pipes, messages, output and exit on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol.wire import FrameBuffer, FrameDecoder, WireError, encode
from buddy.compiler.support.processes.interpreters import python_command
from buddy.compiler.support.processes.lifetime import LifetimePipe, describe_exit, kill_group, start_with_pipe

if TYPE_CHECKING:
    from buddy.compiler.protocol.worker_messages import Message


_READ_BYTES = 1 << 20
_PRINTOUT_BYTES = 1 << 16
_PRINTOUT_PAUSE_SECONDS = 0.02
_MAX_DRAIN_READS = 32
_MAX_TAIL_BYTES = 4000
# The first words of the stack that `faulthandler` prints after a crash.
_STACK_HEADER = b"Fatal Python error:"


@dataclass(frozen=True)
class ProcessEvents:
    """The functions that a `WorkerProcess` calls.

    `body` is called with the body of each frame, `printed` with the name of an output stream and its bytes, `stopped`
    with true when a signal stops the process and false when one continues it, and `ended` with a description of the
    exit. While `congested` returns true, the output of the process is not read.
    """

    body: Callable[[bytes], None]
    printed: Callable[[str, bytes], None]
    stopped: Callable[[bool], None]
    ended: Callable[[str], None]
    congested: Callable[[], bool]


class WorkerProcess:
    """A child that leads its own session and exchanges frames over two pipes.

    It runs `function`, named `module:function`. No frames go over its standard streams: stdin is empty, stdout and
    stderr are captured.
    """

    def __init__(self, function: str, events: ProcessEvents) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._buffer = FrameBuffer()
        self._outgoing = bytearray()
        self._tail = bytearray()
        self._fault = ""
        self._popen, self._lifetime, self._write_fd, self._read_fd = _spawn(function)
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._streams = {"stdout": self._popen.stdout.fileno(), "stderr": self._popen.stderr.fileno()}
        self._open = True
        self._watch()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def tail(self) -> str:
        """The end of the worker's stderr since `forget_tail`, without the Python stack after a crash."""
        return self._tail.partition(_STACK_HEADER)[0].decode(errors="replace").strip()

    def send(self, frame: bytes) -> None:
        """Queues `frame`, which is written when the worker reads."""
        if not self._open:
            return
        if not self._outgoing:
            self._loop.add_writer(self._write_fd, self._write)
        self._outgoing += frame

    def kill(self) -> None:
        """Kills the process and all processes that it started; `ended` is called afterwards."""
        kill_group(self.pid)

    def forget_tail(self) -> None:
        """Discards the output so far, so that it is not reported with the next request or the exit."""
        self.drain_printout()
        self._tail.clear()

    def drain_printout(self) -> None:
        """Reads the output so far, so that it is reported before the next message."""
        for name in self._streams:
            for _ in range(_MAX_DRAIN_READS):
                if not self._read_printout(name):
                    break

    def _watch(self) -> None:
        for fd in (self._write_fd, self._read_fd, *self._streams.values()):
            os.set_blocking(fd, False)
        self._loop.add_reader(self._read_fd, self._read_bodies)
        for name in self._streams:
            self._watch_printout(name)
        threading.Thread(target=_wait, args=(self._popen, self._loop, self._handle_status), daemon=True).start()

    def _write(self) -> None:
        try:
            written = os.write(self._write_fd, self._outgoing)
            del self._outgoing[:written]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._outgoing.clear()
        if not self._outgoing:
            self._loop.remove_writer(self._write_fd)

    def _read_bodies(self) -> bool:
        """Reads messages; returns whether there may be more. Kills a process that writes invalid data."""
        data = _read(self._read_fd, _READ_BYTES)
        if data == b"":
            self._loop.remove_reader(self._read_fd)
        try:
            for body in self._buffer.feed(data or b""):
                self._events.body(body)
        except WireError as error:
            self._loop.remove_reader(self._read_fd)
            self._fault = f"it wrote invalid data to the engine's pipe: {error}"
            self.kill()
            return False
        return bool(data)

    def _watch_printout(self, name: str) -> None:
        if self._open and self._events.congested():
            self._loop.call_later(_PRINTOUT_PAUSE_SECONDS, self._watch_printout, name)
        elif self._open:
            self._loop.add_reader(self._streams[name], self._receive_printout, name)

    def _receive_printout(self, name: str) -> None:
        """Reads a limited amount of output, then pauses: a script that floods stdout must not block the event loop."""
        byte_count = self._read_printout(name)
        if byte_count == 0:
            self._loop.remove_reader(self._streams[name])
        elif byte_count is not None and (byte_count >= _PRINTOUT_BYTES or self._events.congested()):
            self._loop.remove_reader(self._streams[name])
            self._loop.call_later(_PRINTOUT_PAUSE_SECONDS, self._watch_printout, name)

    def _read_printout(self, name: str) -> int | None:
        """Reads output; returns the number of bytes: 0 at the end of the stream, `None` if none are available."""
        data = _read(self._streams[name], _PRINTOUT_BYTES)
        if data:
            if name == "stderr":
                before, stack, _ = (self._tail + data).partition(_STACK_HEADER)
                self._tail = before[-_MAX_TAIL_BYTES:] + stack  # the stack must not displace the output before it
            self._events.printed(name, data)
        return None if data is None else len(data)

    def _handle_status(self, status: int | None, stopped: bool) -> None:
        if status is None:
            self._events.stopped(stopped)
        elif self._open:
            self._finish(status)

    def _finish(self, status: int) -> None:
        """Reads the remaining messages, kills leftover children, and reports the exit."""
        kill_group(self.pid)
        self.drain_printout()
        while self._read_bodies():
            pass
        self.close()
        self._events.ended(self._fault or describe_exit(status))

    def close(self) -> None:
        """Stops listening and closes the pipes, which ends a running process."""
        self._open = False
        self._lifetime.close()
        for fd in (self._read_fd, *self._streams.values()):
            self._loop.remove_reader(fd)
        self._loop.remove_writer(self._write_fd)
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)
        for stream in (self._popen.stdout, self._popen.stderr):
            assert stream is not None
            stream.close()


class OneShotProcess:
    """A process that answers one request; `messages` are its answers, of the types `answers`, then its exit.

    `printed` is called with the name of an output stream and its bytes; by default, output is discarded.
    """

    def __init__(
        self, function: str, request: Message, answers: object,
        printed: Callable[[str, bytes], None] = lambda _stream, _data: None,
        congested: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self._ended = asyncio.Event()
        decoder = FrameDecoder(answers)
        events = ProcessEvents(
            body=lambda body: self.messages.put_nowait(decoder.decode(body)),
            printed=printed,
            stopped=lambda _stopped: None,
            ended=self._end,
            congested=congested,
        )
        self._process = WorkerProcess(function, events)
        self._process.send(encode(request))

    @property
    def tail(self) -> str:
        """The end of the process's stderr."""
        return self._process.tail

    def _end(self, how: str) -> None:
        self.messages.put_nowait(how)
        self._ended.set()

    async def close(self) -> None:
        """Kills the process, and waits for its end."""
        if not self._ended.is_set():
            self._process.kill()
            await self._ended.wait()


def _spawn(function: str) -> tuple[subprocess.Popen[bytes], LifetimePipe, int, int]:
    """Starts `function` with two pipes; returns the process, and our ends to write to and to read from."""
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    _widen(our_read)
    _widen(our_write)
    popen, lifetime = start_with_pipe(
        python_command(function, "pipes", str(their_read), str(their_write), parent=os.getpid()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        keep=(their_read, their_write),
        start_new_session=True,
        bufsize=0,
    )
    os.close(their_read)
    os.close(their_write)
    return popen, lifetime, our_write, our_read


def _widen(fd: int) -> None:
    """Enlarges a pipe to a megabyte, which transfers stage texts several times as fast as the default."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _READ_BYTES)


def _read(fd: int, count: int) -> bytes | None:
    """Returns the available bytes: b"" at the end of the stream, `None` if none are available yet."""
    try:
        return os.read(fd, count)
    except BlockingIOError:
        return None


def _wait(
    popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, on_change: Callable[[int | None, bool], None]
) -> None:
    """Waits for the end of a child; runs on a separate thread.

    Calls `on_change` on the event loop when the child is stopped, continued, or has ended, with its exit status (`None`
    while it runs) and whether it is stopped.
    """
    while popen.returncode is None:
        _, status = os.waitpid(popen.pid, os.WUNTRACED | os.WCONTINUED)
        running = os.WIFSTOPPED(status) or os.WIFCONTINUED(status)
        if not running:
            popen.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(on_change, popen.returncode, os.WIFSTOPPED(status))
