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

from buddy.compiler.protocol.connection import FrameBuffer, FrameDecoder, WireError, encode
from buddy.compiler.support.processes.interpreters import python_command
from buddy.compiler.support.processes.lifetime import LifetimePipe, describe_exit, kill_group, start_with_pipe

if TYPE_CHECKING:
    from buddy.compiler.protocol.worker_messages import Message


# The maximum number of bytes of one read from the pipe, and of one read of output.
_READ_BYTES = 1 << 20
_OUTPUT_BYTES = 1 << 16
# The pause after a read of that many bytes of output, and the maximum number of reads without a pause.
_OUTPUT_PAUSE_SECONDS = 0.02
_MAX_DRAIN_READS = 32
_MAX_TAIL_BYTES = 4000
# The first words of the stack that `faulthandler` prints after a crash.
_STACK_HEADER = b"Fatal Python error:"


@dataclass(frozen=True)
class ProcessEvents:
    """The functions that a `WorkerProcess` calls.

    `on_body` is called with the body of each frame, `on_output` with the name of an output stream and its bytes,
    `on_stop` with true when a signal stops the process and false when one continues it, and `on_exit` with a
    description of the exit. While `is_congested` returns true, the output of the process is not read.
    """

    on_body: Callable[[bytes], None]
    on_output: Callable[[str, bytes], None]
    on_stop: Callable[[bool], None]
    on_exit: Callable[[str], None]
    is_congested: Callable[[], bool]


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
        self._pipe_error = ""
        self._popen, self._lifetime, self._write_fd, self._read_fd = _start_function(function)
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        # The file descriptors of the output streams, by name.
        self._streams = {"stdout": self._popen.stdout.fileno(), "stderr": self._popen.stderr.fileno()}
        self._is_open = True
        self._watch()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def tail(self) -> str:
        """The end of the worker's stderr since `discard_output`, without the Python stack after a crash."""
        return self._tail.partition(_STACK_HEADER)[0].decode(errors="replace").strip()

    def send(self, frame: bytes) -> None:
        """Queues `frame`, which is written when the worker reads."""
        if not self._is_open:
            return
        if not self._outgoing:
            self._loop.add_writer(self._write_fd, self._write_outgoing)
        self._outgoing += frame

    def kill(self) -> None:
        """Kills the process and all processes that it started; `on_exit` is called afterwards."""
        kill_group(self.pid)

    def discard_output(self) -> None:
        """Discards the output so far, so that it is not reported with the next request or the exit."""
        self.read_output()
        self._tail.clear()

    def read_output(self) -> None:
        """Reads the output so far, so that it is reported before the next message."""
        for name in self._streams:
            for _ in range(_MAX_DRAIN_READS):
                if not self._read_stream(name):
                    break

    def _watch(self) -> None:
        for fd in (self._write_fd, self._read_fd, *self._streams.values()):
            os.set_blocking(fd, False)
        self._loop.add_reader(self._read_fd, self._read_bodies)
        for name in self._streams:
            self._watch_output(name)
        threading.Thread(
            target=_wait_for_exit, args=(self._popen, self._loop, self._handle_status), daemon=True
        ).start()

    def _write_outgoing(self) -> None:
        """Writes as much of the queued frames as the pipe takes; called when the pipe is writable."""
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
        data = _read_available(self._read_fd, _READ_BYTES)
        if data == b"":
            self._loop.remove_reader(self._read_fd)
        try:
            for body in self._buffer.feed(data or b""):
                self._events.on_body(body)
        except WireError as error:
            self._loop.remove_reader(self._read_fd)
            self._pipe_error = f"it wrote invalid data to the engine's pipe: {error}"
            self.kill()
            return False
        return bool(data)

    def _watch_output(self, name: str) -> None:
        """Reads an output stream from now on, or after a pause while the reader of the output is congested."""
        if self._is_open and self._events.is_congested():
            self._loop.call_later(_OUTPUT_PAUSE_SECONDS, self._watch_output, name)
        elif self._is_open:
            self._loop.add_reader(self._streams[name], self._receive_output, name)

    def _receive_output(self, name: str) -> None:
        """Reads a limited amount of output, then pauses: a script that floods stdout must not block the event loop."""
        byte_count = self._read_stream(name)
        if byte_count == 0:
            self._loop.remove_reader(self._streams[name])
        elif byte_count is not None and (byte_count >= _OUTPUT_BYTES or self._events.is_congested()):
            self._loop.remove_reader(self._streams[name])
            self._loop.call_later(_OUTPUT_PAUSE_SECONDS, self._watch_output, name)

    def _read_stream(self, name: str) -> int | None:
        """Reads output; returns the number of bytes: 0 at the end of the stream, `None` if none are available."""
        data = _read_available(self._streams[name], _OUTPUT_BYTES)
        if data:
            if name == "stderr":
                before, stack, _ = (self._tail + data).partition(_STACK_HEADER)
                self._tail = before[-_MAX_TAIL_BYTES:] + stack  # the stack must not displace the output before it
            self._events.on_output(name, data)
        return None if data is None else len(data)

    def _handle_status(self, status: int | None, stopped: bool) -> None:
        if status is None:
            self._events.on_stop(stopped)
        elif self._is_open:
            self._finish(status)

    def _finish(self, status: int) -> None:
        """Reads the remaining messages, kills leftover children, and reports the exit."""
        kill_group(self.pid)
        self.read_output()
        while self._read_bodies():
            pass
        self.close()
        self._events.on_exit(self._pipe_error or describe_exit(status))

    def close(self) -> None:
        """Stops listening and closes the pipes, which ends a running process."""
        self._is_open = False
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
    """A process that answers one request.

    `messages` gets its answers, which are of the types `answers`, and then a description of its exit, a `str`.
    `on_output` is called with the name of an output stream and its bytes; by default, output is discarded.
    """

    def __init__(
        self, function: str, request: Message, answers: object,
        on_output: Callable[[str, bytes], None] = lambda _stream, _data: None,
        is_congested: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self._ended = asyncio.Event()
        decoder = FrameDecoder(answers)
        events = ProcessEvents(
            on_body=lambda body: self.messages.put_nowait(decoder.decode(body)),
            on_output=on_output,
            on_stop=lambda _stopped: None,
            on_exit=self._end,
            is_congested=is_congested,
        )
        self._process = WorkerProcess(function, events)
        self._process.send(encode(request))

    @property
    def tail(self) -> str:
        """The end of the process's stderr."""
        return self._process.tail

    def _end(self, exit_description: str) -> None:
        self.messages.put_nowait(exit_description)
        self._ended.set()

    async def close(self) -> None:
        """Kills the process, and waits for its end."""
        if not self._ended.is_set():
            self._process.kill()
            await self._ended.wait()


def _start_function(function: str) -> tuple[subprocess.Popen[bytes], LifetimePipe, int, int]:
    """Starts `function` with two pipes.

    Returns the process, the pipe that ends it, and the file descriptors to write to and to read from.
    """
    child_read, our_write = os.pipe()
    our_read, child_write = os.pipe()
    _enlarge_pipe(our_read)
    _enlarge_pipe(our_write)
    popen, lifetime = start_with_pipe(
        python_command(function, "pipes", str(child_read), str(child_write), parent=os.getpid()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        keep=(child_read, child_write),
        start_new_session=True,
        bufsize=0,
    )
    os.close(child_read)
    os.close(child_write)
    return popen, lifetime, our_write, our_read


def _enlarge_pipe(fd: int) -> None:
    """Enlarges a pipe to a megabyte, which transfers stage texts several times as fast as the default."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _READ_BYTES)


def _read_available(fd: int, count: int) -> bytes | None:
    """Returns the available bytes: b"" at the end of the stream, `None` if none are available yet."""
    try:
        return os.read(fd, count)
    except BlockingIOError:
        return None


def _wait_for_exit(
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
