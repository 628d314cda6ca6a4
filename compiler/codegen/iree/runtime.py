"""Loads an IREE module with its parameters in this process, and calls its entry. Imports IREE's runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import iree
    import numpy as np


class IreeModule:
    """Function `entry` of a module, on the device of `driver`; only the driver `local-task` uses `threads`.

    `parameters` are dense arrays by their keys in `scope`. IREE reads the arrays in place, so they must stay alive.
    """

    def __init__(
        self, module: bytes, entry: str, driver: str, threads: int, parameters: Mapping[str, np.ndarray] | None = None,
        scope: str = "",
    ) -> None:  # fmt: skip
        import iree.runtime as runtime

        self._runtime = runtime
        if driver == "local-task":
            runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        self._device = runtime.get_device(driver)
        config = runtime.Config(device=self._device)
        modules = [runtime.VmModule.copy_buffer(config.vm_instance, module)]
        if parameters:
            modules.insert(0, self._parameter_module(config.vm_instance, parameters, scope))
        self._function = runtime.load_vm_modules(*modules, config=config)[-1][entry]

    def _parameter_module(
        self, instance: iree.runtime.VmInstance, parameters: Mapping[str, np.ndarray], scope: str
    ) -> iree.runtime.VmModule:
        """Returns the module that provides `parameters` to the other module."""
        index = self._runtime.ParameterIndex()
        for key, array in parameters.items():
            index.add_buffer(key, array)
        return self._runtime.create_io_parameters_module(instance, index.create_provider(scope=scope))

    def on_device(self, array: np.ndarray) -> iree.runtime.DeviceArray:
        """Copies an array to a buffer of the device; returns the buffer."""
        return self._runtime.asdevicearray(self._device, array)

    def __call__(self, arguments: Sequence[iree.runtime.DeviceArray]) -> list[iree.runtime.DeviceArray]:
        """Calls the function; returns its results as arrays of the host, which are valid until the next call."""
        result = self._function(*arguments)
        if result is None:
            return []
        results = result if isinstance(result, (list, tuple)) else [result]
        return [array.to_host() for array in results]
