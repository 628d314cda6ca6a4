"""The pool of worker processes that compile objects: LLVM holds the GIL, so threads would not help."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.support.processes.parent_death import start_with_socket
from buddy.compiler.support.processes.worker_process import safe_path
from buddy.compiler.support.target import cores

# Each takes about 150 MB until it has been idle for a minute.
MAX_WORKERS = 3


@dataclass(eq=False)
class ObjectWorker:
    """One worker. `pending` are the numbers of the requested modules without an answer, in order.

    It ends when `line` is closed, the end of a pipe without data.
    """

    process: Any
    line: Any
    pending: list[int] = field(default_factory=list)
    # Held by the user of the worker, since several threads may compile.
    taken: threading.Lock = field(default_factory=threading.Lock)
    _rest: bytes = b""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask(self, number: int, level: int, path: str) -> bool:
        """Sends a request; returns whether the process was still running."""
        try:
            # A line is far shorter than a pipe's buffer, so this never blocks.
            self.process.stdin.write(f"{number} {level} {path}\n".encode())
        except OSError:
            return False
        self.pending.append(number)
        return True

    def answers(self) -> list[tuple[int, float]]:
        """Removes finished modules from `pending` and returns their numbers, with the seconds of each.

        Call it when there is output. Raises `BrokenPipeError` if the process has ended.
        """
        read = os.read(self.process.stdout.fileno(), 4096)
        if not read:
            raise BrokenPipeError("the process has ended")
        *lines, self._rest = (self._rest + read).split(b"\n")
        done = {int(number): float(seconds) for number, seconds in map(bytes.split, lines)}
        self.pending = [number for number in self.pending if number not in done]
        return list(done.items())

    def end(self) -> None:
        """Kills the process."""
        process, self.process, self.pending = self.process, None, []
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout, self.line):
            with contextlib.suppress(OSError):
                pipe.close()
        process.wait()


_workers: list[ObjectWorker] = []
_starting = threading.Lock()


def start() -> None:
    """Starts workers for a compilation that is about to start, so that they are ready in time."""
    with _starting:
        _workers[:] = running_workers()
        with contextlib.suppress(OSError):
            while len(_workers) < min(cores() - 1, MAX_WORKERS):
                _workers.append(_started())


def running_workers() -> list[ObjectWorker]:
    """Returns the running workers."""
    return [worker for worker in list(_workers) if worker.alive]


def take_idle_workers() -> list[ObjectWorker]:
    """Returns the free workers, reserved for the caller until it releases `taken`."""
    return [worker for worker in running_workers() if worker.taken.acquire(blocking=False)]


def _started() -> ObjectWorker:
    command = [sys.executable, *safe_path(), "-m", "buddy.compiler.codegen.objects.worker"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return ObjectWorker(*start_with_socket(command, stdin=pipe, stdout=pipe, stderr=null, bufsize=0))


def _forked() -> None:
    """Drops the workers in a fork: it must not read their answers, nor keep their pipes open."""
    global _starting
    _starting = threading.Lock()  # a thread that does not exist here may hold the old lock
    for worker in _workers:
        if worker.process is not None:
            worker.process.stdin.close()
            worker.process.stdout.close()
            worker.line.close()
            worker.process.returncode = 0
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
