"""The worker processes that compile objects: LLVM holds the GIL, so threads would not do.

A module that cannot be compiled ends the process. The requester compiles it itself to get the error, unless a signal
such as SIGABRT ended the process. It also ends after `IDLE` seconds without requests, to free its memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

from buddy.compiler.codegen.objects.emit import emit, new_context
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.target import cores

# Each takes about 150 MB until it has been idle for a minute.
MAX_WORKERS = 3


class CompileObject(Message, frozen=True):
    """Compile the module in the file `path` to the object `path.o`; answered by `ObjectCompiled`."""

    number: int
    level: int
    path: str


class ObjectCompiled(Message, frozen=True):
    """The object of a request, and the seconds that it took."""

    number: int
    seconds: float


class ObjectWorker(BlockingWorker):
    """One worker. `pending` are the numbers of the requested modules without an answer, in order."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        # Held by the user of the worker, since several threads may compile.
        self.taken = threading.Lock()
        super().__init__("buddy.compiler.codegen.objects.workers:serve", ObjectCompiled)

    def ask(self, number: int, level: int, path: str) -> bool:
        """Sends a request; returns whether the process was still running."""
        try:
            # A request is far shorter than a pipe's buffer, so this never blocks.
            self.send(CompileObject(number, level, path))
        except OSError:
            return False
        self.pending.append(number)
        return True

    def answers(self) -> list[tuple[int, float]]:
        """Removes finished modules from `pending` and returns their numbers, with the seconds of each.

        Call it when there is output. Raises `BrokenPipeError` if the process has ended.
        """
        self.pipe.read_available()
        done = {}
        while self.pipe.holds_message:
            found = self.receive()
            done[found.number] = found.seconds
        if not done and self.pipe.at_end:
            raise BrokenPipeError("the process has ended")
        self.pending = [number for number in self.pending if number not in done]
        return list(done.items())

    def lose(self, patience: float = 0.0) -> int:
        """Ends the process without its answers, after `patience` seconds; returns its exit status."""
        self.pending = []
        return self.end(patience)


_workers: list[ObjectWorker] = []
_starting = threading.Lock()


def start() -> None:
    """Starts workers for a compilation that is about to start, so that they are ready in time."""
    with _starting:
        _workers[:] = running_workers()
        with contextlib.suppress(OSError):
            while len(_workers) < min(cores() - 1, MAX_WORKERS):
                _workers.append(ObjectWorker())


def running_workers() -> list[ObjectWorker]:
    """Returns the running workers."""
    return [worker for worker in list(_workers) if worker.alive]


def take_idle_workers() -> list[ObjectWorker]:
    """Returns the free workers, reserved for the caller until it releases `taken`."""
    return [worker for worker in running_workers() if worker.taken.acquire(blocking=False)]


def _forked() -> None:
    """Drops the workers in a fork."""
    global _starting
    _starting = threading.Lock()  # a thread that does not exist here may hold the old lock
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


IDLE = 60.0


@serves(CompileObject)
def serve(channel: Channel) -> None:
    context = new_context()
    gc.freeze()
    idle = _end_later()
    while (request := channel.receive()) is not None:
        idle.cancel()
        seconds = emit(Path(request.path).read_bytes(), request.level, Path(request.path + ".o"), context)
        channel.send(ObjectCompiled(request.number, seconds))
        idle = _end_later()
    idle.cancel()


def _end_later() -> threading.Timer:
    timer = threading.Timer(IDLE, os._exit, (0,))
    timer.daemon = True
    timer.start()
    return timer
