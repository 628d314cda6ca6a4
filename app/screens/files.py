"""Writes files to paths that the user types. Asks before a file is overwritten, and shows the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from buddy.app.screens.dialogs import Dialogs
from buddy.app.workspace.atomic_write import write_whole
from buddy.app.workspace.input_parsing import typed_path


class FileWriter:
    """Writes files to typed paths; `say` shows a message."""

    def __init__(self, dialogs: Dialogs, say: Callable[[str], object]) -> None:
        self._dialogs, self._say = dialogs, say

    def after_confirmation(self, question: str, act: Callable[[], object]) -> None:
        """Call `act`. If there is a question, only after the user has answered it with yes."""
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
        """Call `act` with the typed path, and with whether a question was asked. Does nothing for an empty text.

        `question` returns the question for a path, such as whether to overwrite it, or an empty string. If the path
        cannot be checked, the message says that it `failed`.
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
        self.after_confirmation(asked, lambda: act(path, bool(asked)))

    def write(self, path: str, text: str) -> None:
        """Write `text` to the typed path. Asks before it overwrites a file."""

        def question(target: Path) -> str:
            return f"{path} already exists. Overwrite?" if target.exists() and not target.is_dir() else ""

        self.use_path(path, lambda target, _asked: self._write(path, target, text), question)

    def _write(self, path: str, target: Path, text: str) -> None:
        try:
            write_whole(target, text)
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"wrote {path}")
