"""Runs work that may crash in a process forked from a warm one, and replaces it after a crash or a timeout."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import tempfile
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from buddy.compiler.support.processes.parent_death import describe_exit, die_with_parent

_LAST_WORDS = ("Assertion", "LLVM ERROR", "UNREACHABLE", "terminate called", "what():")


class WorkResult(NamedTuple):
    """How a call ended, with its answer, or a description of the crash."""

    how: Literal["answer", "crash", "timeout"]
    value: Any


class RestartableProcess:
    """Calls `module:function(*arguments)` in a separate process.

    The process is forked by one that has imported `module` and run nothing, because a process that used torch's threads
    cannot be forked. That one exits with the calling process, however that ends, and the forked one with it.
    """

    def __init__(self, module: str, function: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([module, __name__])
        self._task = (module, function)
        self._folder = tempfile.TemporaryDirectory(prefix="buddy-fuzz-")
        self._log = os.path.join(self._folder.name, "stderr")
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> RestartableProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def ask(self, arguments: tuple[Any, ...], timeout: float) -> WorkResult:
        """Calls the function; gives up after `timeout` seconds."""
        self._start()
        try:
            self._pipe.send(arguments)
            if not self._pipe.poll(timeout):
                self._end()
                return WorkResult("timeout", f"silent for {timeout:g} s")
            return WorkResult("answer", self._pipe.recv())
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join()
            return WorkResult("crash", self._cause())

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._pipe, theirs = self._context.Pipe()
        arguments = (*self._task, theirs, self._log)
        self._process = self._context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _cause(self) -> str:
        code = describe_exit(self._process.exitcode)
        with open(self._log, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        said = [line for line in lines if any(words in line for words in _LAST_WORDS)] or lines
        return f"{code}: {said[-1][:300]}" if said else code


def _serve(module: str, function: str, pipe: Connection, log: str) -> None:
    _let_forkserver_end()
    die_with_parent(os.getppid())
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    faulthandler.disable()
    work = getattr(importlib.import_module(module), function)
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(work(*arguments))


def _let_forkserver_end() -> None:
    """The process that forked this one exits once no process holds a certain pipe, of which this one has inherited a
    copy.
    """
    held = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if held is not None:
        os.close(held)
