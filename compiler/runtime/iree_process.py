"""IREE's runtime in a forked process: it shares the tensors' memory, and has its own threads.

The process must be forked before torch has used more than one thread in this process.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch

from buddy.compiler.codegen.iree import options as iree_flags
from buddy.compiler.codegen.iree.options import SCOPE, WRAPPER_NAME, IreeArtifact
from buddy.compiler.protocol.artifact import TensorSpec
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.runtime.buffers import torch_dtype
from buddy.compiler.runtime.torch_values import RuntimeShape, bind, dense_bytes
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import ForkedWorker

_MAX_MESSAGE_CHARS = 2000


class IreeRunError(BuddyError):
    """IREE's runtime failed, or its process ended; `diagnostic` has the reason."""

    def __init__(self, what: str) -> None:
        todo = "import the program by torch-mlir (--frontend torch-mlir), choose other flags, or the native backend"
        super().__init__(what, "IREE's runtime", todo)


class CallProgram(Message, frozen=True):
    """Call the program; with `results`, write its results to the file. Answered by `ProgramCalled`."""

    results: bool = False


class ProgramCalled(Message, frozen=True):
    """The seconds of loading or calling, and the shapes of the results of a call."""

    seconds: float
    shapes: tuple[tuple[int, ...], ...] = ()


class ProgramFailed(Message, frozen=True):
    error: str


class IreeProcess:
    """An IREE program on the tensors of one call. Every method may raise `IreeRunError`."""

    def __init__(
        self, artifact: IreeArtifact, tensors: Sequence[torch.Tensor], numbers: Sequence[Any], threads: int
    ) -> None:
        self._convention = artifact.convention
        self._symbols = bind(artifact.convention.symbols, tensors, numbers)
        self._results_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._fork = ForkedWorker(
            lambda channel: _serve(
                channel, self._results_file, lambda: _Program(artifact, tensors, self._symbols, threads)
            ),
            CallProgram,
            ProgramCalled | ProgramFailed,
        )

    def __enter__(self) -> IreeProcess:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._fork.end()
        self._results_file.close()

    def wait_until_loaded(self) -> float:
        """Waits until the module is loaded; returns the seconds, including IREE's one-time preparation of weights."""
        return self._receive().seconds

    def seconds(self) -> float:
        """Returns the seconds of one call, including the transfer of results to the host's memory."""
        return self._request(CallProgram()).seconds

    def results(self) -> list[torch.Tensor]:
        """Returns the results of one call in eager's form, including those without elements."""
        shapes = iter(self._request(CallProgram(results=True)).shapes)
        self._results_file.seek(0)
        specs = [(spec, RuntimeShape(spec).at(self._symbols)) for spec in self._convention.results]
        return [
            torch.empty(shape, dtype=torch_dtype(spec))
            if not _has_elements(spec)
            else self._read_result(spec, next(shapes))
            for spec, shape in specs
        ]

    def _read_result(self, spec: TensorSpec, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns the next result in the file, with the dims that IREE returned."""
        dtype = torch_dtype(spec)
        dims = shape[:-1] if dtype.is_complex else shape
        raw = torch.from_numpy(np.load(self._results_file))
        if raw.numel() != math.prod(dims) * dtype.itemsize:
            expected = f"{str(dtype).removeprefix('torch.')} of {'x'.join(map(str, dims))}"
            raise IreeRunError(f"a result is not {expected}: a flag has changed its element type")
        return raw.view(dtype).reshape(dims)

    def _request(self, request: CallProgram) -> ProgramCalled:
        with contextlib.suppress(BrokenPipeError):
            self._fork.send(request)
        return self._receive()

    def _receive(self) -> ProgramCalled:
        answer = self._fork.receive()
        if answer is None:
            raise IreeRunError(f"the process crashed ({self._fork.cause()})")
        if isinstance(answer, ProgramFailed):
            raise IreeRunError(answer.error)
        assert isinstance(answer, ProgramCalled)
        return answer


def _has_elements(spec: TensorSpec) -> bool:
    return 0 not in spec.shape


# ---- in the process --------------------------------------------------------------------------------------------------


class _Program:
    """The module, with its arguments on the device."""

    def __init__(
        self, artifact: IreeArtifact, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], threads: int
    ) -> None:
        from buddy.compiler.codegen.iree.runtime import IreeModule

        convention = artifact.convention
        # Kept alive, including weights that were made dense: the module reads them in place.
        self._weights = {key: np.asarray(dense_bytes(tensors[index])) for key, index in convention.parameters.items()}
        driver = iree_flags.driver(artifact.flags, threads)
        self._module = IreeModule(artifact.module, WRAPPER_NAME, driver, threads, self._weights, SCOPE)
        inputs = [self._module.on_device(_to_array(tensors[index])) for index in convention.inputs]
        self._arguments = [*inputs, *(symbols[symbol.name] for symbol in convention.symbols)]

    def call(self) -> list[Any]:
        return self._module(self._arguments)


def _serve(channel: Channel, results_file: IO[bytes], make: Callable[[], _Program]) -> None:
    """Runs the process: loads the module, then executes one request after another."""
    try:
        start = time.perf_counter()
        program = make()
        program.call()
        channel.send(ProgramCalled(time.perf_counter() - start))
        while (request := channel.receive()) is not None:
            start = time.perf_counter()
            results = program.call()
            seconds = time.perf_counter() - start
            if request.results:
                _write_results(results, results_file)
            channel.send(ProgramCalled(seconds, tuple(tuple(array.shape) for array in results)))
    except Exception as error:
        channel.send(ProgramFailed(_first_line(error)))


def _write_results(arrays: Sequence[Any], results_file: IO[bytes]) -> None:
    results_file.seek(0)
    for array in arrays:
        np.save(results_file, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    results_file.flush()


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MAX_MESSAGE_CHARS]


def _to_array(tensor: torch.Tensor) -> Any:
    """Returns the tensor as an array for IREE's runtime, which represents bfloat16 by the package `ml_dtypes`."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    dense = torch.view_as_real(plain) if plain.is_complex() else plain
    if dense.dtype is torch.bfloat16:
        import ml_dtypes

        return dense.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return dense.numpy()
