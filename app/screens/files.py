"""Files that the user has something written to: the question where one is there already, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from buddy.app.screens.dialogs import Dialogs
from buddy.app.workspace.atomic_write import write_whole
from buddy.app.workspace.input_parsing import typed_path


class FileWriter:
    """Writes texts where the user says; `say` shows a message."""

    def __init__(self, dialogs: Dialogs, say: Callable[[str], object]) -> None:
        self._dialogs, self._say = dialogs, say

    def write(self, path: str, text: str) -> None:
        """Write a file where the user said, and say so; one that is there already is asked about."""
        try:
            target = typed_path(path)
            there = target.exists() and not target.is_dir()
        except (OSError, ValueError) as error:
            self._say(f"{path} could not be written: {getattr(error, 'strerror', None) or error}")
            return
        if there:
            self._dialogs.confirm(f"{path} is there already. Replace it?", lambda: self._write(path, target, text))
        else:
            self._write(path, target, text)

    def _write(self, path: str, target: Path, text: str) -> None:
        try:
            write_whole(target, text)
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"written to {path}")
