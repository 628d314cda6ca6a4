"""Packed copies of weights that one program has made, for others that would pack the same weights in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from buddy.compiler.runtime.deviations import tells_places_apart

# What a weight was when it was packed, and the shape and element type of its packed copy.
_Key = tuple[object, ...]


class PackedElsewhere:
    """Packed copies by weight, of `pairs` of a weight and its copy; both have to live as long as this is used.

    A weight that has several copies of one shape has none here: which is meant cannot be told.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._copies: dict[_Key, torch.Tensor | None] = {}
        for source, copy in pairs:
            key = _key(source, copy.shape, copy.dtype)
            self._copies[key] = None if key in self._copies else copy

    def of(self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """The copy of `source` that has this shape and element type, however it is packed."""
        return self._copies.get(_key(source, shape, dtype))


class Borrowed:
    """What one argument may take from `elsewhere` instead of packing: copies packed as its own program packs.

    Whether they are is seen on the first weight whose elements can be told apart, packed in both ways: packing moves
    elements and fills up with zeros, whatever the elements are.
    """

    def __init__(self, elsewhere: PackedElsewhere) -> None:
        self._elsewhere = elsewhere
        self._same: bool | None = None

    def of(
        self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype, pack: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """`source` packed: the copy elsewhere where that is known to be packed alike, else what `pack` gives."""
        other = None if self._same is False else self._elsewhere.of(source, shape, dtype)
        if other is None:
            return pack()
        if self._same is None:
            own = pack()
            if not torch.equal(own, other):
                self._same = False
            elif tells_places_apart(source):
                self._same = True
            return own
        return other


def state_of(source: torch.Tensor) -> tuple[object, ...]:
    """Which memory a tensor reads, and how: the same for as long as its elements are, if that memory is kept alive and
    nothing writes to it. Of writes, those that PyTorch counts make another state of it; many are not counted."""
    lazy = source.is_neg(), source.is_conj()
    version = -1 if source.is_inference() else source._version
    return source.data_ptr(), version, source.shape, source.stride(), source.dtype, lazy


def _key(source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> _Key:
    return *state_of(source), shape, dtype
