"""Runs a program of another compiler in a forked process, which shares the tensors' memory and has separate threads.

The process must be forked before torch has used more than one thread in this process.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Protocol

import torch

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import ForkedWorker

_MAX_MESSAGE_CHARS = 2000


class CallProgram(Message, frozen=True):
    """Call the program; with `results`, write its results to the file. Answered by `ProgramCalled`."""

    results: bool = False


class ProgramCalled(Message, frozen=True):
    """The seconds of loading or calling, and the shapes of the results of a call."""

    seconds: float
    shapes: tuple[tuple[int, ...], ...] = ()


class ProgramFailed(Message, frozen=True):
    """Loading or calling the program raised `error`; the process then exits."""

    error: str


class LoadedCode(Protocol):
    """A loaded program, in the forked process."""

    def call(self) -> Sequence[torch.Tensor]:
        """Calls the program on its tensors; returns its results, which may be arrays of another library."""

    def write(self, results: Sequence[torch.Tensor], file: IO[bytes]) -> tuple[tuple[int, ...], ...]:
        """Writes the results of a call; returns their shapes."""


class ForkedProgram:
    """A program in a forked process, with the tensors that it is called with. A subclass exists for each compiler.

    `load` runs in the forked process, and returns the program. Every method may raise the error that `make_error`
    returns for a message.
    """

    def __init__(self, load: Callable[[], LoadedCode], make_error: Callable[[str], BuddyError]) -> None:
        self._make_error = make_error
        self._results_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._fork = ForkedWorker(
            lambda channel: _serve(channel, self._results_file, load), CallProgram, ProgramCalled | ProgramFailed
        )

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._fork.end()
        self._results_file.close()

    @property
    def backend(self) -> str:
        """The name of the backend."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Returns notes on the program for the report."""
        return []

    def wait_until_loaded(self) -> float:
        """Waits until the program is loaded and has been called once; returns the seconds."""
        return self._receive().seconds

    def time_call(self) -> float:
        """Calls the program; returns the seconds of the call."""
        return self._request(CallProgram()).seconds

    def call(self) -> list[torch.Tensor]:
        """Calls the program; returns its results in eager's form, including those without elements."""
        shapes = self._request(CallProgram(results=True)).shapes
        self._results_file.seek(0)
        return self._read(self._results_file, shapes)

    def _read(self, file: IO[bytes], shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """Reads the results that `LoadedCode.write` wrote."""
        raise NotImplementedError

    def _request(self, request: CallProgram) -> ProgramCalled:
        with contextlib.suppress(BrokenPipeError):
            self._fork.send(request)
        return self._receive()

    def _receive(self) -> ProgramCalled:
        """Returns the next answer; raises an error if it is a failure, or if the process has ended."""
        answer = self._fork.receive()
        if answer is None:
            raise self._make_error(f"the process crashed ({self._fork.wait_for_cause()})")
        if isinstance(answer, ProgramFailed):
            raise self._make_error(answer.error)
        assert isinstance(answer, ProgramCalled)
        return answer


def _serve(channel: Channel, results_file: IO[bytes], load: Callable[[], LoadedCode]) -> None:
    """Runs in the forked process: loads and calls the program, then executes one request after another."""
    try:
        start = time.perf_counter()
        program = load()
        program.call()
        channel.send(ProgramCalled(time.perf_counter() - start))
        while (request := channel.receive()) is not None:
            start = time.perf_counter()
            results = program.call()
            seconds = time.perf_counter() - start
            shapes: tuple[tuple[int, ...], ...] = ()
            if request.results:
                results_file.seek(0)
                shapes = program.write(results, results_file)
                results_file.flush()
            channel.send(ProgramCalled(seconds, shapes))
    except Exception as error:
        channel.send(ProgramFailed(_first_line(error)))


def _first_line(error: Exception) -> str:
    """Returns the type of an error and the first line of its text, truncated."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MAX_MESSAGE_CHARS]
