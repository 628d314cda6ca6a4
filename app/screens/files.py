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

    def unless_no(self, question: str, act: Callable[[], object]) -> None:
        """Do `act` at once, or, where there is a question, if the user says yes to it."""
        if question:
            self._dialogs.confirm(question, act)
        else:
            act()

    def use_path(
        self,
        typed: str,
        act: Callable[[Path, bool], object],
        question: Callable[[Path], str],
        failed: str = "could not be written",
    ) -> None:
        """Do `act` with a path that the user has typed, and whether something was asked before; nothing for no path.

        `question` gives what is asked, such as whether to write over what is there, or "". Of a path that cannot be
        looked at it is said that it `failed`.
        """
        name = typed.strip()
        if not name:
            return
        try:
            path = typed_path(name)
            asked = question(path)
        except (OSError, ValueError) as error:
            self._say(f"{name} {failed}: {getattr(error, 'strerror', None) or error}")
            return
        self.unless_no(asked, lambda: act(path, bool(asked)))

    def write(self, path: str, text: str) -> None:
        """Write a file where the user said, and say so; one that is there already is asked about."""

        def question(target: Path) -> str:
            return f"{path} is there already. Replace it?" if target.exists() and not target.is_dir() else ""

        self.use_path(path, lambda target, _asked: self._write(path, target, text), question)

    def _write(self, path: str, target: Path, text: str) -> None:
        try:
            write_whole(target, text)
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"written to {path}")
