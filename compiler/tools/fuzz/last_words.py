"""What a process was about to do, kept where it can be read once the process has died of it. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

_END = b"\0"


class LastWords:
    """A text in a file, written over again and again at the cost of a system call each time."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nothing is kept. Raises `OSError`."""
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def say(self, text: str) -> None:
        """Keep `text` in the place of what was said before; "" for that all went well."""
        if self._file is not None:
            os.pwrite(self._file, text.encode() + _END, 0)


def last_words(path: Path) -> str:
    """What was said last, "" for nothing."""
    return path.read_bytes().partition(_END)[0].decode() if path.exists() else ""
