"""Symbolic sizes in a call: the values of an artifact's symbols, and the shapes computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.sizes import Size, parsed, value_of
from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec


class RuntimeShape:
    """The shape of a spec, which is evaluated in each call if it is dynamic."""

    def __init__(self, spec: TensorSpec) -> None:
        self.sizes = tuple(map(parsed, spec.shape))
        self.dynamic = any(isinstance(size, Size) for size in self.sizes)

    def at(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(value_of(size, symbols) for size in self.sizes) if self.dynamic else self.sizes  # type: ignore[return-value]

    @property
    def crosses(self) -> bool:
        """True if a call passes a pointer: tensors that never have elements are not passed."""
        return 0 not in self.sizes


def bind(symbols: Sequence[ArtifactSymbol], tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> dict[str, int]:
    """Returns the value of each symbol in a call on `tensors` and `numbers`."""
    found = {}
    for symbol in symbols:
        values = numbers if symbol.source < 0 else tensors[symbol.source].shape
        found[symbol.name] = int(values[symbol.index])
    return found
