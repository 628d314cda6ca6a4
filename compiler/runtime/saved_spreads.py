"""Saves the spreads of programs on disk, so that a verdict on the same values needs no further run in double precision.

A spread (`runtime.sensitivity`) depends on the graph, its weights and inputs, eager's results, and the software that
computes them in double precision. The key includes a checksum of every tensor, because spreads of other weights or
inputs would set wrong limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from buddy.compiler.graph import serialization
from buddy.compiler.graph.node import EagerOp
from buddy.compiler.graph.plugins import is_built_in
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.runtime.captured import Spread
from buddy.compiler.runtime.torch_values import fingerprints
from buddy.compiler.support.disk_cache import SPREADS, source_hash
from buddy.compiler.support.target import host_features

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# For fewer bytes of weights and inputs, the run in double precision takes less time than a file.
_MIN_BYTES = 1 << 20
# The maximum size of saved spreads: those of many slices, such as the entries of a vocabulary, are larger.
_MAX_BYTES = 1 << 20
_log = logging.getLogger("buddy.runner")


class _SavedSpread(msgspec.Struct, frozen=True):
    """A `Spread`; `slices` are dims with the bytes of their float64 values."""

    largest: float
    rms: float
    slices: tuple[tuple[int, bytes], ...]
    is_complete: bool


def find_or_measure(
    captured: CapturedGraph, expected: Sequence[object], measure: Callable[[], tuple[Spread, ...]]
) -> tuple[Spread, ...]:
    """Returns the spreads of eager's results, `expected`: those on disk, or else those of `measure`, which it saves.

    `measure` returns () if it fails. The spreads of small programs are not saved. Nor are those of programs with ops
    that are not part of this package, because a change of their code would not be detected.
    """
    if not may_be_saved(captured, expected):
        return measure()
    key = _key(captured, expected)
    saved = _decode(SPREADS.read(key))
    if saved is not None and len(saved) == len(expected):
        _log.debug("the spreads of eager's results are those of an earlier run")
        return saved
    measured = measure()
    data = _encode(measured)
    if measured and len(data) <= _MAX_BYTES:
        SPREADS.write(key, data)
    return measured


def may_be_saved(captured: CapturedGraph, expected: Sequence[object]) -> bool:
    """Returns whether `find_or_measure` saves the spreads of eager's results, `expected`."""
    tensors = [*captured.tensors, *(value for value in expected if isinstance(value, torch.Tensor))]
    if sum(tensor.nbytes for tensor in tensors if _has_bytes(tensor)) < _MIN_BYTES:
        return False
    has_only_built_in_ops = all(is_built_in(type(op)) and not isinstance(op, EagerOp) for op in captured.graph.body)
    return has_only_built_in_ops and all(map(_has_bytes, tensors)) and not captured.user_lowerings()


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Returns whether the bytes of a tensor determine its elements, as they may not in a subclass or another layout."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_quantized
    return is_plain and tensor.layout is torch.strided and tensor.device.type == "cpu"


def _key(captured: CapturedGraph, expected: Sequence[object]) -> str:
    """Returns the key of the spreads on disk: a digest of all that they depend on."""
    results = [value for value in expected if isinstance(value, torch.Tensor)]
    tensors = [*captured.tensors, *results, *([] if captured.random_state is None else [captured.random_state])]
    return digest(
        serialization.graph_hash(captured.graph),
        [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors],
        fingerprints(tensors),
        repr(captured.numbers),
        sorted(captured.precisions.items()),
        (str(torch.__version__), host_features(), source_hash()),
    )


def _encode(spreads: Sequence[Spread]) -> bytes:
    saved = [
        _SavedSpread(
            spread.largest,
            spread.rms,
            tuple((dim, spread.slices[dim].numpy().tobytes()) for dim in sorted(spread.slices)),
            spread.is_complete,
        )
        for spread in spreads
    ]
    return msgspec.msgpack.encode(saved)


def _decode(data: bytes | None) -> tuple[Spread, ...] | None:
    """Returns the spreads in `data`; `None` if there are none, or if they cannot be decoded."""
    try:
        saved = None if data is None else msgspec.msgpack.decode(data, type=list[_SavedSpread])
    except msgspec.MsgspecError:
        return None
    return None if saved is None else tuple(map(_spread_of, saved))


def _spread_of(saved: _SavedSpread) -> Spread:
    slices = {dim: torch.frombuffer(bytearray(values), dtype=torch.float64) for dim, values in saved.slices}
    return Spread(saved.largest, saved.rms, slices, saved.is_complete)
