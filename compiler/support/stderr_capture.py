"""Captures the process's stderr, where LLVM prints messages that no binding returns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def capture_stderr(file: IO[bytes]) -> Iterator[None]:
    """Redirects the process's stderr to `file` inside the `with` block."""
    original_fd = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(original_fd, 2)
        os.close(original_fd)
