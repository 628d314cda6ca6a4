"""Huge pages for memory that a call reads or writes sequentially.

With pages of 4 KiB, address translation takes a third of the time of reading, and writing to new memory takes several
times as long, since each page is created at its first use.

Linux provides huge pages on request. All of this is advice: if the kernel has no huge pages, nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import torch

HUGE = 2 << 20  # bytes of a huge page, on x86-64 and on AArch64 with pages of 4 KiB
_LARGE = 2 * HUGE  # smaller tensors mostly get memory that has been written before
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # from <sys/mman.h> of Linux, the second one since 6.1


def request_huge_pages(address: int, size: int) -> None:
    """Requests huge pages for memory that has not been written yet."""
    _advise(address, size, _MADV_HUGEPAGE)


def huge_page_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a new tensor, in huge pages if it is large: first writes to a page are slow."""
    made = torch.empty(shape, dtype=dtype, device="cpu")  # ignores `torch.set_default_device`
    size = made.nbytes
    if size >= _LARGE:
        start = -(-made.data_ptr() // HUGE) * HUGE
        request_huge_pages(start, (made.data_ptr() + size) // HUGE * HUGE - start)
    return made


def collapse(tensor: torch.Tensor) -> None:
    """Moves the memory of a dense `tensor` to huge pages; addresses and contents do not change.

    A page that it shares with its neighbours is moved with the tensor that has the larger part, so that adjacent
    weights are moved completely.
    """
    start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    first, end = (round(address / HUGE) for address in (start, start + size))
    for page in range(first, end):
        # Separate calls, so that a page that cannot be moved does not affect the others.
        _advise(page * HUGE, HUGE, _MADV_COLLAPSE)


def _advise(address: int, size: int, advice: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
