"""A GPU, through CUDA's driver API in the package cuda-bindings. Does not use torch.

Supports one device, with its primary context and the default stream, so that all work is done in order.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from buddy.compiler.protocol.artifact import KernelScalar, Launch, Pointer, Word

LIBRARY = "libcuda.so.1"
EXTRA = "pip install 'buddy-tui[cuda]'"
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


class NoDeviceError(Exception):
    """Kernels cannot run on this machine: the text says what is missing, `todo` what to do."""

    def __init__(self, text: str, todo: str) -> None:
        super().__init__(text)
        self.todo = todo


class DeviceFault(Exception):
    """A call of the driver or a kernel failed: the text names it and includes the driver's error."""


class Device:
    """The first CUDA device.

    Raises `NoDeviceError` if there is no driver, no device, or no package of bindings.
    """

    def __init__(self) -> None:
        self._api = _api()
        try:
            self._call("cuInit", 0)
            self._device = self._call("cuDeviceGet", 0)
        except (DeviceFault, RuntimeError) as error:
            # A driver without a device fails here; the package raises if it cannot open the library.
            raise NoDeviceError(f"no CUDA device was found ({error})", _NEEDS_GPU) from error
        self._call("cuCtxSetCurrent", self._call("cuDevicePrimaryCtxRetain", self._device))
        self.name = self._call("cuDeviceGetName", 128, self._device).split(b"\0")[0].decode(errors="replace")

    def _call(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the driver and returns its result. Raises `DeviceFault` with the driver's error."""
        status, *results = getattr(self._api, function)(*arguments)
        if int(status):
            _, text = self._api.cuGetErrorString(status)
            message = text.decode(errors="replace") if text else f"error {int(status)}"
            raise DeviceFault(f"{function}: {message}")
        return results[0] if results else None

    def functions(self, ptx: str, names: Sequence[str]) -> dict[str, Any]:
        """Returns the kernels of a PTX text by name; the driver compiles it for this device."""
        module = self._call("cuModuleLoadData", ptx.encode() + b"\0")
        return {name: self._call("cuModuleGetFunction", module, name.encode()) for name in names}

    def allocate(self, size: int) -> int:
        """Returns the address of `size` bytes on the device, which are never freed."""
        return int(self._call("cuMemAlloc", max(1, size)))

    def upload(self, address: int, host: int, size: int) -> None:
        self._call("cuMemcpyHtoD", address, host, size)

    def download(self, host: int, address: int, size: int) -> None:
        self._call("cuMemcpyDtoH", host, address, size)

    def copy(self, target: int, source: int, size: int) -> None:
        self._call("cuMemcpyDtoD", target, source, size)

    def launch(self, function: Any, launch: Launch, addresses: Mapping[int, int]) -> None:
        """Launches a kernel; `addresses` has the addresses of the buffers by their numbers."""
        parameters = KernelParameters(launch.words, addresses)
        self._call("cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared, 0, parameters.address, 0)

    def mark(self) -> Any:
        """Records an event in the stream and returns it, for `milliseconds`."""
        event = self._call("cuEventCreate", 0)
        self._call("cuEventRecord", event, 0)
        return event

    def milliseconds(self, first: Any, second: Any) -> float:
        """Waits for the second event; returns the time between both events, and destroys them."""
        self._call("cuEventSynchronize", second)
        elapsed = float(self._call("cuEventElapsedTime", first, second))
        for event in (first, second):
            self._call("cuEventDestroy", event)
        return elapsed


class KernelParameters:
    """A kernel's arguments as the driver reads them: an array of pointers to values.

    The values are valid as long as this object exists; the driver has copied them when a launch returns.
    """

    def __init__(self, words: Sequence[Word], addresses: Mapping[int, int]) -> None:
        self.values = [_value(word, addresses) for word in words]
        self.table = (ctypes.c_void_p * max(1, len(words)))(*map(ctypes.addressof, self.values))

    @property
    def address(self) -> int:
        return ctypes.addressof(self.table)


def _value(word: Word, addresses: Mapping[int, int]) -> Any:
    if isinstance(word, Pointer):
        return ctypes.c_void_p(addresses[word.buffer])
    assert isinstance(word, KernelScalar)
    return _C_TYPES[word.kind](word.value)


_NEEDS_GPU = "run the program on a machine with a GPU; the stages up to PTX are available on this machine"


def _api() -> Any:
    """Returns the module of the driver's functions. Raises `NoDeviceError` if the driver or the package is missing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoDeviceError(f"no CUDA driver was found ({LIBRARY})", _NEEDS_GPU) from error
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise NoDeviceError("the package for the CUDA driver is not installed", EXTRA) from error
