"""Measures the allocated and not freed memory of a process, as opposed to the pages of its allocators."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile

# `struct mallinfo2` of glibc's malloc.h.
_FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
_BLOCKS = re.compile(r"# bytes in allocated blocks\s*=\s*([\d,]+)")


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def in_use() -> int:
    """KiB in use by C's allocator and Python's for small objects; 0 if C's does not report it (before glibc 2.33)."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd + _small_objects()) >> 10


def _small_objects() -> int:
    """Bytes in pymalloc's blocks, which Python reports only on stderr; 0 if it uses C's allocator for them."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        found = _BLOCKS.search(file.read().decode())
    return int(found[1].replace(",", "")) if found else 0
