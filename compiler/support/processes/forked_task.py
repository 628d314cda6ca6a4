"""Runs work in a forked process, so that a crash or an endless loop does no harm."""

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

from buddy.compiler.protocol.worker_messages import Refused, Reply, StopRunner, Trouble
from buddy.compiler.support.processes.channel import Channel, traceback_of
from buddy.compiler.support.processes.parent_death import describe_exit, die_with_parent

_TAIL = 4000
# Seconds between checks whether a child has ended, if the system has no notification, and whether it is stopped.
_POLL = 0.05
_LOOK = 1.0

How = Literal["replied", "crashed", "late", "stopped"]


@dataclass(frozen=True)
class Task:
    """The work of a child, given a channel to its parent, the reply if that raises, and its time limit in seconds.

    `types` are the messages that it may send, of which `note` gets all but the reply. With `renewed`, each message
    restarts the time limit. `stopped` is called when a signal stops the child, and when one continues it.
    """

    work: Callable[[Channel], Reply]
    failed: Callable[[Exception], Reply]
    types: Any
    note: Callable[[Any], None]
    timeout: float = math.inf
    renewed: bool = False
    stopped: Callable[[bool], None] = lambda stopped: None


@dataclass(frozen=True)
class TaskEnd:
    """How a child ended; `status` is its exit status in words, `tail` the end of its output."""

    how: How
    reply: Reply | None = None
    status: str = ""
    tail: str = ""


def in_child(master: Channel, task: Task) -> TaskEnd:
    """Runs `task` in a child; `master` may stop it by `StopRunner` or by disconnecting."""
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
    """Runs the child; its output goes to `output`, for the message in case of a crash."""
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


def _end_fd(pid: int) -> int:
    """Returns a descriptor that is readable once a child has ended; -1 without pidfd (Python, or Linux before 5.3)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


class _Watch:
    """Waits for the child's reply, its end, its time limit, or a request to stop it.

    The end is that of its process: a process that it has started may hold a copy of its pipe.
    """

    def __init__(self, master: Channel, child: Channel, pid: int, task: Task, output: IO[bytes]) -> None:
        self._master, self._child, self._pid = master, child, pid
        self._task, self._output = task, output
        self._deadline = time.monotonic() + task.timeout
        self._end_fd = _end_fd(pid)
        self._status: int | None = None
        self._reply: Reply | None = None
        self._killed: How | None = None

    def ended(self) -> TaskEnd:
        try:
            while (message := self._next()) is not None:
                self._take(message)
        finally:
            if self._end_fd >= 0:
                os.close(self._end_fd)
        if self._reply is not None:
            return TaskEnd("replied", self._reply)
        assert self._status is not None
        self._output.seek(0)
        tail = self._output.read()[-_TAIL:].decode(errors="replace").strip()
        return TaskEnd(self._killed or "crashed", None, describe_exit(os.waitstatus_to_exitcode(self._status)), tail)

    def _take(self, message: Any) -> None:
        if isinstance(message, Reply):
            self._reply = message
            return
        self._task.note(message)
        if self._task.renewed and not self._killed:
            self._deadline = time.monotonic() + self._task.timeout

    def _next(self) -> Any:
        """Returns the child's next message, or `None` once it has ended and all messages are read."""
        while not self._child.holds_message:
            ended = self._has_ended()
            if not self._child.at_end and self._child.ready(0):
                self._child.pull()
            elif ended:
                return None
            else:
                self._wait()
        return self._child.receive()

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                self._task.stopped(os.WIFSTOPPED(status))
            elif pid:
                self._status = status
        return self._status is not None

    def _wait(self) -> None:
        left = math.inf if self._killed else max(0.0, self._deadline - time.monotonic())
        fds = [self._end_fd] if self._end_fd >= 0 else []
        fds += [] if self._child.at_end else [self._child.read_fd]
        fds += [] if self._killed else [self._master.read_fd]
        patience = min(left, _LOOK if self._end_fd >= 0 else _POLL)
        readable, _, _ = select.select(fds, [], [], patience)
        if self._master.read_fd in readable:
            self._obey()
        elif not readable and patience == left:
            self._kill("late")

    def _obey(self) -> None:
        request = self._master.receive()
        if request is None or isinstance(request, StopRunner):
            self._kill("stopped")

    def _kill(self, how: How) -> None:
        self._killed = how
        if not self._has_ended():
            os.kill(self._pid, signal.SIGKILL)
