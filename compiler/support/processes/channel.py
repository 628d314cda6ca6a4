"""Sends and receives whole messages over a pair of pipes, blocking. Imports neither torch nor MLIR."""

from __future__ import annotations

import math
import os
import select
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from buddy.compiler.protocol.connection import FrameBuffer, FrameDecoder, encode
from buddy.compiler.protocol.text.lines import line_count
from buddy.compiler.protocol.text.store import text_name
from buddy.compiler.protocol.worker_messages import Message, TextData

_READ_BYTES = 1 << 20


class MessagePipe:
    """Receives messages of `types` from one file descriptor, and sends messages to another."""

    def __init__(self, read_fd: int, write_fd: int, types: object) -> None:
        self.read_fd, self._write_fd = read_fd, write_fd
        self._decoder, self._buffer = FrameDecoder(types), FrameBuffer()
        self._bodies: deque[bytes] = deque()
        self._ended = False

    def send(self, message: Message) -> None:
        """Writes `message`. Raises `BrokenPipeError` if the reader has exited."""
        frame = memoryview(encode(message))
        while frame:
            frame = frame[os.write(self._write_fd, frame) :]

    def receive(self, timeout: float = math.inf) -> Any:
        """Returns the next message, or `None` if the other side has closed the pipe.

        Raises `TimeoutError` if none arrives within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self._bodies and not self._ended:
            if timeout != math.inf and not self.has_input(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"silent for {timeout:g} s")
            self.read_available()
        return self._decoder.decode(self._bodies.popleft()) if self._bodies else None

    def fileno(self) -> int:
        """Returns the file descriptor that is read from, so that `select` accepts this object."""
        return self.read_fd

    @property
    def holds_message(self) -> bool:
        """Whether a whole message has been read but not received."""
        return bool(self._bodies)

    @property
    def at_end(self) -> bool:
        """Whether the end of the stream has been read."""
        return self._ended

    def read_available(self) -> None:
        """Reads the available bytes; waits until there is at least one, or the end."""
        data = os.read(self.read_fd, _READ_BYTES)
        self._ended = not data
        self._bodies.extend(self._buffer.feed(data))

    def has_input(self, timeout: float) -> bool:
        """Returns whether there is something to read within `timeout` seconds: bytes, a message, or the end."""
        if self._bodies or self._ended:
            return True
        readable, _, _ = select.select([self.read_fd], [], [], timeout)
        return bool(readable)

    def close(self) -> None:
        """Closes both file descriptors; further calls have no effect."""
        fds, self.read_fd, self._write_fd = {self.read_fd, self._write_fd} - {-1}, -1, -1
        for fd in fds:
            os.close(fd)


class Channel(MessagePipe):
    """A worker's pipes to the process that started it."""

    def __init__(self, read_fd: int, write_fd: int, types: object) -> None:
        super().__init__(read_fd, write_fd, types)
        self._owner = os.getpid()

    def send(self, message: Message) -> None:
        """Writes `message`. Exits if the reader has exited.

        A fork of this process that a script has made with `os.fork` exits too, because only one process may use a pipe.
        """
        if os.getpid() != self._owner:
            os._exit(0)
        try:
            super().send(message)
        except BrokenPipeError:
            os._exit(1)


WorkerFunction = TypeVar("WorkerFunction", bound=Callable[[Channel], None])


def serves(requests: object) -> Callable[[WorkerFunction], WorkerFunction]:
    """Decorates the function that a worker runs: the worker receives messages of the types `requests`."""

    def mark(function: WorkerFunction) -> WorkerFunction:
        function.requests = requests  # type: ignore[attr-defined]
        return function

    return mark


def make_text_data(
    content: str, line_sets: bytes, sets: tuple[tuple[str, ...], ...],
    derived: dict[int, tuple[str, ...]] | None = None, machine_code: Sequence[bytes] = (),
) -> tuple[TextData, int]:  # fmt: skip
    """Returns a text with its name in the store, and the number of its lines.

    The parameters are fields of `TextData`; `machine_code` has the bytes of each line.
    """
    code, sizes = b"".join(machine_code), bytes(map(len, machine_code))
    name = text_name(content, line_sets, sets, derived, code)
    return TextData(name, content, line_sets, sets, derived or {}, code, sizes), line_count(content)


def traceback_of(error: BaseException) -> str:
    """Returns the traceback, for the log."""
    return "".join(traceback.format_exception(error))
