"""Loads a model with ONNX Runtime or OpenVINO in a separate process, calls it, and times the calls.

Each runtime brings a thread pool and an OpenMP or TBB library, so a process loads only one runtime. The worker process
does not import torch.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import ONNX_RUNTIME, OPENVINO, RUNTIMES
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit

if TYPE_CHECKING:
    import numpy as np


INSTALL_COMMAND = "pip install 'buddy-tui[runtimes]'"
_PACKAGES = {ONNX_RUNTIME: "onnxruntime", OPENVINO: "openvino"}
# OpenVINO's tool for quantisation sends statistics unless this is set; the runtime itself sends none.
NO_TELEMETRY = {"NNCF_CI": "1"}
# Packages that export a program to ONNX.
_EXPORTERS = ("onnx", "onnxscript")
_MAX_MESSAGE_CHARACTERS = 500
# ONNX Runtime's log severity of errors. Its warnings, such as those about unused initializers, do not help users.
_ERROR_SEVERITY = 3

# A function from a model's inputs to its results, both NumPy arrays in the model's order.
Call = Callable[[Sequence[Any]], list[Any]]


class RuntimeRunError(BuddyError):
    """A runtime cannot run a model; `diagnostic` has the reason."""


def missing_packages(name: str) -> str:
    """Returns a message with the packages that runtime `name` needs and that are not installed; "" if all are."""
    missing = [package for package in (_PACKAGES[name], *_EXPORTERS) if find_spec(package) is None]
    return f"{RUNTIMES[name]} needs {' and '.join(missing)}, not installed" if missing else ""


def load_session(name: str, path: Path, threads: int) -> Call:
    """Loads the model at `path` with runtime `name`, which computes in float32. Raises errors of the runtime."""
    return load_onnx_runtime(path, threads) if name == ONNX_RUNTIME else load_openvino(path, threads, "f32")[0]


def load_onnx_runtime(path: Path, threads: int) -> Call:
    """Loads the model at `path` with ONNX Runtime, with all of its graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ERROR_SEVERITY
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: list(session.run(None, dict(zip(names, inputs, strict=True))))


def load_openvino(
    path: Path, threads: int, precision: str = "", transform: Callable[[Any], Any] = lambda model: model
) -> tuple[Call, str]:
    """Loads the model at `path` with OpenVINO; returns also the precision in which it computes floats.

    `transform` takes OpenVINO's model and returns the model to compile. `precision` is the requested precision, "" for
    OpenVINO's choice. OpenVINO by default computes float32 in bfloat16 on processors with instructions for bfloat16,
    and ignores a request for bfloat16 on others, so the effective precision is read back. Raises `RuntimeRunError` if
    it differs from `precision`.
    """
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    core = openvino.Core()
    compiled = core.compile_model(transform(core.read_model(str(path))), "CPU", settings)
    effective_precision = str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
    if precision not in ("", effective_precision):
        raise RuntimeRunError(
            f"OpenVINO computes in {effective_precision} on this CPU, although {precision} was requested"
        )
    request = compiled.create_infer_request()

    def call(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = request.infer(list(inputs), share_inputs=True)
        return [results[output] for output in compiled.outputs]

    return call, effective_precision


# ---- messages and the worker -----------------------------------------------------------------------------------------


class ArrayInFile(msgspec.Struct, frozen=True):
    """An array in a file: NumPy's name of its element type, its shape, and the offset of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class LoadModel(Message, frozen=True):
    """Load the model at `model` with a runtime and call it once; answered by `ModelCalled`.

    The inputs of the model are the `arrays` in the file `inputs`.
    """

    runtime: str
    model: str
    inputs: str
    arrays: tuple[ArrayInFile, ...]
    threads: int


class CallModel(Message, frozen=True):
    """Call the model; write its results to the file `results`, unless it is "". Answered by `ModelCalled`."""

    results: str = ""


class ModelCalled(Message, frozen=True):
    """The seconds of loading and a first call, or of a call; and the results in the requested file."""

    seconds: float
    results: tuple[ArrayInFile, ...] = ()


class ModelFailed(Message, frozen=True):
    """The runtime raised `error`; the process then exits."""

    error: str


@serves(LoadModel | CallModel)
def serve(channel: Channel) -> None:
    """Runs the process: loads the model, then executes one request after another."""
    try:
        request = channel.receive()
        inputs = read_arrays(Path(request.inputs), request.arrays)
        start = time.perf_counter()
        call = load_session(request.runtime, Path(request.model), request.threads)
        call(inputs)
        channel.send(ModelCalled(time.perf_counter() - start))
        while (request := channel.receive()) is not None:
            start = time.perf_counter()
            results = call(inputs)
            seconds = time.perf_counter() - start
            arrays = write_arrays(Path(request.results), results) if request.results else ()
            channel.send(ModelCalled(seconds, arrays))
    except Exception as error:
        channel.send(ModelFailed(_describe_error(error)))


# Starts of lines in OpenVINO's messages that name lines of its source.
_SOURCE_LINES = ("Exception from", "Check '", "Summary:")


def _describe_error(error: Exception) -> str:
    """Returns an error's message in one line, without lines that refer to the runtime's source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_SOURCE_LINES)] or lines
    return f"{type(error).__name__}: {' '.join(lines)}"[:_MAX_MESSAGE_CHARACTERS]


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> tuple[ArrayInFile, ...]:
    """Writes arrays to a file one after another, contiguous and in row-major order; describes where they are."""
    import numpy as np

    entries: list[ArrayInFile] = []
    with open(path, "wb") as file:
        for value in arrays:
            array = np.asarray(value)
            entries.append(ArrayInFile(str(array.dtype), array.shape, file.tell()))
            file.write(np.ascontiguousarray(array).tobytes())
    return tuple(entries)


def read_arrays(path: Path, entries: Sequence[ArrayInFile]) -> list[np.ndarray]:
    """Reads arrays from a file that `write_arrays` has written."""
    import numpy as np

    data = path.read_bytes()
    arrays = []
    for entry in entries:
        dtype = _numpy_dtype(entry.dtype)
        count = int(np.prod(entry.shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, entry.offset) if count else np.empty(0, dtype)
        # A copy is writable and aligned, which the runtimes and torch require.
        arrays.append(array.reshape(entry.shape).copy())
    return arrays


def _numpy_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype of this name, which may be one that the package `ml_dtypes` defines."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and 8-bit floats
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


# ---- the client ------------------------------------------------------------------------------------------------------


class ModelFile(NamedTuple):
    """A model on disk, and its inputs: the `arrays` in the file `inputs`."""

    model: Path
    inputs: Path
    arrays: tuple[ArrayInFile, ...]


class RuntimeProcess:
    """A process that runs a model with a runtime. Every method may raise `RuntimeRunError`."""

    def __init__(self, runtime: str, file: ModelFile, threads: int) -> None:
        self._runtime, self._file = runtime, file
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        thread_counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = {**thread_counts, **NO_TELEMETRY}
        self._worker = BlockingWorker(f"{__name__}:serve", ModelCalled | ModelFailed, self._log, environment)
        self._send(LoadModel(runtime, str(file.model), str(file.inputs), file.arrays, threads))

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._worker.end()
        self._log.close()

    def wait_until_loaded(self) -> float:
        """Waits until the runtime has loaded the model and called it once; returns the seconds of both."""
        return self._receive().seconds

    def time_call(self) -> float:
        """Calls the model; returns the seconds of the call."""
        self._send(CallModel())
        return self._receive().seconds

    def call(self) -> list[np.ndarray]:
        """Calls the model; returns its results."""
        path = self._file.inputs.with_name("results.bin")
        self._send(CallModel(str(path)))
        return read_arrays(path, self._receive().results)

    def _send(self, message: Message) -> None:
        # If the process has ended, `_receive` raises the error.
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)

    def _receive(self) -> ModelCalled:
        answer = self._worker.receive()
        if answer is None:
            self._log.seek(0)
            log_text = self._log.read().decode(errors="replace").strip()
            status = describe_exit(self._worker.wait())
            raise self._make_error(f"the process of {RUNTIMES[self._runtime]} ended with {status}", log_text)
        if isinstance(answer, ModelFailed):
            raise self._make_error(answer.error)
        assert isinstance(answer, ModelCalled)
        return answer

    def _make_error(self, what: str, detail: str = "") -> RuntimeRunError:
        todo = "the runtime may not support this program: try another one, or a newer version"
        return RuntimeRunError(what, RUNTIMES[self._runtime], todo, detail)
