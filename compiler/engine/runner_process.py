"""Runs a compiled graph in a process forked from the host, where a crash or an endless loop costs nothing."""

from __future__ import annotations

import os
import select
import signal
import tempfile
import time
from typing import IO, Any

from buddy.compiler.engine.channel import Channel, traceback_of
from buddy.compiler.engine.lifeline import describe_exit, die_with_parent
from buddy.compiler.engine.messages import Activity, Execute, Executed, Refused, Reply, RunnerState, StopRunner, Trouble
from buddy.compiler.protocol import Diagnostic

_TAIL = 4000
_CRASH_TODO = "the graph and its stages are kept; switch off the last pass you changed, or an op, and run again"


def run_in_child(channel: Channel, captured: Any, request: Execute) -> Reply:
    """Run and compare in a child; the reply says what came, or how the child ended without a result."""
    read_fd, write_fd = os.pipe()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.close(read_fd)
            _child(Channel(channel.read_fd, write_fd, Executed | Refused), captured, request, output)
        os.close(write_fd)
        child = Channel(read_fd, -1, Activity | Trouble | Executed | Refused)
        try:
            return _Watch(channel, child, pid, request.timeout, output).result()
        finally:
            os.close(read_fd)


def _child(channel: Channel, captured: Any, request: Execute, output: IO[bytes]) -> None:
    """The child's whole life; what it prints goes to `output`, for the message in case it crashes."""
    try:
        die_with_parent(os.getppid())
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        channel.send(_outcome(channel, captured, request))
    finally:
        os._exit(0)


def _outcome(channel: Channel, captured: Any, request: Execute) -> Reply:
    from buddy.compiler.artifact import from_bytes
    from buddy.compiler.runner import run_and_compare

    try:
        report = run_and_compare(
            captured,
            from_bytes(request.artifact),
            repeats=request.repeats,
            threads=request.threads,
            nodes=request.nodes,
            compile_seconds=request.compile_seconds,
            graph=request.graph,
            on_progress=lambda what, done: channel.send(Activity(what, done)),
        )
        return Executed(report)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        return Refused(_diagnostic(error))


def _diagnostic(error: Exception) -> Diagnostic:
    found = getattr(error, "diagnostic", None)
    if isinstance(found, Diagnostic):
        return found
    return Diagnostic(f"the run failed: {type(error).__name__}: {error}", "the runner", "see the log")


class _Watch:
    """Waits for the child's result, for its end, for its time to be up, or for the engine to stop it."""

    def __init__(self, engine: Channel, child: Channel, pid: int, timeout: float, output: IO[bytes]) -> None:
        self._engine, self._child, self._pid, self._output = engine, child, pid, output
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._reply: Reply | None = None
        self._killed: Diagnostic | None = None

    def result(self) -> Reply:
        self._engine.send(RunnerState(True))
        while (message := self._next()) is not None:
            if isinstance(message, Reply):
                self._reply = message
            else:
                self._engine.send(message)
        _, status = os.waitpid(self._pid, 0)
        reply = self._reply or Refused(self._killed or self._crash(os.waitstatus_to_exitcode(status)))
        self._engine.send(RunnerState(False, str(reply.diagnostic) if isinstance(reply, Refused) else ""))
        return reply

    def _next(self) -> Any:
        """The child's next message, or `None` once it has ended."""
        while not self._child.ready(0):
            left = self._deadline - time.monotonic()
            fds = [self._child.read_fd] if self._killed else [self._child.read_fd, self._engine.read_fd]
            readable, _, _ = select.select(fds, [], [], None if self._killed else max(0.0, left))
            if self._engine.read_fd in readable:
                self._obey()
            elif not readable:
                self._kill(_too_slow(self._timeout))
        return self._child.receive()

    def _obey(self) -> None:
        request = self._engine.receive()
        if request is None or isinstance(request, StopRunner):
            self._kill(Diagnostic("the run was cancelled", severity="note"))

    def _kill(self, why: Diagnostic) -> None:
        self._killed = why
        os.kill(self._pid, signal.SIGKILL)

    def _crash(self, status: int) -> Diagnostic:
        self._output.seek(0)
        tail = self._output.read()[-_TAIL:].decode(errors="replace").strip()
        what = f"the compiled kernel crashed ({describe_exit(status)})"
        return Diagnostic(what, "while it ran", _CRASH_TODO, detail=tail)


def _too_slow(timeout: float) -> Diagnostic:
    what = f"the run took longer than {timeout:g} s and was stopped"
    return Diagnostic(what, "the runner", "give it more time (--timeout) or fewer repeats")
