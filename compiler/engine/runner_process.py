"""Work in a process forked from the host, where a crash or an endless loop costs nothing.

A compiled graph runs in one; and what a script's own code has a part in is compiled in one, since it holds that code.
"""

from __future__ import annotations

import math
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Any

import msgspec

from buddy.compiler.engine.channel import Channel, traceback_of
from buddy.compiler.engine.compiler import compiled
from buddy.compiler.engine.lifeline import describe_exit, die_with_parent
from buddy.compiler.engine.messages import (
    Activity,
    CompileDone,
    CompileHere,
    CompilerNote,
    Execute,
    Executed,
    Measure,
    Measured,
    Refused,
    Reply,
    RunnerState,
    StopRunner,
    Trouble,
)
from buddy.compiler.protocol import Diagnostic

_TAIL = 4000
_RUN_CRASHED = Diagnostic(
    "the compiled kernel crashed",
    "while it ran",
    "the graph and its stages are kept; switch off the last pass you changed, or an op, and run again",
)
_COMPILER_CRASHED = Diagnostic(
    "the compiler crashed",
    "compiling with what the script has registered",
    "look at the script's own lowerings and passes; the stages made before are kept",
)


@dataclass(frozen=True)
class _Task:
    """What a child does, given the channel to the host; what to say when that fails or crashes; its time in seconds."""

    work: Callable[[Channel], Reply]
    failed: str
    crashed: Diagnostic
    timeout: float = math.inf


def run_in_child(channel: Channel, captured: Any, request: Execute) -> Reply:
    """Run and compare in a child; the reply says what came, or how the child ended without a result."""
    channel.send(RunnerState(True))
    task = _Task(lambda to_host: _run(to_host, captured, request), "the run failed", _RUN_CRASHED, request.timeout)
    reply = _in_child(channel, task)
    channel.send(RunnerState(False, str(reply.diagnostic) if isinstance(reply, Refused) else ""))
    return reply


def measure_in_child(channel: Channel, captured: Any, request: Measure) -> Reply:
    """Run with counters and without in a child."""
    task = _Task(lambda to_host: _measure(to_host, captured, request), "the run failed", _RUN_CRASHED, request.timeout)
    return _in_child(channel, task)


def compile_in_child(channel: Channel, captured: Any, request: CompileHere) -> Reply:
    """Compile in a child, which has every class, lowering and pass that the script has registered."""
    task = _Task(lambda to_host: _compile(to_host, captured, request), "compiling failed", _COMPILER_CRASHED)
    return _in_child(channel, task)


def _in_child(channel: Channel, task: _Task) -> Reply:
    read_fd, write_fd = os.pipe()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.close(read_fd)
            _child(Channel(channel.read_fd, write_fd, Refused), task, output)
        os.close(write_fd)
        child = Channel(read_fd, -1, CompilerNote | CompileDone | Executed | Measured | Refused)
        try:
            return _Watch(channel, child, pid, task, output).result()
        finally:
            os.close(read_fd)


def _child(channel: Channel, task: _Task, output: IO[bytes]) -> None:
    """The child's whole life; what it prints goes to `output`, for the message in case it crashes."""
    try:
        die_with_parent(os.getppid())
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        channel.send(_outcome(channel, task))
    finally:
        os._exit(0)


def _outcome(channel: Channel, task: _Task) -> Reply:
    try:
        return task.work(channel)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        return Refused(_diagnostic(error, task.failed))


def _compile(channel: Channel, captured: Any, request: CompileHere) -> Reply:
    from buddy.compiler.compilation import Compiler

    return compiled(channel, Compiler(captured.graph, captured.first()), request.recipe, request.known)


def _run(channel: Channel, captured: Any, request: Execute) -> Reply:
    from buddy.compiler.artifact import from_bytes
    from buddy.compiler.runner import run_and_compare
    from buddy.compiler.runner.choose_inputs import chosen_tensors
    from buddy.compiler.runner.values import Taker

    captured = replace(captured, tensors=chosen_tensors(captured, request.inputs))
    taker = Taker(captured, request.values, request.keep)
    report = run_and_compare(
        captured,
        from_bytes(request.artifact),
        repeats=request.repeats,
        threads=request.threads,
        nodes=request.nodes,
        compile_seconds=request.compile_seconds,
        graph=request.graph,
        on_progress=lambda what, done: channel.send(Activity(what, done)),
        on_values=taker.take,
    )
    return Executed(report, taker.file)


def _measure(channel: Channel, captured: Any, request: Measure) -> Reply:
    from buddy.compiler.artifact import from_bytes
    from buddy.compiler.profiling.measure import profile
    from buddy.compiler.runner.choose_inputs import chosen_tensors

    captured = replace(captured, tensors=chosen_tensors(captured, request.inputs))
    report = profile(
        captured,
        from_bytes(request.plain),
        from_bytes(request.counted),
        repeats=request.repeats,
        threads=request.threads,
        graph=request.graph,
        on_progress=lambda what, done: channel.send(Activity(what, done)),
    )
    return Measured(report)


def _diagnostic(error: Exception, failed: str) -> Diagnostic:
    found = getattr(error, "diagnostic", None)
    if isinstance(found, Diagnostic):
        return found
    return Diagnostic(f"{failed}: {type(error).__name__}: {error}", "a process forked for it", "see the log")


class _Watch:
    """Waits for the child's result, for its end, for its time to be up, or for the engine to stop it."""

    def __init__(self, engine: Channel, child: Channel, pid: int, task: _Task, output: IO[bytes]) -> None:
        self._engine, self._child, self._pid = engine, child, pid
        self._task, self._output = task, output
        self._deadline = time.monotonic() + task.timeout
        self._reply: Reply | None = None
        self._killed: Diagnostic | None = None

    def result(self) -> Reply:
        while (message := self._next()) is not None:
            if isinstance(message, Reply):
                self._reply = message
            else:
                self._engine.send(message)
        _, status = os.waitpid(self._pid, 0)
        return self._reply or Refused(self._killed or self._crash(os.waitstatus_to_exitcode(status)))

    def _next(self) -> Any:
        """The child's next message, or `None` once it has ended."""
        while not self._child.ready(0):
            left = self._deadline - time.monotonic()
            fds = [self._child.read_fd] if self._killed else [self._child.read_fd, self._engine.read_fd]
            endless = self._killed is not None or math.isinf(left)
            readable, _, _ = select.select(fds, [], [], None if endless else max(0.0, left))
            if self._engine.read_fd in readable:
                self._obey()
            elif not readable:
                self._kill(_too_slow(self._task.timeout))
        return self._child.receive()

    def _obey(self) -> None:
        request = self._engine.receive()
        if request is None or isinstance(request, StopRunner):
            self._kill(Diagnostic("it was cancelled", severity="note"))

    def _kill(self, why: Diagnostic) -> None:
        self._killed = why
        os.kill(self._pid, signal.SIGKILL)

    def _crash(self, status: int) -> Diagnostic:
        self._output.seek(0)
        tail = self._output.read()[-_TAIL:].decode(errors="replace").strip()
        what = f"{self._task.crashed.what} ({describe_exit(status)})"
        return msgspec.structs.replace(self._task.crashed, what=what, detail=tail)


def _too_slow(timeout: float) -> Diagnostic:
    what = f"the run took longer than {timeout:g} s and was stopped"
    return Diagnostic(what, "the runner", "give it more time (--timeout) or fewer repeats")
