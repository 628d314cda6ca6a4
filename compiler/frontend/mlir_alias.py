"""Lets a script say `import mlir.ir` where the bindings come from another package and no real `mlir` is installed."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from buddy.compiler import bindings

_NAME = "mlir"


def offer_mlir() -> None:
    """From now on the first `import mlir` installs the alias; nothing is imported before that."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands last among the finders, so it is asked only where no real `mlir` is."""

    def __init__(self) -> None:
        self._busy = False
        self._module: Any = None
        self._spec: Any = None

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != _NAME or self._busy:
            return None
        self._busy = True
        try:
            installed = bindings.install_mlir_alias()
        finally:
            self._busy = False
        if not installed:
            return None
        # Python would load what it finds in `sys.modules` by its own spec, and so a second time.
        self._module = sys.modules.pop(_NAME)
        return importlib.machinery.ModuleSpec(_NAME, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """The bindings' own module: loading it again under another spec would abort the process."""
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
