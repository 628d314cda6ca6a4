"""A compiled program, linked into this process and callable on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from buddy.compiler.artifact import Argument, Artifact, TensorSpec
from buddy.compiler.runner.callbacks import EagerOps
from buddy.compiler.runner.linker import BlockFunction, Library
from buddy.compiler.runner.memref import torch_dtype


def call(function: BlockFunction, tensors: Sequence[torch.Tensor]) -> None:
    """Call `function` on `tensors`, which must be dense and stay alive until it returns."""
    block = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    function(block.ctypes.data)


class PackedArgument:
    """A packed copy of one input, made again when the input is another tensor or has been written to.

    The source is kept alive, so its address cannot come to mean another tensor. Writes that PyTorch does not count
    (`p.data.mul_()`) go unseen: `forget()` after them.
    """

    def __init__(self, argument: Argument, pack: BlockFunction) -> None:
        self._argument = argument
        self._pack = pack
        self._source: torch.Tensor | None = None
        self._state: tuple[object, ...] = ()
        self._buffer = torch.empty(0)

    def value(self, source: torch.Tensor) -> torch.Tensor:
        if source.is_inference():
            return self._packed(source)  # it has no version counter, so writes to it cannot be seen
        state = (source.data_ptr(), source._version, source.shape, source.stride())
        if self._source is None or state != self._state:
            self._buffer, self._source, self._state = self._packed(source), source, state
        return self._buffer

    def forget(self) -> None:
        self._source, self._state = None, ()

    def _packed(self, source: torch.Tensor) -> torch.Tensor:
        buffer, dense = _empty(self._argument.spec), _dense(source.detach())
        call(self._pack, [dense, buffer])
        return buffer


class LoadedProgram:
    """An artifact ready to run. Calling it takes the graph's inputs in placeholder order and returns new tensors.

    Inputs may have any strides; results are dense and the caller's own. Raises `ValueError` for inputs of another
    shape or element type, and whatever an op that stays in eager raises. One thread at a time may call it.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._eager = EagerOps(artifact.eager_calls)
        self._specs = [argument.spec for argument in artifact.arguments]
        self._dtypes = [torch_dtype(spec) for spec in self._specs]
        packs = {a.pack: 2 for a in artifact.arguments if a.pack}
        arity = len(artifact.arguments) + len(artifact.results)
        self._library = Library(artifact.objects, {artifact.entry: arity, **packs}, self._eager.addresses())
        self._entry = self._library[artifact.entry]
        self._packed = [PackedArgument(a, self._library[a.pack]) if a.pack else None for a in artifact.arguments]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        arguments = [self._argument(index, tensors) for index in range(len(self._specs))]
        results = [_empty(spec) for spec in self._artifact.results]
        call(self._entry, [*arguments, *results])
        self._eager.reraise()
        return results

    def refreeze(self) -> None:
        """Pack all weights anew at the next call, after writes that PyTorch does not count."""
        for packed in self._packed:
            if packed is not None:
                packed.forget()

    def _argument(self, index: int, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        tensor, packed = tensors[self._artifact.arguments[index].source], self._packed[index]
        if packed is not None:
            return packed.value(tensor)
        if tensor.shape != self._specs[index].shape or tensor.dtype != self._dtypes[index]:
            raise ValueError(_wrong_input(self._artifact.arguments[index], tensor))
        return _dense(tensor)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor row-major, with lazy conjugation and negation carried out."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def _empty(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(spec.shape, dtype=torch_dtype(spec))


def _wrong_input(argument: Argument, tensor: torch.Tensor) -> str:
    wanted = "x".join([*map(str, argument.spec.shape), argument.spec.dtype])
    given = "x".join([*map(str, tensor.shape), str(tensor.dtype).removeprefix("torch.")])
    return f"input {argument.source} is {given}, but the program was compiled for {wanted}"
