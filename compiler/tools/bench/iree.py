"""IREE as a side: torch.export, torch-mlir's import, `iree-compile` for this CPU, and the runtime's module call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from buddy.compiler.codegen.iree import flags
from buddy.compiler.codegen.iree.installed import TODO, missing_packages
from buddy.compiler.codegen.iree.runtime import IreeModule
from buddy.compiler.mlir.bindings import torch_fx
from buddy.compiler.tools.bench.sides import LoadedModel, SideError

_ENTRY = "main"


def prepare_iree(loaded: LoadedModel, threads: int) -> Callable[[], list[Any]]:
    """The subject compiled for IREE: parameters are constants of the module, inputs are already in device buffers.

    Raises `SideError` with the first line of the error.
    """
    if problem := missing_packages():
        raise SideError(f"{problem}: {TODO}")
    try:
        import iree.compiler as compiler

        with torch.no_grad():
            module, inputs = _imported(loaded)
        binary = compiler.compile_str(module, input_type=compiler.InputType.TORCH, extra_args=list(flags.DEFAULTS))
        return _callable(binary, inputs, threads)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise SideError(f"{type(error).__name__}: {lines[0] if lines else ''}") from error


def _imported(loaded: LoadedModel) -> tuple[str, list[torch.Tensor]]:
    """The program in the torch dialect, and its tensor inputs in order."""
    leaves, spec = pytree.tree_flatten((loaded.args, loaded.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    class Flat(torch.nn.Module):
        """The model with flat tensors as inputs and outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = loaded.model

        def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            remaining = iter(given)
            values = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(values, spec)
            found = pytree.tree_leaves(self.inner(*args, **kwargs))
            return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))

    flat = Flat()
    _make_buffers_persistent(flat)
    exported = torch.export.export(flat, tuple(tensors))
    return str(torch_fx().export_and_import(exported, output_type="torch", func_name=_ENTRY)), tensors


def _make_buffers_persistent(module: torch.nn.Module) -> None:
    """torch-mlir's importer rejects buffers that `state_dict` leaves out."""
    for part in module.modules():
        part._non_persistent_buffers_set.clear()


def _callable(binary: bytes, inputs: list[torch.Tensor], threads: int) -> Callable[[], list[Any]]:
    module = IreeModule(binary, _ENTRY, flags.driver(flags.DEFAULTS, threads), threads)
    buffers = [module.on_device(tensor.numpy()) for tensor in inputs]

    def call() -> list[Any]:
        return [torch.from_numpy(value) for value in module(buffers)]

    call()
    return call
