"""Runs programs on a GPU by CUDA's driver API (package cuda-bindings), in a separate process. Does not import torch.

Supports one device, with its primary context and the default stream, so that all work is done in order.

A process that was forked from one in which the driver was initialized cannot use the driver, and importing a library
such as torchao initializes it. So the driver is used only in a new interpreter, in which `serve` runs.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from buddy.compiler.protocol.artifact import Copy, DeviceProgram, KernelArgument, KernelScalar, Launch, Pointer
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves

LIBRARY = "libcuda.so.1"
INSTALL_COMMAND = "pip install 'buddy-tui[cuda]'"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_CHECK_DRIVER = "check the driver (nvidia-smi), and restart buddy-tui"
_NEEDS_GPU = "run the program on a machine with a GPU; the stages up to PTX are available on this machine"
# The C type of a scalar argument, by its MLIR type.
_C_TYPES: dict[str, Any] = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


class NoDeviceError(BuddyError):
    """Kernels cannot run on this machine; `diagnostic` says what is missing, and what to do."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, where="a program for a GPU", todo=todo)


class DeviceFault(BuddyError):
    """A call of the driver or a kernel failed. The text names the call; `status` is the driver's error number."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Device:
    """The first CUDA device.

    Raises `NoDeviceError` if there is no driver, no device, or no package of bindings, or if the driver does not start.
    """

    def __init__(self) -> None:
        self._api = _import_driver()
        try:
            self._call("cuInit", 0)
            self._device = self._call("cuDeviceGet", 0)
            self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", self._device))
            name = self._call("cuDeviceGetName", 128, self._device)
        except DeviceFault as fault:
            if fault.status == _NO_DEVICE:
                raise NoDeviceError(f"no CUDA device was found ({fault})", _NEEDS_GPU) from fault
            raise NoDeviceError(f"the CUDA driver did not start ({fault})", _CHECK_DRIVER) from fault
        except RuntimeError as error:  # the package cannot open the library
            raise NoDeviceError(f"the CUDA driver did not start ({error})", _CHECK_DRIVER) from error
        self.name = name.split(b"\0")[0].decode(errors="replace")

    def _call(self, function: str, *arguments: object) -> Any:
        """Calls a function of the driver and returns its result. Raises `DeviceFault` with the driver's error."""
        status, *results = getattr(self._api, function)(*arguments)
        if int(status):
            _, text = self._api.cuGetErrorString(status)
            message = text.decode(errors="replace") if text else f"error {int(status)}"
            raise DeviceFault(f"{function}: {message}", int(status))
        return results[0] if results else None

    def load_kernels(self, ptx: str, names: Sequence[str]) -> dict[str, object]:
        """Loads a PTX text, which the driver compiles for this device. Returns the text's kernels `names`, by name."""
        module = self._call("cuModuleLoadData", ptx.encode() + b"\0")
        return {name: self._call("cuModuleGetFunction", module, name.encode()) for name in names}

    def allocate(self, size: int) -> int:
        """Returns the address of `size` bytes on the device, which are never freed."""
        return int(self._call("cuMemAlloc", max(1, size)))

    def upload(self, address: int, host: int, size: int) -> None:
        """Copies `size` bytes from the address `host` in this process to `address` on the device."""
        self._call("cuMemcpyHtoD", address, host, size)

    def download(self, host: int, address: int, size: int) -> None:
        self._call("cuMemcpyDtoH", host, address, size)

    def copy(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyDtoD", target, source, size)

    def launch(self, function: object, launch: Launch, addresses: Mapping[int, int]) -> None:
        """Launches a kernel; `addresses` has the addresses of the buffers by their numbers."""
        parameters = KernelParameters(launch.arguments, addresses)
        self._call("cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared, 0, parameters.address, 0)

    def record_event(self) -> object:
        """Records an event in the stream and returns it, for `take_elapsed_ms`."""
        event = self._call("cuEventCreate", 0)
        self._call("cuEventRecord", event, 0)
        return event

    def take_elapsed_ms(self, first: object, second: object) -> float:
        """Waits for the second event; returns the milliseconds between the two events, and destroys them."""
        self._call("cuEventSynchronize", second)
        elapsed = float(self._call("cuEventElapsedTime", first, second))
        for event in (first, second):
            self._call("cuEventDestroy", event)
        return elapsed


class KernelParameters:
    """A kernel's arguments as the driver reads them: an array of pointers to values.

    The values are valid as long as this object exists; the driver has copied them when a launch returns.
    """

    def __init__(self, arguments: Sequence[KernelArgument], addresses: Mapping[int, int]) -> None:
        self.values = [_to_c(argument, addresses) for argument in arguments]
        self.table = (ctypes.c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, self.values))

    @property
    def address(self) -> int:
        return ctypes.addressof(self.table)


def _to_c(argument: KernelArgument, addresses: Mapping[int, int]) -> ctypes._SimpleCData[Any]:
    """Returns an argument of a kernel as a C value; `addresses` has the addresses of the buffers by their numbers."""
    if isinstance(argument, Pointer):
        return ctypes.c_void_p(addresses[argument.buffer])
    assert isinstance(argument, KernelScalar)
    return _C_TYPES[argument.kind](argument.value)


def _import_driver() -> ModuleType:
    """Returns the module of the driver's functions. Raises `NoDeviceError` if the driver or the package is missing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoDeviceError(f"no CUDA driver was found ({LIBRARY})", _NEEDS_GPU) from error
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise NoDeviceError("the package for the CUDA driver is not installed", INSTALL_COMMAND) from error


# ---- the process of a program ----------------------------------------------------------------------------------------


class HostMemory(Message, frozen=True):
    """A part of the memory that both processes share: `size` bytes from `start` on."""

    start: int
    size: int


class LoadOnDevice(Message, frozen=True):
    """Load a program. `memory` is the file descriptor of `size` bytes of shared memory for arguments and results.

    Buffers are numbered: `arguments`, `results`, then `program.buffers`. Answered by `DeviceReply`.
    """

    program: DeviceProgram
    memory: int
    size: int
    arguments: tuple[HostMemory, ...]
    results: tuple[HostMemory, ...]


class CallOnDevice(Message, frozen=True):
    """Copy the arguments to the device, run the program, and copy the results back. Answered by `DeviceReply`."""


class DeviceReply(Message, frozen=True):
    """The name of the device, and the milliseconds of a call's steps, without the copies to and from the device."""

    device: str
    milliseconds: float = 0.0


class DeviceFailed(Message, frozen=True):
    """The program cannot be loaded or run; `todo` says what to do."""

    error: str
    todo: str = ""


class _Program:
    """A program on the device, with its buffers.

    Raises `NoDeviceError` or `DeviceFault`; `RuntimeError` if the PTX lacks a kernel; `OSError` or `ValueError` if the
    shared memory cannot be mapped.
    """

    def __init__(self, request: LoadOnDevice) -> None:
        self._request = request
        self._device = Device()
        self._memory = mmap.mmap(request.memory, max(1, request.size))
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # The address of each buffer on the device, by its number.
        self._addresses = self._allocate()
        self._kernels = self._load(request.program)

    def call(self) -> DeviceReply:
        """Copies the arguments to the device, runs all steps, and copies the results back."""
        for number, memory in enumerate(self._request.arguments):
            self._device.upload(self._addresses[number], self._base + memory.start, memory.size)
        start = self._device.record_event()
        for step in self._request.program.steps:
            self._run(step)
        milliseconds = self._device.take_elapsed_ms(start, self._device.record_event())
        for number, memory in enumerate(self._request.results, len(self._request.arguments)):
            self._device.download(self._base + memory.start, self._addresses[number], memory.size)
        return DeviceReply(self._device.name, milliseconds)

    def load_reply(self) -> DeviceReply:
        return DeviceReply(self._device.name)

    def _run(self, step: Launch | Copy) -> None:
        if isinstance(step, Copy):
            self._device.copy(self._addresses[step.target], self._addresses[step.source], step.size)
        else:
            self._device.launch(self._kernels[step.kernel], step, self._addresses)

    def _load(self, program: DeviceProgram) -> dict[str, object]:
        """Returns the kernels that the program launches, by name. Raises `RuntimeError` if its PTX lacks one."""
        kernel_names = dict.fromkeys(step.kernel for step in program.steps if isinstance(step, Launch))
        kernels: dict[str, object] = {}
        for ptx in program.modules:
            kernels |= self._device.load_kernels(ptx, [name for name in kernel_names if f".entry {name}(" in ptx])
        if missing := [name for name in kernel_names if name not in kernels]:
            raise RuntimeError(f"the program's PTX has no kernel {', '.join(missing)}")
        return kernels

    def _allocate(self) -> dict[int, int]:
        """Allocates device memory for each buffer by its number: arguments, results, internal ones."""
        sizes = [memory.size for memory in (*self._request.arguments, *self._request.results)]
        addresses = {number: self._device.allocate(size) for number, size in enumerate(sizes)}
        for number, buffer in enumerate(self._request.program.buffers, len(sizes)):
            addresses[number] = self._device.allocate(buffer.size)
            if buffer.content:
                content = ctypes.create_string_buffer(buffer.content, len(buffer.content))
                self._device.upload(addresses[number], ctypes.addressof(content), len(buffer.content))
        return addresses


@serves(LoadOnDevice | CallOnDevice)
def serve(channel: Channel) -> None:
    """Runs the process, as a worker: loads one program, then executes one call after another."""
    program: _Program | None = None
    while (request := channel.receive()) is not None:
        reply: DeviceReply | DeviceFailed
        try:
            if isinstance(request, LoadOnDevice):
                program = _Program(request)
                reply = program.load_reply()
            else:
                assert program is not None
                reply = program.call()
        except NoDeviceError as error:
            reply = DeviceFailed(error.diagnostic.what, error.todo)
        except (DeviceFault, RuntimeError) as error:
            reply = DeviceFailed(str(error))
        except (OSError, ValueError) as error:
            reply = DeviceFailed(f"the shared memory cannot be mapped: {error}")
        channel.send(reply)
