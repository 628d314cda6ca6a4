"""Runs a program of another compiler in a forked process, and compares it with this compiler's code and with eager.

The process shares the tensors' memory and has separate threads. It must be forked before torch has used more than one
thread in this process. All outputs are compared, and the calls of all three are timed interleaved.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import torch

from buddy.compiler.codegen.iree import options as iree_flags
from buddy.compiler.codegen.iree.options import PARAMETER_SCOPE, WRAPPER_NAME, IreeArtifact
from buddy.compiler.protocol.artifact import TensorSpec, from_bytes
from buddy.compiler.protocol.catalogue import COMPILER_NAMES
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import IREE, NATIVE
from buddy.compiler.protocol.run_report import NodeCounts, RunReport, SideReport
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.runtime.buffers import torch_dtype
from buddy.compiler.runtime.executable import load_artifact
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.runtime.measure import (
    OnProgress,
    compare_with_reference,
    describe_error,
    fingerprints,
    make_run_report,
    precision_notes,
    run_eager,
    run_eager_to_time,
    summarize_times,
    time_call,
    time_interleaved,
    torch_threads,
)
from buddy.compiler.runtime.torch_values import RuntimeShape, bind_symbols, dense, dense_bytes
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import ForkedWorker
from buddy.compiler.support.timing import LoadMeter

if TYPE_CHECKING:
    from buddy.compiler.protocol.worker_messages import NativeCode
    from buddy.compiler.runtime.captured import CapturedGraph


# ---- programs in forked processes ------------------------------------------------------------------------------------


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


# ---- IREE ------------------------------------------------------------------------------------------------------------


class IreeRunError(BuddyError):
    """IREE's runtime failed, or its process ended; `diagnostic` has the reason."""

    def __init__(self, what: str) -> None:
        todo = "import the program by torch-mlir (--frontend torch-mlir), choose other flags, or the native backend"
        super().__init__(what, "IREE's runtime", todo)


class IreeProcess(ForkedProgram):
    """An IREE program on the tensors of one call. Every method may raise `IreeRunError`.

    Loading includes IREE's one-time preparation of weights, and each call the transfer of results to the host's memory.
    """

    def __init__(
        self, artifact: IreeArtifact, tensors: Sequence[torch.Tensor], numbers: Sequence[int], threads: int
    ) -> None:
        self._artifact, self._threads = artifact, threads
        self._convention = artifact.convention
        self._symbols = bind_symbols(artifact.convention.symbols, tensors, numbers)
        super().__init__(lambda: _Program(artifact, tensors, self._symbols, threads), IreeRunError)

    @property
    def backend(self) -> str:
        return IREE

    def notes(self) -> list[str]:
        artifact = self._artifact
        targets = iree_flags.selected_targets(artifact.flags)
        driver = iree_flags.runtime_driver(artifact.flags, self._threads)
        notes = [f"IREE's code is for {', '.join(targets)}, on its driver {driver}"]
        if artifact.convention.unchecked:
            ops = ", ".join(artifact.convention.unchecked)
            notes.append(f"IREE does not check the data of {ops}: values that eager rejects return arbitrary results")
        return notes

    def _read(self, file: IO[bytes], shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        remaining_shapes = iter(shapes)
        results = []
        for spec in self._convention.results:
            if _has_elements(spec):
                results.append(self._read_result(spec, file, next(remaining_shapes)))
            else:  # IREE's program does not return this result
                results.append(torch.empty(RuntimeShape(spec).at(self._symbols), dtype=torch_dtype(spec)))
        return results

    def _read_result(self, spec: TensorSpec, file: IO[bytes], shape: tuple[int, ...]) -> torch.Tensor:
        """Returns the next result in the file, with the dims that IREE returned.

        A complex result has its two parts along an additional last dim of `shape`.
        """
        dtype = torch_dtype(spec)
        dims = shape[:-1] if dtype.is_complex else shape
        raw = torch.from_numpy(np.load(file))
        if raw.numel() != math.prod(dims) * dtype.itemsize:
            expected = f"{str(dtype).removeprefix('torch.')} of {'x'.join(map(str, dims))}"
            raise IreeRunError(f"a result is not {expected}: a flag has changed its element type")
        return raw.view(dtype).reshape(dims)


def _has_elements(spec: TensorSpec) -> bool:
    return 0 not in spec.shape


# ---- in the process --------------------------------------------------------------------------------------------------


class _Program:
    """A `LoadedCode`: the module of IREE's runtime, with its arguments on the device."""

    def __init__(
        self, artifact: IreeArtifact, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], threads: int
    ) -> None:
        from buddy.compiler.codegen.iree.runtime import IreeModule

        convention = artifact.convention
        # Kept alive, including weights that were made dense: the module reads them in place.
        self._weights = {key: np.asarray(dense_bytes(tensors[index])) for key, index in convention.parameters.items()}
        driver = iree_flags.runtime_driver(artifact.flags, threads)
        self._module = IreeModule(artifact.module, WRAPPER_NAME, driver, threads, self._weights, PARAMETER_SCOPE)
        inputs = [self._module.on_device(_to_array(tensors[index])) for index in convention.inputs]
        self._arguments = [*inputs, *(symbols[symbol.name] for symbol in convention.symbols)]

    def call(self) -> list[torch.Tensor]:
        return self._module(self._arguments)

    def write(self, results: Sequence[torch.Tensor], file: IO[bytes]) -> tuple[tuple[int, ...], ...]:
        for array in results:
            np.save(file, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return tuple(tuple(array.shape) for array in results)


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns the tensor as an array for IREE's runtime, which represents bfloat16 by the package `ml_dtypes`."""
    plain = dense(tensor.detach())
    parts = torch.view_as_real(plain) if plain.is_complex() else plain
    if parts.dtype is torch.bfloat16:
        import ml_dtypes

        return parts.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return parts.numpy()


# ---- the comparison --------------------------------------------------------------------------------------------------


def run_and_compare_with_native(
    captured: CapturedGraph,
    process: ForkedProgram,
    native: NativeCode,
    *,
    repeats: int,
    threads: int,
    nodes: NodeCounts,
    compile_seconds: float,
    graph: int = 0,
    on_progress: OnProgress | None = None,
    on_values: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    equal_nan: bool = False,
) -> RunReport:
    """Runs the program of another compiler and eager; returns a report like that of `run_and_compare`.

    The program is in `process`, which was forked before torch had threads. `native` is this compiler's code of the same
    graph, which is compared too. The other parameters are those of `run_and_compare`. Loading includes one call. Raises
    what `process` raises; errors of `native` are in its part of the report.
    """
    report_progress = on_progress or (lambda _text, _done: None)
    with process, torch_threads(threads), torch.no_grad():
        before = fingerprints(captured.tensors)
        report_progress(f"loading the code of {COMPILER_NAMES[process.backend]}", 0.0)
        load_seconds = process.wait_until_loaded()
        report_progress(f"running {COMPILER_NAMES[process.backend]}, this compiler's code and eager", 0.0)
        results = process.call()
        native_side = _NativeSide(captured, native)
        torch.manual_seed(SEED)
        expected = run_eager(captured)
        if on_values is not None:
            on_values(results, expected)
        calls = [process.time_call, *native_side.calls, lambda: time_call(lambda: run_eager_to_time(captured))[1]]
        # The program runs in another process.
        meter = LoadMeter(in_this_process=False)
        process_seconds, *native_seconds, eager_seconds = time_interleaved(calls, repeats, report_progress)
        machine_load = meter.load()
        after = fingerprints(captured.tensors)
        reference = captured.in_precisions(dict(nodes.precisions))
        outputs = compare_with_reference(captured, reference, results, expected, equal_nan)
    report = make_run_report(
        captured, graph, outputs, summarize_times(process_seconds, threads), summarize_times(eager_seconds, threads),
        nodes, (before, after), (*precision_notes(reference, outputs), *process.notes()),
    )  # fmt: skip
    return msgspec.structs.replace(
        report,
        compile_seconds=compile_seconds,
        load_seconds=load_seconds,
        backend=process.backend,
        sides=(native_side.report(captured, reference, expected, native_seconds, threads, equal_nan),),
        load=machine_load,
        equal_nan=equal_nan,
    )


class _NativeSide:
    """A `Side`: this compiler's code of the same graph. If the code failed, `calls` is empty."""

    def __init__(self, captured: CapturedGraph, code: NativeCode) -> None:
        self._code, self._problem = code, code.problem
        self._load_seconds = 0.0
        self._results: Sequence[torch.Tensor] = ()
        self.calls: list[Callable[[], float]] = []
        if self._problem:
            return
        with self._store_errors():
            program, self._load_seconds = time_call(lambda: load_artifact(from_bytes(code.artifact)))
            torch.manual_seed(SEED)
            self._results = program(captured.tensors, captured.numbers)
            self.calls = [lambda: time_call(lambda: program(captured.tensors, captured.numbers))[1]]

    @contextlib.contextmanager
    def _store_errors(self) -> Any:
        """Catches and stores errors of this compiler's code, which do not affect the other results."""
        try:
            yield
        except Exception as error:
            self._problem = describe_error(error)

    def report(
        self, captured: CapturedGraph, reference: CapturedGraph, expected: Sequence[Any],
        seconds: Sequence[Sequence[float]], threads: int, equal_nan: bool,
    ) -> SideReport:  # fmt: skip
        """Returns the comparison with the reference and the timing; only the problem if the code failed."""
        if self._problem:
            return SideReport(NATIVE, problem=self._problem)
        outputs = compare_with_reference(captured, reference, self._results, expected, equal_nan)
        timing = summarize_times(seconds[0], threads)
        return SideReport(NATIVE, outputs, timing, self._code.seconds, self._load_seconds)
