"""An ear on the process's own stream of errors, for what LLVM prints where no binding hears it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def errors_into(file: IO[bytes]) -> Iterator[None]:
    """Whatever the process writes to its stream of errors meanwhile goes to `file`."""
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
