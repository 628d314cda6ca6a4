"""ONNX Runtime and OpenVINO: loads a model in a process of its own, calls it, and times the calls.

Each runtime has its own thread pool, and an OpenMP or TBB runtime of its own, so a process has one of them only. The
worker does not import torch.
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


TODO = "pip install 'buddy-tui[runtimes]'"
_PACKAGES = {ONNX_RUNTIME: "onnxruntime", OPENVINO: "openvino"}
# OpenVINO's tool for quantisation sends statistics unless this is set; the runtime itself sends none.
NO_TELEMETRY = {"NNCF_CI": "1"}
# Packages that export a program to ONNX.
_EXPORTERS = ("onnx", "onnxscript")
_MAX_MESSAGE_CHARS = 500
# ONNX Runtime's level of messages: errors. Warnings on unused initializers and the like are no news to users.
_ONLY_ERRORS = 3

Call = Callable[[Sequence[Any]], list[Any]]


class RuntimeRunError(BuddyError):
    """A runtime cannot run a model; `diagnostic` has the reason."""


def missing_packages(name: str) -> str:
    """Returns a message with the packages that runtime `name` needs and that are not installed; "" if all are."""
    absent = [package for package in (_PACKAGES[name], *_EXPORTERS) if find_spec(package) is None]
    return f"{RUNTIMES[name]} needs {' and '.join(absent)}, not installed" if absent else ""


def load_session(name: str, path: Path, threads: int) -> Call:
    """Returns a function from the model's inputs to its results, both NumPy arrays in order; it computes in float32.

    Raises errors of the runtime.
    """
    return load_onnx_runtime(path, threads) if name == ONNX_RUNTIME else load_openvino(path, threads, "f32")[0]


def load_onnx_runtime(path: Path, threads: int) -> Call:
    """Returns a function from inputs to results by ONNX Runtime, with all of its optimisations of graphs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _ONLY_ERRORS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: list(session.run(None, dict(zip(names, inputs, strict=True))))


def load_openvino(
    path: Path, threads: int, precision: str = "", change: Callable[[Any], Any] = lambda model: model
) -> tuple[Call, str]:
    """Returns a function from inputs to results by OpenVINO, and the precision that it computes floats in.

    `change` gets the model that was read, and returns the one to compile. By default, OpenVINO computes float32 in
    bfloat16 on processors that have instructions for it, and ignores a request for bfloat16 on others: what is in
    effect is read back. Raises `RuntimeRunError` if it is not the `precision`, unless that is "".
    """
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    core = openvino.Core()
    compiled = core.compile_model(change(core.read_model(str(path))), "CPU", settings)
    effective = str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
    if precision not in ("", effective):
        raise RuntimeRunError(f"OpenVINO computes in {effective} on this CPU, although {precision} was requested")
    request = compiled.create_infer_request()

    def call(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = request.infer(list(inputs), share_inputs=True)
        return [results[output] for output in compiled.outputs]

    return call, effective


# ---- messages and the worker -----------------------------------------------------------------------------------------


class ArrayPlace(msgspec.Struct, frozen=True):
    """An array in a file: NumPy's name of its element type, its shape, and the offset of its first byte."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class LoadModel(Message, frozen=True):
    """Load the model at `model` by a runtime; its inputs are in the file `inputs`. Answered by `ModelCalled`."""

    runtime: str
    model: str
    inputs: str
    places: tuple[ArrayPlace, ...]
    threads: int


class CallModel(Message, frozen=True):
    """Call the model; write its results to the file `results`, unless it is "". Answered by `ModelCalled`."""

    results: str = ""


class ModelCalled(Message, frozen=True):
    """The seconds of loading, with a first call, or of a call; and the places of its results in the file."""

    seconds: float
    places: tuple[ArrayPlace, ...] = ()


class ModelFailed(Message, frozen=True):
    error: str


@serves(LoadModel | CallModel)
def serve(channel: Channel) -> None:
    """Runs the process: loads the model, then executes one request after another."""
    try:
        request = channel.receive()
        inputs = read_arrays(Path(request.inputs), request.places)
        start = time.perf_counter()
        call = load_session(request.runtime, Path(request.model), request.threads)
        call(inputs)
        channel.send(ModelCalled(time.perf_counter() - start))
        while (request := channel.receive()) is not None:
            start = time.perf_counter()
            results = call(inputs)
            seconds = time.perf_counter() - start
            places = write_arrays(Path(request.results), results) if request.results else ()
            channel.send(ModelCalled(seconds, places))
    except Exception as error:
        channel.send(ModelFailed(_message(error)))


# How OpenVINO's messages begin: the lines of its own source that raised the error.
_PLACES = ("Exception from", "Check '", "Summary:")


def _message(error: Exception) -> str:
    """Returns an error's message in one line, without the places in the runtime's source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_PLACES)] or lines
    return f"{type(error).__name__}: {' '.join(lines)}"[:_MAX_MESSAGE_CHARS]


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> tuple[ArrayPlace, ...]:
    """Writes arrays one after another, dense; returns their places."""
    import numpy as np

    places: list[ArrayPlace] = []
    with open(path, "wb") as file:
        for each in arrays:
            array = np.asarray(each)
            places.append(ArrayPlace(str(array.dtype), array.shape, file.tell()))
            file.write(np.ascontiguousarray(array).tobytes())
    return tuple(places)


def read_arrays(path: Path, places: Sequence[ArrayPlace]) -> list[np.ndarray]:
    import numpy as np

    data = path.read_bytes()
    arrays = []
    for place in places:
        dtype = _dtype(place.dtype)
        count = int(np.prod(place.shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, place.offset) if count else np.empty(0, dtype)
        # A copy is writable and aligned, which the runtimes and torch ask for.
        arrays.append(array.reshape(place.shape).copy())
    return arrays


def _dtype(name: str) -> np.dtype:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and 8-bit floats are types of the package `ml_dtypes`
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


# ---- the client ------------------------------------------------------------------------------------------------------


class ModelFile(NamedTuple):
    """A model on disk, with the file of its inputs and their places in it."""

    model: Path
    inputs: Path
    places: tuple[ArrayPlace, ...]


class RuntimeProcess:
    """A model in the process of a runtime. Every method may raise `RuntimeRunError`."""

    def __init__(self, runtime: str, file: ModelFile, threads: int) -> None:
        self._runtime, self._file = runtime, file
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        environment = {**counts, **NO_TELEMETRY}
        self._worker = BlockingWorker(f"{__name__}:serve", ModelCalled | ModelFailed, self._log, environment)
        self._send(LoadModel(runtime, str(file.model), str(file.inputs), file.places, threads))

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._worker.end()
        self._log.close()

    def wait_until_loaded(self) -> float:
        """Waits until the model is loaded and was called once; returns the seconds of both."""
        return self._receive().seconds

    def seconds(self) -> float:
        """Returns the seconds of one call."""
        self._send(CallModel())
        return self._receive().seconds

    def results(self) -> list[np.ndarray]:
        """Returns the results of one call as arrays."""
        path = self._file.inputs.with_name("results.bin")
        self._send(CallModel(str(path)))
        return read_arrays(path, self._receive().places)

    def _send(self, message: Message) -> None:
        # If the process has ended, `_receive` raises the error.
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)

    def _receive(self) -> ModelCalled:
        answer = self._worker.receive()
        if answer is None:
            self._log.seek(0)
            printed = self._log.read().decode(errors="replace").strip()
            how = describe_exit(self._worker.wait())
            raise self._error(f"the process of {RUNTIMES[self._runtime]} ended with {how}", printed)
        if isinstance(answer, ModelFailed):
            raise self._error(answer.error)
        assert isinstance(answer, ModelCalled)
        return answer

    def _error(self, what: str, detail: str = "") -> RuntimeRunError:
        todo = "the runtime may not support this program: try another one, or a newer version"
        return RuntimeRunError(what, RUNTIMES[self._runtime], todo, detail)
