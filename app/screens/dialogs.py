"""Opens screens over the panes and the prompt, copies to the clipboard, and writes files to typed paths."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from textual.app import App
from textual.screen import Screen, ScreenResultCallbackType

from buddy.app.reports.formatting import Glyphs, clip
from buddy.app.screens.modal import ConfirmScreen
from buddy.app.widgets.prompt import Prompt
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.inputs import parse_path
from buddy.compiler.protocol import Diagnostic

Answer = TypeVar("Answer")
# Longer texts are refused by the clipboard (OSC 52) of some terminals.
MAX_CLIPBOARD_CHARACTERS = 74_000


class Dialogs:
    """Opens screens over the panes, and the prompt at the bottom; `say` shows a message."""

    def __init__(self, app: App[Any], say: Callable[[str], object], glyphs: Glyphs) -> None:
        self._app, self._say, self._glyphs = app, say, glyphs

    @property
    def is_open(self) -> bool:
        """Whether the prompt or a screen over the panes is open."""
        return len(self._app.screen_stack) > 1 or bool(self.prompt.display)

    @property
    def prompt(self) -> Prompt:
        """The prompt at the bottom of the panes."""
        return self._app.screen_stack[0].query_one(Prompt)

    def ask(self, title: str, initial: str, use_answer: Callable[[str], object]) -> None:
        """Ask for a text in the prompt. Call `use_answer` with the text unless the user cancels."""
        self.prompt.ask(title, initial, use_answer)

    def confirm(self, question: str, act: Callable[[], object], if_declined: str = "nothing was written") -> None:
        """Call `act` if the user answers `question` with yes. Otherwise, show the message `if_declined`."""

        def use_answer(yes: bool | None) -> None:
            if yes:
                act()
            else:
                self._say(if_declined)

        self._app.push_screen(ConfirmScreen(question), use_answer)

    def open(self, screen: Screen[Answer], use_result: ScreenResultCallbackType[Answer] | None = None) -> None:
        """Open a screen over the panes. When it closes, call `use_result` with its result (`None` without one)."""
        self._app.push_screen(screen, use_result)

    async def result_of(self, screen: Screen[Answer]) -> Answer | None:
        """Open a screen and wait for its result. Must be called in a worker."""
        return await self._app.push_screen_wait(screen)

    def open_problem(self, problem: Diagnostic | None) -> None:
        """Open a screen with the full diagnostic. Does nothing for `None`."""
        from buddy.app.screens.detail import problem_screen

        if problem is not None:
            self._app.push_screen(problem_screen(problem))

    def suspend(self) -> AbstractContextManager[None]:
        """Give the terminal to another program temporarily. Raises Textual's `SuspendNotSupported`."""
        return self._app.suspend()

    def copy(self, text: str, what: str = "") -> None:
        """Copy a text to the clipboard, and say `what` was copied, or show the first line and the number of lines."""
        if not text:
            self._say("nothing to copy here")
            return
        self._app.copy_to_clipboard(text)
        lines = text.splitlines() or [""]
        first, several = clip(lines[0].strip(), 60, self._glyphs), f" {len(lines):,} lines" * (len(lines) > 1)
        large = "; some terminals refuse as much" * (len(text) > MAX_CLIPBOARD_CHARACTERS)
        self._say(f"copied {what},{several or ' 1 line'}{large}" if what else f"copied{several}: {first}{large}")


class FileWriter:
    """Writes files to paths that the user has typed; `say` shows a message."""

    def __init__(self, dialogs: Dialogs, say: Callable[[str], object]) -> None:
        self._dialogs, self._say = dialogs, say

    def after_confirmation(self, question: str, act: Callable[[], object]) -> None:
        """Call `act` at once if `question` is empty; otherwise, after the user has answered it with yes."""
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
        """Call `act` with the typed path, and with whether the user has confirmed it. Does nothing for an empty text.

        The user confirms the path if `question` returns a question for it, such as whether to overwrite it, instead
        of an empty string. If the path cannot be used, shows a message: the path, `failed` and the reason.
        """
        name = typed.strip()
        if not name:
            return
        try:
            path = parse_path(name)
            question_text = question(path)
        except (OSError, ValueError) as error:
            self._say(f"{name} {failed}: {getattr(error, 'strerror', None) or error}")
            return
        self.after_confirmation(question_text, lambda: act(path, bool(question_text)))

    def write(self, path: str, text: str) -> None:
        """Write `text` to the typed path. Asks before it overwrites a file."""

        def question(target: Path) -> str:
            return f"{path} already exists. Overwrite?" if target.exists() and not target.is_dir() else ""

        self.use_path(path, lambda target, _confirmed: self._write(path, target, text), question)

    def _write(self, path: str, target: Path, text: str) -> None:
        try:
            write_text_atomically(target, text)
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"wrote {path}")
