"""Records what a process was about to do, readable after it has crashed. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

_END = b"\0"


class CrashLog:
    """A text in a file, overwritten repeatedly at the cost of one system call each time."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nothing is recorded. Raises `OSError`."""
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def say(self, text: str) -> None:
        """Replaces the recorded text with `text`; "" means that all went well."""
        if self._file is not None:
            os.pwrite(self._file, text.encode() + _END, 0)


def read_crash_log(path: Path) -> str:
    """The last recorded text, "" if there is none."""
    return path.read_bytes().partition(_END)[0].decode() if path.exists() else ""
