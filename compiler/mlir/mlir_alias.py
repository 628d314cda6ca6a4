"""The MLIR bindings under a second name, for scripts with `from mlir.ir import …`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from buddy.compiler.mlir import bindings


def install(name: str) -> ModuleType:
    """Makes `name.x` an alias of module `x` of the bindings; returns the bindings' package.

    Raises `ModuleNotFoundError`, with what to do, if the bindings are not found.
    """
    if name == bindings.PACKAGE.partition(".")[0]:
        # `BUDDY_MLIR_PACKAGE` is this name, but Python has not found such a package.
        raise ModuleNotFoundError(f"no build of MLIR is on the path, so there is no package {name}", name=name)
    # First among the finders, since Python's own finder would load each module a second time.
    sys.meta_path.insert(0, _Finder(name))
    return bindings.package()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Returns the bindings' own modules: loading one again, under another spec, would abort the process."""

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}."
        self._specs: dict[int, Any] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if not fullname.startswith(self._prefix):
            return None
        try:
            module = self._real(fullname)
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: Any) -> ModuleType:
        module = self._real(spec.name)
        self._specs[id(module)] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing, and restores the module's own spec, which Python has replaced by the alias's."""
        module.__spec__ = self._specs.pop(id(module))

    def _real(self, fullname: str) -> ModuleType:
        return import_module(f"{bindings.PACKAGE}.{fullname.removeprefix(self._prefix)}")
