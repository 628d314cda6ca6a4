"""Work in a process forked from this one, where a crash or an endless loop costs nothing."""

from __future__ import annotations

import math
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal

from buddy.compiler.engine.channel import Channel, traceback_of
from buddy.compiler.engine.lifeline import describe_exit, die_with_parent
from buddy.compiler.engine.messages import Refused, Reply, StopRunner, Trouble

_TAIL = 4000

How = Literal["replied", "crashed", "late", "stopped"]


@dataclass(frozen=True)
class Task:
    """What a child does, given a channel to its parent, and what it replies when that raises; its time in seconds.

    `types` are what it may send, of which `note` gets all but the reply.
    """

    work: Callable[[Channel], Reply]
    failed: Callable[[Exception], Reply]
    types: Any
    note: Callable[[Any], None]
    timeout: float = math.inf


@dataclass(frozen=True)
class Ended:
    """How a child ended; `status` is that of its process in words, `tail` the last that it printed."""

    how: How
    reply: Reply | None = None
    status: str = ""
    tail: str = ""


def in_child(master: Channel, task: Task) -> Ended:
    """Do `task` in a child; `master` may stop it meanwhile, by `StopRunner` or by going away."""
    read_fd, write_fd = os.pipe()
    parent = os.getpid()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.close(read_fd)
            _child(parent, Channel(master.read_fd, write_fd, Refused), task, output)
        os.close(write_fd)
        try:
            return _Watch(master, Channel(read_fd, -1, task.types), pid, task, output).ended()
        finally:
            os.close(read_fd)


def _child(parent: int, channel: Channel, task: Task, output: IO[bytes]) -> None:
    """The child's whole life; what it prints goes to `output`, for the message in case it crashes."""
    try:
        die_with_parent(parent)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        channel.send(_outcome(channel, task))
    finally:
        os._exit(0)


def _outcome(channel: Channel, task: Task) -> Reply:
    try:
        return task.work(channel)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        return task.failed(error)


class _Watch:
    """Waits for the child's reply, for its end, for its time to be up, or for the master to stop it."""

    def __init__(self, master: Channel, child: Channel, pid: int, task: Task, output: IO[bytes]) -> None:
        self._master, self._child, self._pid = master, child, pid
        self._task, self._output = task, output
        self._deadline = time.monotonic() + task.timeout
        self._reply: Reply | None = None
        self._killed: How | None = None

    def ended(self) -> Ended:
        while (message := self._next()) is not None:
            if isinstance(message, Reply):
                self._reply = message
            else:
                self._task.note(message)
        _, status = os.waitpid(self._pid, 0)
        if self._reply is not None:
            return Ended("replied", self._reply)
        self._output.seek(0)
        tail = self._output.read()[-_TAIL:].decode(errors="replace").strip()
        return Ended(self._killed or "crashed", None, describe_exit(os.waitstatus_to_exitcode(status)), tail)

    def _next(self) -> Any:
        """The child's next message, or `None` once it has ended."""
        while not self._child.ready(0):
            left = self._deadline - time.monotonic()
            fds = [self._child.read_fd] if self._killed else [self._child.read_fd, self._master.read_fd]
            endless = self._killed is not None or math.isinf(left)
            readable, _, _ = select.select(fds, [], [], None if endless else max(0.0, left))
            if self._master.read_fd in readable:
                self._obey()
            elif not readable:
                self._kill("late")
        return self._child.receive()

    def _obey(self) -> None:
        request = self._master.receive()
        if request is None or isinstance(request, StopRunner):
            self._kill("stopped")

    def _kill(self, how: How) -> None:
        self._killed = how
        os.kill(self._pid, signal.SIGKILL)
