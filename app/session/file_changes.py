"""Whether the files of a program are still what they were when it was opened. No Textual."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Mark = tuple[int, int]


class OnDisk:
    """Knows files by size and time of change, as they were when `take` was called; those that it cannot see, on
    another machine for one, it says nothing of."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark | None] = {}

    def take(self, files: Iterable[str]) -> None:
        """These are the program's, as they are now."""
        self._marks = {file: _mark(file) for file in files}

    def changed(self) -> list[str]:
        """The names of those that are other ones now, or gone."""
        return [Path(file).name for file, mark in self._marks.items() if mark is not None and _mark(file) != mark]


def _mark(file: str) -> Mark | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns
