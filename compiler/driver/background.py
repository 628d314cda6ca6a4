"""Compiles graphs in separate processes, one at a time and at low priority, while the caller continues."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from buddy.compiler.driver import program_cache
from buddy.compiler.graph import serialization
from buddy.compiler.protocol import artifact as artifacts
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait

# The time limit for one graph, in seconds. The process is then killed, and the program keeps its current code.
_LIMIT_SECONDS = 600.0
# Added to the niceness of the compiling process, which should not slow down the program.
_NICENESS = 10
_log = logging.getLogger("buddy.driver")


class CompileRequest(msgspec.Struct, frozen=True):
    """The input of `compile_to_bytes`: a graph, and the recipe to compile it by."""

    graph: serialization.GraphData
    recipe: Recipe


def compile_to_bytes(request: CompileRequest) -> bytes:
    """Returns the artifact of a graph as bytes, from the cache or compiled. `submit` calls this in a process."""
    from buddy.compiler.driver.compile_graph import compile_and_store

    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    graph = serialization.from_data(request.graph)
    artifact = program_cache.find_program(graph, request.recipe)
    if artifact is None:
        artifact = compile_and_store(graph, request.recipe)
    return artifacts.to_bytes(artifact)


@dataclass(frozen=True)
class _Job:
    """A graph to compile, and the function that is called with its artifact."""

    request: CompileRequest
    on_done: Callable[[Artifact], None]


class _CompileQueue:
    """The jobs of this process, and the thread that waits for the process of one of them at a time."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._unfinished = 0
        self._thread: threading.Thread | None = None

    def submit(self, job: _Job) -> None:
        """Adds a job, and starts the thread with the first one."""
        with self._idle:
            self._unfinished += 1
            if self._thread is None:
                # A daemon: the program may end while a graph is compiled, whose process then ends with it.
                self._thread = threading.Thread(target=self._run, name="buddy-background-compiler", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def wait(self, timeout: float) -> bool:
        """Waits until no job is left; returns false after `timeout` seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._unfinished, timeout)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                _compile(job)
            finally:
                with self._idle:
                    self._unfinished -= 1
                    self._idle.notify_all()


def _compile(job: _Job) -> None:
    """Compiles one graph and passes its artifact to `on_done`; a failure is only logged."""
    try:
        data = call_and_wait(f"{__name__}:compile_to_bytes", job.request, bytes, _LIMIT_SECONDS)
        job.on_done(artifacts.from_bytes(data))
    except (TookTooLong, CallFailed) as error:
        _log.info("a graph was not compiled in the background: %s", error)
    except Exception:
        _log.warning("a graph was not compiled in the background", exc_info=True)


_queue = _CompileQueue()


def submit(graph: serialization.GraphData, recipe: Recipe, on_done: Callable[[Artifact], None]) -> None:
    """Compiles `graph` by `recipe` after the graphs submitted before; a thread then calls `on_done` with the artifact.

    `on_done` is not called if the compilation fails.
    """
    _queue.submit(_Job(CompileRequest(graph, recipe), on_done))


def wait_until_idle(timeout: float) -> bool:
    """Waits until all submitted graphs are compiled; returns false after `timeout` seconds."""
    return _queue.wait(timeout)


def _forget_jobs() -> None:
    """Drops the jobs in a fork of this process, whose thread does not exist in the fork."""
    global _queue
    _queue = _CompileQueue()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_jobs)
