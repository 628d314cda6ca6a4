"""Memory for results that is handed out again once nobody holds it.

The first write to a page of new memory costs more than many writes later: the kernel has to find, clear and map it. A
loop that drops each result before the next call, or the one after, then works in the same memory all the time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from sys import getrefcount

import torch

from buddy.compiler.runtime.huge_pages import roomy

# Smaller blocks come from a list of the C library's, mostly written to before (M_MMAP_THRESHOLD of glibc's malloc).
SMALL = 128 << 10
# Blocks kept for each result: what a caller still holds while the next call runs, and what that call writes.
KEPT = 2
# Bytes that the results of one program may keep beyond the life of their tensors.
LIMIT = 128 << 20

_uses = getattr(torch._C, "_storage_Use_Count", None)
_LISTED = [object()]


class Memory:
    """What the results of one program were made in.

    Who knows a result by a weak reference to its storage, as `StorageWeakRef` does, sees that live on with the next
    result in it.
    """

    def __init__(self, results: int) -> None:
        self._storages: list[list[torch.UntypedStorage]] = [[] for _ in range(results)]
        self._lock = threading.Lock()

    def tensor(self, number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A dense tensor for result `number`, whose elements are whatever the memory holds."""
        size = math.prod(shape) * dtype.itemsize
        if size < SMALL or _uses is None:
            return roomy(shape, dtype)
        with self._lock:
            storage = self._idle(self._storages[number], size)
            if storage is not None:
                return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, tuple(shape), _row_major(shape))
        new = roomy(shape, dtype)
        with self._lock:
            self._keep(number, new.untyped_storage())
        return new

    def _idle(self, storages: list[torch.UntypedStorage], size: int) -> torch.UntypedStorage | None:
        """A block on which no tensor is left, and which nobody has who asked a tensor for it."""
        assert _uses is not None
        # What a list and a loop hold counts here and now: each call of a function may add to it, or not, by how the
        # interpreter goes about calls, which Dynamo changes while it is at work.
        alone = 0
        for something in _LISTED:
            alone = getrefcount(something)
        for storage in storages:
            held = getrefcount(storage)
            if held <= alone and storage.nbytes() == size and _uses(storage._cdata) == 1 and not storage.is_shared():
                return storage
        return None

    def _keep(self, number: int, storage: torch.UntypedStorage) -> None:
        """Keep a block, in the place of the oldest where there are enough, unless there is no room for it."""
        mine = self._storages[number]
        del mine[: max(0, len(mine) - KEPT + 1)]
        held = sum(other.nbytes() for storages in self._storages for other in storages)
        if held + storage.nbytes() <= LIMIT:
            mine.append(storage)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))
