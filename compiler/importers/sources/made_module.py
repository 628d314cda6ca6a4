"""Opens an MLIR module that a script has made, like a file with its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from buddy.compiler.importers.mlir_files.read_request import ReadRequest
from buddy.compiler.importers.sources.inputs import INPUTS, as_call
from buddy.compiler.importers.sources.program import CapturedProgram

MODULE, REFERENCE = "module", "reference"


def made_module(names: Mapping[str, Any], name: str) -> Any:
    """The script's value `name` (by default `module`), if that is an MLIR module, else `None`."""
    found = names.get(name or MODULE)
    operation = getattr(found, "operation", None)
    return found if getattr(operation, "name", "") == "builtin.module" and hasattr(found, "context") else None


def program_of_module(
    module: Any, names: Mapping[str, Any], title: str, shapes: tuple[str, ...] = ()
) -> CapturedProgram:
    """The functions of a module as programs.

    A script's `example_inputs` are their inputs if they fit, and `reference`, a function of the same values, computes
    the expected results. Raises `SourceError`.
    """
    from buddy.compiler.importers.sources.mlir_file import program_of  # other scripts are loaded without MLIR

    text = module.operation.get_asm(enable_debug_info=False)
    return program_of(ReadRequest(text.encode(), title, "", shapes), _inputs(names), _reference(names))


def _inputs(names: Mapping[str, Any]) -> list[torch.Tensor] | None:
    given = names.get(INPUTS)
    values = as_call(given)[0] if given is not None else ()
    return [torch.as_tensor(value) for value in values] if values and all(map(_is_tensor, values)) else None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


def _reference(names: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The script's function, called with arrays if its example inputs are arrays."""
    found = names.get(REFERENCE)
    if not callable(found):
        return None
    given = names.get(INPUTS)
    if not any(isinstance(value, np.ndarray) for value in (as_call(given)[0] if given is not None else ())):
        return found

    def on_arrays(*tensors: torch.Tensor) -> Any:
        return found(*(tensor.numpy() for tensor in tensors))

    return on_arrays
