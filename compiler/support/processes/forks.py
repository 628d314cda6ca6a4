"""Runs work in forks of this process, which have its modules, program and tensors, and may crash or never end.

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
from buddy.compiler.protocol.errors import diagnostic_of
from buddy.compiler.protocol.worker_messages import (
    CodeRemarks,
    CompileDone,
    CompilerNote,
    Done,
    Executed,
    FailureReply,
    GraphImported,
    GraphNodesCompared,
    GraphProfiled,
    LogText,
    Message,
    ProgramExported,
    Reply,
    RunnerState,
    StopRunner,
)
from buddy.compiler.support.processes.channel import Channel, MessagePipe, traceback_of
from buddy.compiler.support.processes.lifetime import describe_exit, die_with_parent, die_with_socket

# The maximum size of the end of a child's output, and the length of the line about the cause of its end.
_MAX_TAIL_BYTES, _MAX_CAUSE_CHARS = 4000, 300
# The seconds between two checks whether a child has ended, on systems that do not notify, and whether it is stopped.
_POLL_SECONDS = 0.05
_STOP_POLL_SECONDS = 1.0
# Parts of the messages that C++ code prints before it aborts.
_ABORT_MESSAGES = ("Assertion", "LLVM ERROR", "UNREACHABLE", "terminate called", "what():")

# The messages that a child of `reply_in_child` may send.
_REPLIES = (
    CompilerNote
    | CompileDone
    | GraphImported
    | CodeRemarks
    | Executed
    | GraphProfiled
    | GraphNodesCompared
    | ProgramExported
    | Done
    | FailureReply
)

# How a child ended; "late" means that it was killed at the time limit, "stopped" that it was killed on request.
EndKind = Literal["replied", "crashed", "late", "stopped"]


def _fork(work: Callable[[], None], is_detached: bool = False) -> int:
    """Runs `work` in a child, and returns its process id. The child ends with this process unless it `is_detached`."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    try:
        if not is_detached:
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
    """A fork of this process that calls `work` with a channel.

    The fork receives messages of the types `requests`, and sends messages of the types `replies`. It ends when `work`
    returns, by `end`, or with this process.
    """

    def __init__(self, work: Callable[[Channel], None], requests: object, replies: object) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        child_read, write = os.pipe()
        read, child_write = os.pipe()
        self._pipe = MessagePipe(read, write, replies)
        self._status: int | None = None
        self.pid = _fork(lambda: self._run_work(work, Channel(child_read, child_write, requests)))
        os.close(child_read)
        os.close(child_write)

    def _run_work(self, work: Callable[[Channel], None], channel: Channel) -> None:
        """Calls `work` in the child, whose output goes to the file."""
        self._pipe.close()
        _redirect(self._output.fileno())
        faulthandler.disable()
        try:
            work(channel)
        except BaseException:
            os.write(2, traceback.format_exc().encode())  # `sys.stderr` may be another stream
            os._exit(1)  # reports a failure to the parent: `_fork` would exit with 0

    def send(self, message: Message) -> None:
        """Sends a message. Raises `BrokenPipeError` if the child has ended."""
        self._pipe.send(message)

    def receive(self, timeout: float = math.inf) -> Any:
        """Returns the child's next message, `None` if it has ended. Raises `TimeoutError` after `timeout` seconds."""
        return self._pipe.receive(timeout)

    @property
    def alive(self) -> bool:
        return self._wait(os.WNOHANG) is None

    def kill(self) -> None:
        """Kills the child, and waits for its end."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def wait_for_cause(self) -> str:
        """Waits for the child's end; returns how it ended, and the line that it printed about the cause, if any."""
        status = self._wait()
        assert status is not None
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        abort_lines = [line for line in lines if any(part in line for part in _ABORT_MESSAGES)]
        causes = abort_lines or (lines if status > 0 else [])
        return f"{describe_exit(status)}: {causes[-1][:_MAX_CAUSE_CHARS]}" if causes else describe_exit(status)

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
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


# ---- one reply -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """The work of a child: `work` gets a channel to the parent and returns the reply.

    If `work` raises, `make_failure` returns the reply. The child may send messages of `types`; `on_message` is called
    with all but the reply. The child is killed after `timeout` seconds; if `is_renewed` is set, each message restarts
    this time. `on_stop` is called with true when a signal stops the child, and with false when a signal continues it.
    """

    work: Callable[[Channel], Reply]
    make_failure: Callable[[Exception], Reply]
    types: Any
    on_message: Callable[[Any], None]
    timeout: float = math.inf
    is_renewed: bool = False
    on_stop: Callable[[bool], None] = lambda _is_stopped: None


@dataclass(frozen=True)
class TaskEnd:
    """How a child ended: with a reply, or with an exit status (`status`, in words); `tail` is the end of its output."""

    how: EndKind
    reply: Reply | None = None
    status: str = ""
    tail: str = ""


def run_in_child(requester: Channel, task: Task) -> TaskEnd:
    """Runs `task` in a child, and returns how it ended.

    The process at the other end of `requester` may stop the child by sending `StopRunner` or by disconnecting. The
    child's output is not printed, only returned in case of a crash.
    """
    read_fd, write_fd = os.pipe()
    with tempfile.TemporaryFile() as output:

        def run_and_reply() -> None:
            os.close(read_fd)
            channel = Channel(requester.read_fd, write_fd, FailureReply)
            _redirect(output.fileno())
            channel.send(_run_task(channel, task))

        pid = _fork(run_and_reply)
        os.close(write_fd)
        try:
            return _ChildWatch(requester, MessagePipe(read_fd, -1, task.types), pid, task, output).wait_for_end()
        finally:
            os.close(read_fd)


def _run_task(channel: Channel, task: Task) -> Reply:
    """Returns the reply of `task`, in the child; sends the traceback of an error for the log."""
    try:
        return task.work(channel)
    except Exception as error:
        channel.send(LogText(traceback_of(error)))
        return task.make_failure(error)


def _exit_fd(pid: int) -> int:
    """Returns a file descriptor that is readable once a child has ended; -1 if the system has no `pidfd_open`."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


class _ChildWatch:
    """Handles a child's messages until it ends; kills it at the time limit or on request.

    It waits for the end of the process, not of the pipe: processes that the child has started may keep the pipe open.
    """

    def __init__(self, requester: Channel, child: MessagePipe, pid: int, task: Task, output: IO[bytes]) -> None:
        self._requester, self._child, self._pid = requester, child, pid
        self._task, self._output = task, output
        self._deadline = time.monotonic() + task.timeout
        self._exit_fd = _exit_fd(pid)
        self._status: int | None = None
        self._reply: Reply | None = None
        self._kill_reason: EndKind | None = None

    def wait_for_end(self) -> TaskEnd:
        """Waits for the end of the child; returns how it ended."""
        try:
            while (message := self._next_message()) is not None:
                self._handle_message(message)
        finally:
            if self._exit_fd >= 0:
                os.close(self._exit_fd)
        if self._reply is not None:
            return TaskEnd("replied", self._reply)
        assert self._status is not None
        self._output.seek(0)
        tail = self._output.read()[-_MAX_TAIL_BYTES:].decode(errors="replace").strip()
        return TaskEnd(
            self._kill_reason or "crashed", None, describe_exit(os.waitstatus_to_exitcode(self._status)), tail
        )

    def _handle_message(self, message: Message) -> None:
        if isinstance(message, Reply):
            self._reply = message
            return
        self._task.on_message(message)
        if self._task.is_renewed and not self._kill_reason:
            self._deadline = time.monotonic() + self._task.timeout

    def _next_message(self) -> Any:
        """Returns the child's next message, or `None` once it has ended and all messages are read."""
        while not self._child.holds_message:
            has_ended = self._has_ended()
            if not self._child.at_end and self._child.has_input(0):
                self._child.read_available()
            elif has_ended:
                return None
            else:
                self._wait_for_event()
        return self._child.receive()

    def _has_ended(self) -> bool:
        """Returns whether the child has ended; calls the task's `on_stop` if a signal has stopped or continued it."""
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                self._task.on_stop(os.WIFSTOPPED(status))
            elif pid:
                self._status = status
        return self._status is not None

    def _wait_for_event(self) -> None:
        """Waits for output or the end of the child, for a request to stop it, or for the time limit.

        Returns after a short time even without an event: only `_has_ended` notices that the child is stopped, and on
        some systems that it has ended.
        """
        seconds_left = math.inf if self._kill_reason else max(0.0, self._deadline - time.monotonic())
        fds = [self._exit_fd] if self._exit_fd >= 0 else []
        fds += [] if self._child.at_end else [self._child.read_fd]
        fds += [] if self._kill_reason else [self._requester.read_fd]
        poll_seconds = min(seconds_left, _STOP_POLL_SECONDS if self._exit_fd >= 0 else _POLL_SECONDS)
        readable, _, _ = select.select(fds, [], [], poll_seconds)
        if self._requester.read_fd in readable:
            self._handle_stop_request()
        elif not readable and poll_seconds == seconds_left:
            self._kill("late")

    def _handle_stop_request(self) -> None:
        request = self._requester.receive()
        if request is None or isinstance(request, StopRunner):
            self._kill("stopped")

    def _kill(self, reason: EndKind) -> None:
        self._kill_reason = reason
        if not self._has_ended():
            os.kill(self._pid, signal.SIGKILL)


class FailureMessages(NamedTuple):
    """The messages for a child whose work raised an error, and for one that crashed."""

    failed: str
    crashed: Diagnostic


def reply_in_child(
    channel: Channel, work: Callable[[Channel], Reply], messages: FailureMessages, timeout: float = math.inf
) -> Reply:
    """Runs `work` in a child, and passes on the child's notes over `channel`.

    Returns the child's reply, or a `FailureReply` if it failed, crashed, was cancelled, or took more than `timeout`
    seconds. The process at the other end of `channel` is notified when a signal stops the child, and may cancel the
    work.
    """
    was_stopped = False

    def report_stop(is_stopped: bool) -> None:
        nonlocal was_stopped
        was_stopped = True
        channel.send(RunnerState(True, stopped=is_stopped))

    task = Task(
        work,
        lambda error: FailureReply(diagnostic_of(error, messages.failed, "a forked process", "see the log")),
        _REPLIES,
        channel.send,
        timeout,
        on_stop=report_stop,
    )
    end = run_in_child(channel, task)
    if was_stopped:
        channel.send(RunnerState(False))
    if end.reply is not None:
        return end.reply
    if end.how == "crashed":
        what = f"{messages.crashed.what} ({end.status})"
        return FailureReply(msgspec.structs.replace(messages.crashed, what=what, detail=end.tail))
    if end.how == "late":
        return FailureReply(_timeout_diagnostic(timeout))
    return FailureReply(Diagnostic("it was cancelled", severity="note"))


def _timeout_diagnostic(timeout: float) -> Diagnostic:
    what = f"the run took longer than {timeout:g} s and was stopped"
    todo = "allow more time (--timeout, or Time limit of a run in the palette) or fewer repeats"
    return Diagnostic(what, "the runner", todo)


# ---- a process that outlives the request -----------------------------------------------------------------------------


def lifetime_socket_path(address: str) -> str:
    """Returns the path of the socket next to `address` that carries no messages: forks end when it is closed."""
    return os.path.join(os.path.dirname(address), "line")


def fork_to(address: str, types: object, work: Callable[[Channel], None]) -> None:
    """Forks a process that connects to the socket `address` and calls `work` with a channel over the connection.

    The fork ends when `work` returns, or when the process that listens at `address` closes the sockets. This process
    can serve other requests meanwhile, and may even end. `types` are the types of messages that the fork receives.
    """

    def start_in_session() -> None:
        with _join_session(address):
            # A second fork, so that this process need not wait for the end of the work.
            _fork(lambda: _work_over_socket(address, types, work), is_detached=True)

    os.waitpid(_fork(start_in_session), 0)


def _join_session(address: str) -> socket.socket:
    """Makes this process a session leader. Returns a connection: when it ends, the kernel kills the session's group."""
    os.setsid()
    lifetime_connection = socket.socket(socket.AF_UNIX)
    lifetime_connection.connect(lifetime_socket_path(address))
    die_with_socket(lifetime_connection.fileno(), group=True)
    return lifetime_connection


def _work_over_socket(address: str, types: object, work: Callable[[Channel], None]) -> None:
    """Calls `work` with a channel over a connection to `address`; discards the standard streams."""
    null_device = os.open(os.devnull, os.O_RDWR)
    for standard_stream in (0, 1, 2):
        os.dup2(null_device, standard_stream)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        work(Channel(connection.fileno(), connection.fileno(), types))
