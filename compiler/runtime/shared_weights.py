"""Shares packed copies of weights between programs that pack the same weights in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from buddy.compiler.runtime.compare import can_detect_moved_elements

# The state of a weight when it was packed, and the shape and element type of its packed copy.
_CopyKey = tuple[object, ...]


class SharedWeights:
    """The packed copies of weights, from `pairs` of a weight and its copy; both must live as long as this object.

    A weight with several copies of the same shape and type is ambiguous, and omitted.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._copies: dict[_CopyKey, torch.Tensor | None] = {}
        for source, copy in pairs:
            key = _copy_key(source, copy.shape, copy.dtype)
            self._copies[key] = None if key in self._copies else copy

    def of(self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the copy of `source` with this shape and element type, or `None`; it may be packed in another way."""
        return self._copies.get(_copy_key(source, shape, dtype))


class SharedArgument:
    """Copies that one argument may take from `shared_weights` instead of packing, if they are packed in the same way.

    This is checked on the first weight whose elements are distinguishable: it is packed, and compared with the shared
    copy. One weight is enough, because packing moves elements and pads with zeros, independent of their values.
    """

    def __init__(self, shared_weights: SharedWeights) -> None:
        self._shared_weights = shared_weights
        self._packs_equally: bool | None = None

    def of(
        self, source: torch.Tensor, shape: torch.Size, dtype: torch.dtype, pack: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Returns `source` packed: the shared copy if it is packed in the same way, else the result of `pack`."""
        shared_copy = None if self._packs_equally is False else self._shared_weights.of(source, shape, dtype)
        if shared_copy is None:
            return pack()
        if self._packs_equally is None:
            packed = pack()
            if not torch.equal(packed, shared_copy):
                self._packs_equally = False
                return packed
            if can_detect_moved_elements(source):
                self._packs_equally = True
        return shared_copy


def weight_state(source: torch.Tensor) -> tuple[object, ...]:
    """Returns a key for the memory and the layout of a tensor: equal keys mean equal elements.

    This holds only while the memory is kept alive and not written. Writes that PyTorch counts change the key; many
    writes are not counted.
    """
    lazy = source.is_neg(), source.is_conj()
    version = -1 if source.is_inference() else source._version
    return source.data_ptr(), version, source.shape, source.stride(), source.dtype, lazy


def _copy_key(source: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> _CopyKey:
    return *weight_state(source), shape, dtype
