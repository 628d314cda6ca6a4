"""Conversions between tensors and the memory of compiled code: dense, row-major, at an address."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from buddy.compiler.codegen.arena import ALIGNMENT
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.artifact import TensorSpec
from buddy.compiler.runtime.huge_pages import huge_page_tensor
from buddy.compiler.runtime.torch_values import to_torch


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    return to_torch(TensorDType(spec.dtype))


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of `shape` that views the memory at `address`; valid as long as that memory is."""
    count = math.prod(shape)
    if not count:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).reshape(tuple(shape))


class WorkArena:
    """`size` bytes of scratch memory, allocated once. Overlapping calls get separate memory.

    Allocated by the first call, since programs are also created inside `torch.compile`, where tensors are fake.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._memory: torch.Tensor | None = None
        self._lock = threading.Lock()

    @contextmanager
    def lent(self) -> Iterator[torch.Tensor]:
        """Yields the memory for one call."""
        if not self._lock.acquire(blocking=False):
            yield _aligned(self._size)
            return
        try:
            if self._memory is None:
                self._memory = _aligned(self._size)
            yield self._memory
        finally:
            self._lock.release()


def _aligned(size: int) -> torch.Tensor:
    memory = huge_page_tensor((size + ALIGNMENT,), torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]


def bytes_of(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * torch_dtype(spec).itemsize
