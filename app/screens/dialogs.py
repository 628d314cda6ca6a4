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
# The maximum length of a text that all terminals accept for their clipboards: some reject more than 100,000 bytes of
# OSC 52, which has 4 bytes for 3 of the text.
MAX_CLIPBOARD_CHARACTERS = 74_000
# The maximum number of characters of the copied text that a message shows.
MAX_SHOWN_CHARACTERS = 60


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

    def confirm(self, question: str, action: Callable[[], object], if_declined: str = "nothing was written") -> None:
        """Call `action` if the user answers `question` with yes. Otherwise, show the message `if_declined`."""

        def use_answer(yes: bool | None) -> None:
            if yes:
                action()
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

    def copy(self, text: str, description: str = "") -> None:
        """Copy a text to the clipboard, and show a message with the number of lines.

        The message also has `description`; without one, the first line of the text.
        """
        if not text:
            self._say("nothing to copy here")
            return
        self._app.copy_to_clipboard(text)
        lines = text.splitlines() or [""]
        first_line = clip(lines[0].strip(), MAX_SHOWN_CHARACTERS, self._glyphs)
        count = f" {len(lines):,} lines" if len(lines) > 1 else ""
        warning = "; some terminals reject texts of this length" if len(text) > MAX_CLIPBOARD_CHARACTERS else ""
        copied = f"copied {description},{count or ' 1 line'}" if description else f"copied{count}: {first_line}"
        self._say(copied + warning)


class FileWriter:
    """Writes files to paths that the user has typed; `say` shows a message."""

    def __init__(self, dialogs: Dialogs, say: Callable[[str], object]) -> None:
        self._dialogs, self._say = dialogs, say

    def after_confirmation(self, question: str, action: Callable[[], object]) -> None:
        """Call `action` at once if `question` is empty; otherwise, after the user has answered it with yes."""
        if question:
            self._dialogs.confirm(question, action)
        else:
            action()

    def use_path(
        self,
        typed: str,
        action: Callable[[Path, bool], object],
        question: Callable[[Path], str],
        failure: str = "could not be written",
    ) -> None:
        """Call `action` with the typed path. Does nothing for an empty text.

        If `question` returns a question about the path, such as whether to overwrite it, the user must first answer it
        with yes; "" means no question. The second argument of `action` is whether the user was asked. If the path
        cannot be used, shows a message: the path, `failure` and the reason.
        """
        name = typed.strip()
        if not name:
            return
        try:
            path = parse_path(name)
            question_text = question(path)
        except (OSError, ValueError) as error:
            self._say(f"{name} {failure}: {getattr(error, 'strerror', None) or error}")
            return
        self.after_confirmation(question_text, lambda: action(path, bool(question_text)))

    def write(self, path: str, text: str) -> None:
        """Write `text` to the typed path. Asks before it overwrites a file."""

        def question(target: Path) -> str:
            return f"{path} already exists. Overwrite?" if target.exists() and not target.is_dir() else ""

        self.use_path(path, lambda target, _confirmed: self._write(path, target, text), question)

    def _write(self, path: str, target: Path, text: str) -> None:
        """Write `text` to `target`, and show a message with `path`, the path as it was typed."""
        try:
            write_text_atomically(target, text)
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"wrote {path}")
