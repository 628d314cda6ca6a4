"""Detects changes of a program's files since it was opened. No Textual."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Mark = tuple[int, int]


class FileStates:
    """The sizes and modification times of files at the last call of `take`.

    Files that do not exist on this machine, for example those of a remote host, are ignored.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Mark | None] = {}

    def take(self, files: Iterable[str]) -> None:
        """Record the current state of the program's files."""
        self._marks = {file: _mark(file) for file in files}

    def changed(self) -> list[str]:
        """The names of the files that have changed or were deleted."""
        return [Path(file).name for file, mark in self._marks.items() if mark is not None and _mark(file) != mark]


def _mark(file: str) -> Mark | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns
