"""Loads a program of GPU kernels by the CUDA driver; callable on torch tensors like a `LoadedProgram`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch

from buddy.compiler.codegen.gpu.driver import Device, NoDeviceError
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.artifact import Argument, Artifact, Copy, DeviceProgram, Launch, TensorSpec
from buddy.compiler.runtime.buffers import torch_dtype


class NoGpuError(Exception):
    """The program cannot run here; the diagnostic gives the reason."""

    def __init__(self, error: NoDeviceError) -> None:
        self.diagnostic = Diagnostic(str(error), "a program for a GPU", error.todo)
        super().__init__(str(self.diagnostic))


class DeviceLoaded:
    """An artifact of GPU kernels, ready to run: inputs and results are copied to and from the device.

    Takes the graph's inputs in placeholder order and returns new tensors on the CPU. Raises `NoGpuError` if there is no
    driver, and `ValueError` for inputs of another shape or element type.
    """

    threads = 1
    packed_bytes = 0

    def __init__(self, artifact: Artifact) -> None:
        assert artifact.device is not None
        try:
            self._device = Device()
        except NoDeviceError as error:
            raise NoGpuError(error) from error
        self._program, self._arguments = artifact.device, artifact.arguments
        self._results = [(tuple(map(int, spec.shape)), torch_dtype(spec)) for spec in artifact.results]
        self._functions = self._load(artifact.device)
        self._addresses = self._allocate()
        self._milliseconds: list[float] = []

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int] = ()) -> list[torch.Tensor]:
        for number, argument in enumerate(self._arguments):
            value = _dense(argument, tensors[argument.source])
            self._device.upload(self._addresses[number], value.data_ptr(), _byte_count(value))
        start = self._device.mark()
        for step in self._program.steps:
            self._run(step)
        self._milliseconds.append(self._device.milliseconds(start, self._device.mark()))
        results = [torch.empty(shape, dtype=dtype) for shape, dtype in self._results]
        for number, result in enumerate(results, len(self._arguments)):
            self._device.download(result.data_ptr(), self._addresses[number], _byte_count(result))
        return results

    def notes(self) -> tuple[str, ...]:
        """Returns notes on the timings, which are those of whole calls."""
        if not self._milliseconds:
            return (f"on {self._device.name}: the program has not run yet",)
        kernel_time = f"{median(self._milliseconds):.3g} ms"
        return (f"on {self._device.name}: the kernels take {kernel_time}, the copies to and from the device the rest",)

    def _run(self, step: Launch | Copy) -> None:
        if isinstance(step, Copy):
            self._device.copy(self._addresses[step.target], self._addresses[step.source], step.size)
        else:
            self._device.launch(self._functions[step.kernel], step, self._addresses)

    def _load(self, program: DeviceProgram) -> dict[str, object]:
        kernel_names = dict.fromkeys(step.kernel for step in program.steps if isinstance(step, Launch))
        functions: dict[str, object] = {}
        for text in program.modules:
            functions |= self._device.functions(text, [name for name in kernel_names if f".entry {name}(" in text])
        return functions

    def _allocate(self) -> dict[int, int]:
        """Allocates device memory for each buffer by its number: arguments, results, internal ones."""
        sizes = [_spec_bytes(argument.spec) for argument in self._arguments]
        sizes += [torch.empty(shape, dtype=dtype, device="meta").nbytes for shape, dtype in self._results]
        addresses = {number: self._device.allocate(size) for number, size in enumerate(sizes)}
        for number, buffer in enumerate(self._program.buffers, len(sizes)):
            addresses[number] = self._device.allocate(buffer.size)
            if buffer.content:
                content = torch.frombuffer(bytearray(buffer.content), dtype=torch.uint8)
                self._device.upload(addresses[number], content.data_ptr(), len(buffer.content))
        return addresses


def _dense(argument: Argument, tensor: torch.Tensor) -> torch.Tensor:
    shape, dtype = tuple(argument.spec.shape), torch_dtype(argument.spec)
    if tuple(tensor.shape) != shape or tensor.dtype is not dtype:
        raise ValueError(f"input {argument.source} is {tuple(tensor.shape)} {tensor.dtype}, not {shape} {dtype}")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _spec_bytes(spec: TensorSpec) -> int:
    return torch.empty(tuple(map(int, spec.shape)), dtype=torch_dtype(spec), device="meta").nbytes


def _byte_count(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
