"""The worker processes that compile modules to objects.

They are not threads, because the bindings hold the GIL while LLVM runs. A module that cannot be compiled ends the
worker. The requester then compiles the module to get the error, unless a signal such as SIGABRT ended the worker. A
worker also ends after `IDLE_SECONDS` without requests, to free its memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

from buddy.compiler.codegen.objects.emit import emit_object, new_context
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.target import cores

# Each worker takes about 150 MB until it ends.
MAX_WORKERS = 3


class CompileObject(Message, frozen=True):
    """Requests to compile the module in the file `path`; answered by `ObjectCompiled`.

    The object is written to the file `path` with `.o` appended.
    """

    module_number: int
    opt_level: int
    path: str


class ObjectCompiled(Message, frozen=True):
    """Answers the request for module `module_number`: its object has been written, in `seconds`."""

    module_number: int
    seconds: float


class ObjectWorker(BlockingWorker):
    """The connection to one worker. `pending` has the numbers of the modules that it has not compiled yet, in order.

    `in_use_lock` is held by the thread that uses the worker, since several threads may compile.
    """

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.in_use_lock = threading.Lock()
        super().__init__("buddy.compiler.codegen.objects.workers:serve", ObjectCompiled)

    def ask(self, module_number: int, opt_level: int, path: str) -> bool:
        """Sends a request; returns whether the process was still running."""
        try:
            # A request is far shorter than a pipe's buffer, so this never blocks.
            self.send(CompileObject(module_number, opt_level, path))
        except OSError:
            return False
        self.pending.append(module_number)
        return True

    def take_answers(self) -> list[tuple[int, float]]:
        """Reads answers, and removes their modules from `pending`; returns the number and the seconds of each.

        Call it when the pipe is readable. Raises `BrokenPipeError` if there is no answer because the process has ended.
        """
        self.pipe.read_available()
        finished = {}
        while self.pipe.holds_message:
            answer = self.receive()
            finished[answer.module_number] = answer.seconds
        if not finished and self.pipe.at_end:
            raise BrokenPipeError("the process has ended")
        self.pending = [number for number in self.pending if number not in finished]
        return list(finished.items())

    def discard(self, patience: float = 0.0) -> int:
        """Drops pending requests, waits up to `patience` seconds until the process exits, and then kills it.

        Returns its exit status.
        """
        self.pending = []
        return self.end(patience)


_workers: list[ObjectWorker] = []
_start_lock = threading.Lock()


def start_workers() -> None:
    """Starts workers until there is one for each core but one, or `MAX_WORKERS` of them."""
    with _start_lock:
        _workers[:] = running_workers()
        with contextlib.suppress(OSError):
            while len(_workers) < min(cores() - 1, MAX_WORKERS):
                _workers.append(ObjectWorker())


def running_workers() -> list[ObjectWorker]:
    """Returns the running workers."""
    return [worker for worker in list(_workers) if worker.alive]


def take_idle_workers() -> list[ObjectWorker]:
    """Returns the free workers, reserved for the caller until it releases `in_use_lock`."""
    return [worker for worker in running_workers() if worker.in_use_lock.acquire(blocking=False)]


def _drop_workers() -> None:
    """Forgets the workers in a fork of this process: they belong to the parent."""
    global _start_lock
    _start_lock = threading.Lock()  # a thread that does not exist here may hold the old lock
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_workers)


# ---- in the worker ---------------------------------------------------------------------------------------------------

IDLE_SECONDS = 60.0


@serves(CompileObject)
def serve(channel: Channel) -> None:
    """Compiles requested modules until the channel is closed, or until no request has come for `IDLE_SECONDS`."""
    context = new_context()
    # The imported modules are not garbage: the garbage collector need not visit them.
    gc.freeze()
    exit_timer = _start_exit_timer()
    while (request := channel.receive()) is not None:
        exit_timer.cancel()
        seconds = emit_object(Path(request.path).read_bytes(), request.opt_level, Path(request.path + ".o"), context)
        channel.send(ObjectCompiled(request.module_number, seconds))
        exit_timer = _start_exit_timer()
    exit_timer.cancel()


def _start_exit_timer() -> threading.Timer:
    timer = threading.Timer(IDLE_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    return timer
