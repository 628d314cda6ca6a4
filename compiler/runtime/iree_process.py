"""Runs IREE programs by IREE's runtime in a forked process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import IO

import numpy as np
import torch

from buddy.compiler.codegen.iree import options as iree_flags
from buddy.compiler.codegen.iree.options import PARAMETER_SCOPE, WRAPPER_NAME, IreeArtifact
from buddy.compiler.protocol.artifact import TensorSpec
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import IREE
from buddy.compiler.runtime.buffers import torch_dtype
from buddy.compiler.runtime.forked_program import ForkedProgram
from buddy.compiler.runtime.torch_values import RuntimeShape, bind_symbols, dense, dense_bytes


class IreeRunError(BuddyError):
    """IREE's runtime failed, or its process ended; `diagnostic` has the reason."""

    def __init__(self, what: str) -> None:
        todo = "import the program by torch-mlir (--frontend torch-mlir), choose other flags, or the native backend"
        super().__init__(what, "IREE's runtime", todo)


class IreeProcess(ForkedProgram):
    """An IREE program on the tensors of one call. Every method may raise `IreeRunError`.

    Loading includes IREE's one-time preparation of weights, and each call the transfer of results to the host's memory.
    """

    def __init__(
        self, artifact: IreeArtifact, tensors: Sequence[torch.Tensor], numbers: Sequence[int], threads: int
    ) -> None:
        self._artifact, self._threads = artifact, threads
        self._convention = artifact.convention
        self._symbols = bind_symbols(artifact.convention.symbols, tensors, numbers)
        super().__init__(lambda: _Program(artifact, tensors, self._symbols, threads), IreeRunError)

    @property
    def backend(self) -> str:
        return IREE

    def notes(self) -> list[str]:
        artifact = self._artifact
        targets = iree_flags.selected_targets(artifact.flags)
        driver = iree_flags.runtime_driver(artifact.flags, self._threads)
        notes = [f"IREE's code is for {', '.join(targets)}, on its driver {driver}"]
        if artifact.convention.unchecked:
            ops = ", ".join(artifact.convention.unchecked)
            notes.append(f"IREE does not check the data of {ops}: values that eager rejects return arbitrary results")
        return notes

    def _read(self, file: IO[bytes], shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        remaining_shapes = iter(shapes)
        results = []
        for spec in self._convention.results:
            if _has_elements(spec):
                results.append(self._read_result(spec, file, next(remaining_shapes)))
            else:  # IREE's program does not return it
                results.append(torch.empty(RuntimeShape(spec).at(self._symbols), dtype=torch_dtype(spec)))
        return results

    def _read_result(self, spec: TensorSpec, file: IO[bytes], shape: tuple[int, ...]) -> torch.Tensor:
        """Returns the next result in the file, with the dims that IREE returned.

        A complex result has its two parts along an additional last dim of `shape`.
        """
        dtype = torch_dtype(spec)
        dims = shape[:-1] if dtype.is_complex else shape
        raw = torch.from_numpy(np.load(file))
        if raw.numel() != math.prod(dims) * dtype.itemsize:
            expected = f"{str(dtype).removeprefix('torch.')} of {'x'.join(map(str, dims))}"
            raise IreeRunError(f"a result is not {expected}: a flag has changed its element type")
        return raw.view(dtype).reshape(dims)


def _has_elements(spec: TensorSpec) -> bool:
    return 0 not in spec.shape


# ---- in the process --------------------------------------------------------------------------------------------------


class _Program:
    """A `LoadedCode`: the module of IREE's runtime, with its arguments on the device."""

    def __init__(
        self, artifact: IreeArtifact, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], threads: int
    ) -> None:
        from buddy.compiler.codegen.iree.runtime import IreeModule

        convention = artifact.convention
        # Kept alive, including weights that were made dense: the module reads them in place.
        self._weights = {key: np.asarray(dense_bytes(tensors[index])) for key, index in convention.parameters.items()}
        driver = iree_flags.runtime_driver(artifact.flags, threads)
        self._module = IreeModule(artifact.module, WRAPPER_NAME, driver, threads, self._weights, PARAMETER_SCOPE)
        inputs = [self._module.on_device(_to_array(tensors[index])) for index in convention.inputs]
        self._arguments = [*inputs, *(symbols[symbol.name] for symbol in convention.symbols)]

    def call(self) -> list[torch.Tensor]:
        return self._module(self._arguments)

    def write(self, results: Sequence[torch.Tensor], file: IO[bytes]) -> tuple[tuple[int, ...], ...]:
        for array in results:
            np.save(file, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return tuple(tuple(array.shape) for array in results)


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns the tensor as an array for IREE's runtime, which represents bfloat16 by the package `ml_dtypes`."""
    plain = dense(tensor.detach())
    parts = torch.view_as_real(plain) if plain.is_complex() else plain
    if parts.dtype is torch.bfloat16:
        import ml_dtypes

        return parts.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return parts.numpy()
