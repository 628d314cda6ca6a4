"""Finds the documentation of ops in the classes of the bindings."""

from __future__ import annotations

import importlib
import inspect

from buddy.compiler.mlir.bindings import PACKAGE

# The names of the bindings' modules, by the dialects that have another name than their module.
_MODULE_NAMES = {"omp": "openmp"}


def op_documentation(name: str) -> str:
    """Returns the documentation of op `name` (`dialect.op`), "" if the bindings have none."""
    op = _op_class(name)
    for cls in op.__mro__ if op is not None else ():
        # The generated class has the documentation and defines the op's name; the bindings' extensions subclass it.
        if "OPERATION_NAME" in vars(cls) and cls.__doc__:
            return inspect.cleandoc(cls.__doc__)
    return ""


def _op_class(name: str) -> type[object] | None:
    """Returns the bindings' class of an op, the most derived one if there are several, or `None`."""
    dialect = name.partition(".")[0]
    if not dialect.isidentifier():
        return None
    try:
        module = importlib.import_module(f"{PACKAGE}.dialects.{_MODULE_NAMES.get(dialect, dialect)}")
    except ImportError:
        return None
    classes = (value for value in vars(module).values() if inspect.isclass(value))
    matches = [cls for cls in classes if getattr(cls, "OPERATION_NAME", "") == name]
    return max(matches, key=lambda cls: len(cls.__mro__), default=None)
