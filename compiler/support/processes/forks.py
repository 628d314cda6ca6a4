"""Forks of this process: they have its modules, program and tensors, and may crash or never end without harm.

Fork before torch has used more than one thread here: a child hangs in its first parallel op.
"""

from __future__ import annotations

import faulthandler
import math
import os
import select
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal, NamedTuple

import msgspec

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.worker_messages import (
    CodeRemarks,
    CompileDone,
    CompilerNote,
    Executed,
    GraphImported,
    Measured,
    Message,
    ProgramExported,
    Refused,
    Reply,
    RunnerState,
    StopRunner,
    Trouble,
    Watched,
)
from buddy.compiler.support.processes.channel import Channel, MessagePipe, traceback_of
from buddy.compiler.support.processes.lifetime import describe_exit, die_with_parent, die_with_socket

_TAIL = 4000
# Seconds between checks whether a child has ended, if the system has no notification, and whether it is stopped.
_POLL = 0.05
_STOP_POLL = 1.0
# What C++ code prints before it aborts.
_ABORT_MESSAGES = ("Assertion", "LLVM ERROR", "UNREACHABLE", "terminate called", "what():")

_REPLIES = (
    CompilerNote | CompileDone | GraphImported | CodeRemarks | Executed | Measured | Watched | ProgramExported | Refused
)

How = Literal["replied", "crashed", "late", "stopped"]


def _fork(work: Callable[[], None], outlives: bool = False) -> int:
    """Runs `work` in a child, and returns its process id. The child ends with this process unless it `outlives` it."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    try:
        if not outlives:
            die_with_parent(parent)
        work()
    finally:
        os._exit(0)


def _redirect(output: int) -> None:
    """Redirects the output of this process, from Python or C, to a file descriptor."""
    os.dup2(output, 1)
    os.dup2(output, 2)


# ---- any number of messages ------------------------------------------------------------------------------------------


class ForkedWorker:
    """A fork of this process that calls `work` with a channel for messages of the types `requests`.

    `replies` are the types of its answers. It ends when `work` does, with `end`, and with this process. Its output is
    available after its end.
    """

    def __init__(self, work: Callable[[Channel], None], requests: Any, replies: Any) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        their_read, write = os.pipe()
        read, their_write = os.pipe()
        self._pipe = MessagePipe(read, write, replies)
        self._status: int | None = None
        self.pid = _fork(lambda: self._run_work(work, Channel(their_read, their_write, requests)))
        os.close(their_read)
        os.close(their_write)

    def _run_work(self, work: Callable[[Channel], None], channel: Channel) -> None:
        self._pipe.close()
        _redirect(self._output.fileno())
        faulthandler.disable()
        try:
            work(channel)
        except BaseException:
            os.write(2, traceback.format_exc().encode())  # `sys.stderr` may be another stream
            os._exit(1)

    def send(self, message: Message) -> None:
        """Sends a message. Raises `BrokenPipeError` if the child has ended."""
        self._pipe.send(message)

    def receive(self, timeout: float = math.inf) -> Any:
        """Returns the child's next message, `None` at its end. Raises `TimeoutError` after `timeout` seconds."""
        return self._pipe.receive(timeout)

    @property
    def alive(self) -> bool:
        return self._wait(os.WNOHANG) is None

    def kill(self) -> None:
        """Kills the child, and waits for its end."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def cause(self) -> str:
        """Waits for the child's end; returns how it ended, and the line that it printed about the cause, if any."""
        status = self._wait()
        assert status is not None
        said = [line.strip() for line in self.output().splitlines() if line.strip()]
        last = [line for line in said if any(words in line for words in _ABORT_MESSAGES)] or (
            said if status > 0 else []
        )
        return f"{describe_exit(status)}: {last[-1][:300]}" if last else describe_exit(status)

    def output(self) -> str:
        """Returns the output of the child."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def end(self) -> None:
        """Kills the child, and discards its output."""
        self.kill()
        self._pipe.close()
        self._output.close()

    def _wait(self, options: int = 0) -> int | None:
        """Returns the child's exit status, `None` while it runs."""
        if self._status is None and (found := os.waitpid(self.pid, options))[0]:
            self._status = os.waitstatus_to_exitcode(found[1])
        return self._status


# ---- one reply -------------------------------------------------------------------------------------------------------


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
    """Runs `task` in a child; `master` may stop it by `StopRunner` or by disconnecting.

    The child's output is used for the message in case of a crash.
    """
    read_fd, write_fd = os.pipe()
    with tempfile.TemporaryFile() as output:

        def work() -> None:
            os.close(read_fd)
            channel = Channel(master.read_fd, write_fd, Refused)
            _redirect(output.fileno())
            channel.send(_outcome(channel, task))

        pid = _fork(work)
        os.close(write_fd)
        try:
            return _Watch(master, MessagePipe(read_fd, -1, task.types), pid, task, output).ended()
        finally:
            os.close(read_fd)


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

    def __init__(self, master: Channel, child: MessagePipe, pid: int, task: Task, output: IO[bytes]) -> None:
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
        patience = min(left, _STOP_POLL if self._end_fd >= 0 else _POLL)
        readable, _, _ = select.select(fds, [], [], patience)
        if self._master.read_fd in readable:
            self._handle_stop_request()
        elif not readable and patience == left:
            self._kill("late")

    def _handle_stop_request(self) -> None:
        request = self._master.receive()
        if request is None or isinstance(request, StopRunner):
            self._kill("stopped")

    def _kill(self, how: How) -> None:
        self._killed = how
        if not self._has_ended():
            os.kill(self._pid, signal.SIGKILL)


class Words(NamedTuple):
    """The messages for a child whose work raised, and for one that crashed."""

    failed: str
    crashed: Diagnostic


def reply_in_child(
    channel: Channel, work: Callable[[Channel], Reply], words: Words, timeout: float = math.inf
) -> Reply:
    """Runs `work` in a child, which may send notes over `channel`; returns its reply, or a `Refused` without one.

    `timeout` is in seconds. The process at the other end of `channel` is notified when a signal stops the child, and
    may cancel the work.
    """
    was_stopped = False

    def stopped(is_so: bool) -> None:
        nonlocal was_stopped
        was_stopped = True
        channel.send(RunnerState(True, stopped=is_so))

    task = Task(
        work, lambda error: Refused(_diagnostic(error, words.failed)), _REPLIES, channel.send, timeout, stopped=stopped
    )
    ended = in_child(channel, task)
    if was_stopped:
        channel.send(RunnerState(False))
    if ended.reply is not None:
        return ended.reply
    if ended.how == "crashed":
        what = f"{words.crashed.what} ({ended.status})"
        return Refused(msgspec.structs.replace(words.crashed, what=what, detail=ended.tail))
    return Refused(_too_slow(timeout) if ended.how == "late" else Diagnostic("it was cancelled", severity="note"))


def _diagnostic(error: Exception, failed: str) -> Diagnostic:
    found = getattr(error, "diagnostic", None)
    if isinstance(found, Diagnostic):
        return found
    return Diagnostic(f"{failed}: {type(error).__name__}: {error}", "a forked process", "see the log")


def _too_slow(timeout: float) -> Diagnostic:
    what = f"the run took longer than {timeout:g} s and was stopped"
    todo = "give it more time (--timeout, in the palette Time of a run) or fewer repeats"
    return Diagnostic(what, "the runner", todo)


# ---- a process that outlives the request -----------------------------------------------------------------------------


def lifetime_socket(address: str) -> str:
    """Returns the socket next to `address` without messages: a process ends with the one that listens there."""
    return os.path.join(os.path.dirname(address), "line")


def fork_to(address: str, types: Any, live: Callable[[Channel], None]) -> None:
    """Forks a process that serves the socket `address`; it ends when `live` returns, or when its client disconnects.

    This process can serve other requests meanwhile, and may even be replaced. `types` are the messages that the fork
    receives.
    """

    def lead() -> None:
        with _join_session(address):
            # Forked twice, so that this process does not have to wait for it.
            _fork(lambda: _run_work(address, types, live), outlives=True)

    os.waitpid(_fork(lead), 0)


def _join_session(address: str) -> socket.socket:
    """Makes this process a session leader; returns the connection with which it and its forks end."""
    os.setsid()
    line = socket.socket(socket.AF_UNIX)
    line.connect(lifetime_socket(address))
    die_with_socket(line.fileno(), group=True)
    return line


def _run_work(address: str, types: Any, live: Callable[[Channel], None]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        live(Channel(connection.fileno(), connection.fileno(), types))
