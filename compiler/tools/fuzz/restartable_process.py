"""Runs work that may crash in a fork of a warm process, and records what the work is about to do."""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.forks import ForkedWorker
from buddy.compiler.support.processes.interpreters import BlockingWorker

# The byte after the text in a `CrashLog`: a shorter text does not overwrite the end of a longer one.
_END = b"\0"


class CrashLog:
    """A text in a file, which is replaced by one system call, and survives a crash of this process."""

    def __init__(self, path: Path | None) -> None:
        """If `path` is `None`, nothing is recorded. Raises `OSError`."""
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def record(self, text: str) -> None:
        """Replaces the recorded text by `text`; "" means that no work is running."""
        if self._file is not None:
            os.pwrite(self._file, text.encode() + _END, 0)


def read_crash_log(path: Path) -> str:
    """Returns the last recorded text, or an empty string."""
    return path.read_bytes().partition(_END)[0].decode() if path.exists() else ""


CallEnd = Literal["answer", "crash", "timeout"]


class WorkResult(NamedTuple):
    """How a call ended; `value` is the function's result for "answer", else a description of the crash or timeout."""

    how: CallEnd
    value: Any


class LoadWork(Message, frozen=True):
    """Import `module`, whose `function` later requests call; this must be the first request, and has no answer."""

    module: str
    function: str


class CallWork(Message, frozen=True):
    """Call the function with the pickled `arguments` for at most `timeout` seconds; answered by `WorkCalled`."""

    arguments: bytes
    timeout: float


class WorkCalled(Message, frozen=True):
    """The answer to `CallWork`: a `WorkResult` with a pickled `value`."""

    how: CallEnd
    value: bytes


class RestartableProcess:
    """Calls `module:function(*arguments)` in a separate process.

    The process is a fork of a warm process that has imported `module` and run nothing, because a process that has used
    torch's threads cannot be forked. When the calling process ends, the warm process exits, and with it the fork.
    """

    def __init__(self, module: str, function: str) -> None:
        # The warm process writes to stderr (descriptor 2) of this process.
        self._warm = BlockingWorker(f"{__name__}:serve", WorkCalled, log=2)
        self._warm.send(LoadWork(module, function))

    def __enter__(self) -> RestartableProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._warm.end()

    def ask(self, arguments: tuple[object, ...], timeout: float) -> WorkResult:
        """Calls the function; gives up after `timeout` seconds. Raises `RuntimeError` if the warm process exits.

        `arguments` and the result are pickled.
        """
        try:
            self._warm.send(CallWork(pickle.dumps(arguments), timeout))
        except BrokenPipeError:
            reply = None
        else:
            reply = self._warm.receive()
        if reply is None:
            raise RuntimeError(f"the process that forks workers exited with {self._warm.wait()}")
        return WorkResult(reply.how, pickle.loads(reply.value))


# ---- in the warm process, and its forks ------------------------------------------------------------------------------


@serves(LoadWork | CallWork)
def serve(channel: Channel) -> None:
    """Runs in the warm process: imports a module, and passes calls on to a fork."""
    request = channel.receive()
    work = getattr(importlib.import_module(request.module), request.function)
    fork: ForkedWorker | None = None
    while (call := channel.receive()) is not None:
        if fork is None or not fork.alive:
            if fork is not None:
                fork.end()
            fork = ForkedWorker(lambda fork_channel: _answer_calls(fork_channel, work), CallWork, WorkCalled)
        channel.send(_call_fork(fork, call))
    if fork is not None:
        fork.end()


def _call_fork(fork: ForkedWorker, call: CallWork) -> WorkCalled:
    try:
        fork.send(call)
        reply = fork.receive(call.timeout)
    except TimeoutError as error:
        fork.kill()
        return WorkCalled("timeout", pickle.dumps(str(error)))
    except BrokenPipeError:
        reply = None
    return WorkCalled("crash", pickle.dumps(fork.wait_for_cause())) if reply is None else reply


def _answer_calls(channel: Channel, work: Callable[..., object]) -> None:
    while (call := channel.receive()) is not None:
        channel.send(WorkCalled("answer", pickle.dumps(work(*pickle.loads(call.arguments)))))
