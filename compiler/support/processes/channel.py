"""A worker's side of its pipes: whole messages, blocking. Imports neither torch nor MLIR."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

from buddy.compiler.protocol.text.lines import line_count
from buddy.compiler.protocol.text.store import text_name
from buddy.compiler.protocol.wire import FrameBuffer, FrameDecoder, encode
from buddy.compiler.protocol.worker_messages import Message, TextData
from buddy.compiler.support.processes.limits import WORKER_FIRST, prefer_as_oom_victim
from buddy.compiler.support.processes.parent_death import die_with_parent
from buddy.compiler.support.scratch import ensure_temporary_folder

_READ = 1 << 20


class Channel:
    """Receives messages of `types` from one file descriptor, and sends messages to another."""

    def __init__(self, read_fd: int, write_fd: int, types: Any) -> None:
        self.read_fd, self._write_fd = read_fd, write_fd
        self._decoder, self._buffer = FrameDecoder(types), FrameBuffer()
        self._bodies: deque[bytes] = deque()
        self._ended = False
        self._owner = os.getpid()

    def send(self, message: Message) -> None:
        """Writes `message`. Exits if the reader has gone.

        A copy of this process that a script made by `os.fork` exits too: only one may use a pipe.
        """
        if os.getpid() != self._owner:
            os._exit(0)
        frame = memoryview(encode(message))
        try:
            while frame:
                frame = frame[os.write(self._write_fd, frame) :]
        except BrokenPipeError:
            os._exit(1)

    def receive(self) -> Any:
        """Returns the next message, or `None` if the other side has gone."""
        while not self._bodies and not self._ended:
            self.pull()
        return self._decoder.decode(self._bodies.popleft()) if self._bodies else None

    @property
    def holds_message(self) -> bool:
        """True if a whole message has been read but not received."""
        return bool(self._bodies)

    @property
    def at_end(self) -> bool:
        """True if the end of the stream has been read."""
        return self._ended

    def pull(self) -> None:
        """Reads what is available; waits for the first byte."""
        data = os.read(self.read_fd, _READ)
        self._ended = not data
        self._bodies.extend(self._buffer.feed(data))

    def ready(self, timeout: float) -> bool:
        """True if `receive` would return within `timeout` seconds."""
        return bool(self._bodies) or self._ended or bool(select.select([self.read_fd], [], [], timeout)[0])

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self._write_fd)


def connect(types: Any) -> Channel:
    """Returns the channel to the engine that started this process, from the command line; ends with that process."""
    read_fd, write_fd, parent = map(int, sys.argv[1:4])
    for fd in (read_fd, write_fd):
        os.set_inheritable(fd, False)
    die_with_parent(parent)
    prefer_as_oom_victim(WORKER_FIRST)
    ensure_temporary_folder()
    _forget_current_folder()
    return Channel(read_fd, write_fd, types)


def text_data(
    content: str, line_sets: bytes, sets: tuple[tuple[str, ...], ...],
    derived: dict[int, tuple[str, ...]] | None = None, machine: Sequence[bytes] = (),
) -> tuple[TextData, int]:  # fmt: skip
    """Returns a text under its name, and its number of lines."""
    code, sizes = b"".join(machine), bytes(map(len, machine))
    name = text_name(content, line_sets, sets, derived, code)
    return TextData(name, content, line_sets, sets, derived or {}, code, sizes), line_count(content)


def traceback_of(error: BaseException) -> str:
    """Returns the traceback, for the log."""
    return "".join(traceback.format_exception(error))


def _forget_current_folder() -> None:
    """`python -m` before 3.11 puts the current folder first on `sys.path`; files in it must not shadow modules."""
    if sys.path and sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
