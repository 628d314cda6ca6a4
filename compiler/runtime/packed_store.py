"""Memory for packed weights: one allocation in huge pages.

Each call reads all weights sequentially.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from buddy.compiler.protocol.artifact import TensorSpec
from buddy.compiler.runtime.huge_pages import HUGE, request_huge_pages
from buddy.compiler.runtime.memory import bytes_of, torch_dtype
from buddy.compiler.support.target import CACHE_LINE


class PackedStore:
    """A buffer for each of `specs`, in one allocation of `allocated` bytes, made on first use."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = list(specs)
        self._offsets, self._size = list[int](), 0
        for spec in specs:
            self._offsets.append(self._size)
            self._size += -(-bytes_of(spec) // CACHE_LINE) * CACHE_LINE
        self.allocated = self._size + _alignment(self._size) if self._size else 0
        self._memory: torch.Tensor | None = None
        self._lock = threading.Lock()

    def buffer(self, number: int) -> torch.Tensor:
        """Returns the buffer of spec number `number`, aligned to a cache line; its content is what was last written."""
        with self._lock:
            if self._memory is None:
                self._memory = _allocate(self._size)
        spec, start = self._specs[number], self._offsets[number]
        return self._memory[start : start + bytes_of(spec)].view(torch_dtype(spec)).view(spec.shape)


def _alignment(size: int) -> int:
    """Returns the alignment of the start: small stores are not worth a huge page."""
    return HUGE if size >= HUGE else CACHE_LINE


def _allocate(size: int) -> torch.Tensor:
    alignment = _alignment(size)
    memory = torch.empty(size + alignment, dtype=torch.uint8, device="cpu")
    start = -memory.data_ptr() % alignment
    if alignment == HUGE:
        request_huge_pages(memory.data_ptr() + start, size)
    return memory[start : start + size]
