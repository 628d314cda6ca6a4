"""Loads a program of GPU kernels in a separate process, and calls it on torch tensors like a `LoadedProgram`."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from statistics import median

import torch

from buddy.compiler.codegen.gpu.driver import CallOnDevice, DeviceFailed, DeviceReply, HostMemory, LoadOnDevice
from buddy.compiler.protocol.artifact import Argument, Artifact, TensorSpec
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.runtime.buffers import torch_dtype
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit

# The function that the process runs.
PROCESS = "buddy.compiler.codegen.gpu.driver:serve"
# The alignment of tensors in shared memory, in bytes.
_ALIGNMENT = 64
# The time that a process may take to exit, before it is killed.
_EXIT_SECONDS = 5.0
_STDERR = 2  # the file descriptor
_ON_CPU = "compile the program for the CPU (--preset default)"


class GpuRunError(BuddyError):
    """The program cannot run here, or failed; the diagnostic gives the reason."""

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what, "a program for a GPU", todo or _ON_CPU)


class LoadedDeviceProgram:
    """An artifact of GPU kernels, ready to run: inputs and results are copied to and from the device.

    Takes the graph's inputs in placeholder order and returns new tensors on the CPU. The driver runs in a separate
    process (`codegen.gpu.driver`); inputs and results go through memory that both processes share. Raises `GpuRunError`
    if the program cannot run, and `ValueError` for inputs of another shape or element type.
    """

    threads = 1
    packed_bytes = 0

    def __init__(self, artifact: Artifact) -> None:
        assert artifact.device is not None
        self._arguments, self._results = artifact.arguments, artifact.results
        regions = list(_tensor_memory([*(argument.spec for argument in artifact.arguments), *artifact.results]))
        size = regions[-1].start + regions[-1].size if regions else 0
        n_arguments = len(artifact.arguments)
        self._lock = threading.Lock()
        self._kernel_milliseconds: list[float] = []
        # The mapping and the process keep the memory alive after the descriptor is closed.
        with _shared_memory(max(1, size)) as fd:
            memory = mmap.mmap(fd, max(1, size))
            self._buffers = [_tensor_at(memory, region) for region in regions]
            try:
                self._worker = BlockingWorker(PROCESS, DeviceReply | DeviceFailed, log=_STDERR, keep=(fd,))
            except OSError as error:
                raise GpuRunError(f"the process for the GPU did not start: {error}") from error
            end_worker = weakref.finalize(self, self._worker.end)
            inputs, results = regions[:n_arguments], regions[n_arguments:]
            request = LoadOnDevice(artifact.device, fd, size, tuple(inputs), tuple(results))
            try:
                self._name = self._request(request).device
            except GpuRunError:
                end_worker()
                raise

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int] = ()) -> list[torch.Tensor]:
        values = [_check_input(argument, tensors[argument.source]) for argument in self._arguments]
        with self._lock:
            for value, buffer in zip(values, self._buffers, strict=False):
                buffer.view(value.dtype).view(value.shape).copy_(value)
            self._kernel_milliseconds.append(self._request(CallOnDevice()).milliseconds)
            results = self._buffers[len(self._arguments) :]
            return [
                buffer.view(torch_dtype(spec)).view(_shape(spec)).clone()
                for spec, buffer in zip(self._results, results, strict=True)
            ]

    def pack(self, tensors: Sequence[torch.Tensor]) -> None:
        """Does nothing: the device has no packed weights."""

    def notes(self) -> tuple[str, ...]:
        """Returns notes on the timings, which are those of whole calls."""
        if not self._kernel_milliseconds:
            return (f"on {self._name}: the program has not run yet",)
        kernel_time = f"{median(self._kernel_milliseconds):.3g} ms"
        return (f"on {self._name}: the kernels take {kernel_time}, the copies to and from the device the rest",)

    def _request(self, request: Message) -> DeviceReply:
        """Sends a request and returns the answer. Raises `GpuRunError` if the process refuses it, or has ended."""
        answer = None
        with contextlib.suppress(OSError):
            self._worker.send(request)
            answer = self._worker.receive()
        if isinstance(answer, DeviceReply):
            return answer
        if isinstance(answer, DeviceFailed):
            raise GpuRunError(answer.error, answer.todo)
        exit_text = describe_exit(self._worker.end(_EXIT_SECONDS))
        raise GpuRunError(f"the process for the GPU ended with {exit_text}")


@contextlib.contextmanager
def _shared_memory(size: int) -> Iterator[int]:
    """Yields the file descriptor of `size` bytes that several processes can map."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("buddy-device")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
        yield fd
    finally:
        os.close(fd)


def _tensor_memory(specs: Sequence[TensorSpec]) -> Iterator[HostMemory]:
    """Yields the region of shared memory for each tensor, one after another."""
    start = 0
    for spec in specs:
        size = torch.empty(_shape(spec), dtype=torch_dtype(spec), device="meta").nbytes
        yield HostMemory(start, size)
        start += -(-size // _ALIGNMENT) * _ALIGNMENT


def _tensor_at(memory: mmap.mmap, region: HostMemory) -> torch.Tensor:
    """Returns the bytes of a region of shared memory; the tensor keeps the memory alive."""
    if not region.size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=region.size, offset=region.start)


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(map(int, spec.shape))


def _check_input(argument: Argument, tensor: torch.Tensor) -> torch.Tensor:
    """Returns an input without autograd history. Raises `ValueError` for another shape or element type."""
    shape, dtype = _shape(argument.spec), torch_dtype(argument.spec)
    if tuple(tensor.shape) != shape or tensor.dtype is not dtype:
        raise ValueError(f"input {argument.source} is {tuple(tensor.shape)} {tensor.dtype}, not {shape} {dtype}")
    return tensor.detach()
