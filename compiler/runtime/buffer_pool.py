"""Memory for results that is reused after its release.

The first write to a page of new memory is slow: the kernel has to find, clear and map it. A loop that drops each result
before the next call, or the one after, then always uses the same memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from sys import getrefcount

import torch

from buddy.compiler.runtime.huge_pages import huge_page_tensor

# The C library reuses smaller blocks, mostly written before (M_MMAP_THRESHOLD of glibc's malloc).
SMALL = 128 << 10
# Blocks kept for each result: one that a caller still holds during the next call, and one that this call writes.
MAX_BUFFERS = 2
# Bytes that the results of one program may keep beyond the life of their tensors.
LIMIT = 128 << 20

_uses = getattr(torch._C, "_storage_Use_Count", None)
_LISTED = [object()]


class BufferPool:
    """The memory of the results of one program.

    A weak reference to a result's storage, such as `StorageWeakRef`, stays alive with the next result in it.
    """

    def __init__(self, results: int) -> None:
        self._storages: list[list[torch.UntypedStorage]] = [[] for _ in range(results)]
        self._lock = threading.Lock()

    def tensor(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialised dense tensor for result `number`."""
        size = math.prod(shape) * dtype.itemsize
        if size < SMALL or _uses is None:
            return huge_page_tensor(shape, dtype)
        with self._lock:
            storage = self._idle(self._storages[number], size)
            if storage is not None:
                return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape), _row_major(shape))
        new = huge_page_tensor(shape, dtype)
        with self._lock:
            self._retain(number, new.untyped_storage())
        return new

    def _idle(self, storages: list[torch.UntypedStorage], size: int) -> torch.UntypedStorage | None:
        """Returns a block that no tensor uses, and whose storage has no other reference."""
        assert _uses is not None
        # Measures the references that a list and a loop hold here: calls may add some, depending on how the interpreter
        # implements them, and Dynamo changes that.
        alone = 0
        for something in _LISTED:
            alone = getrefcount(something)
        for storage in storages:
            held = getrefcount(storage)
            if held <= alone and storage.nbytes() == size and _uses(storage._cdata) == 1 and not storage.is_shared():
                return storage
        return None

    def _retain(self, number: int, storage: torch.UntypedStorage) -> None:
        """Keeps a block within the limit, in place of the oldest one if there are enough."""
        mine = self._storages[number]
        del mine[: max(0, len(mine) - MAX_BUFFERS + 1)]
        held = sum(other.nbytes() for storages in self._storages for other in storages)
        if held + storage.nbytes() <= LIMIT:
            mine.append(storage)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))
