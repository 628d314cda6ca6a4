"""Shares packed copies of weights between programs that pack the same weights in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from buddy.compiler.runtime.compare import needs_positions

# The state of a weight when it was packed, and the shape and element type of its packed copy.
_Key = tuple[object, ...]


class SharedWeights:
    """Packed copies by weight, of `pairs` of a weight and its copy; both must live as long as this object.

    A weight with several copies of the same shape is ambiguous and omitted.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._copies: dict[_Key, torch.Tensor | None] = {}
        for source, copy in pairs:
            key = _key(source, copy.shape, copy.dtype)
            self._copies[key] = None if key in self._copies else copy

    def of(self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the copy of `source` with this shape and element type, however it is packed."""
        return self._copies.get(_key(source, shape, dtype))


class SharedArgument:
    """Copies that one argument may take from `elsewhere` instead of packing, if they are packed in the same way.

    That is checked on the first weight with distinguishable elements, by packing it in both ways: packing moves
    elements and pads with zeros, independent of their values.
    """

    def __init__(self, elsewhere: SharedWeights) -> None:
        self._elsewhere = elsewhere
        self._same: bool | None = None

    def of(
        self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype, pack: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Returns `source` packed: the copy elsewhere if it is packed in the same way, else the result of `pack`."""
        other = None if self._same is False else self._elsewhere.of(source, shape, dtype)
        if other is None:
            return pack()
        if self._same is None:
            own = pack()
            if not torch.equal(own, other):
                self._same = False
            elif needs_positions(source):
                self._same = True
            return own
        return other


def state_of(source: torch.Tensor) -> tuple[object, ...]:
    """Returns a key for the memory of a tensor and its layout, which is constant as long as its elements are.

    This needs the memory to be kept alive and not written. Writes that PyTorch counts change the key; many are not
    counted.
    """
    lazy = source.is_neg(), source.is_conj()
    version = -1 if source.is_inference() else source._version
    return source.data_ptr(), version, source.shape, source.stride(), source.dtype, lazy


def _key(source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> _Key:
    return *state_of(source), shape, dtype
