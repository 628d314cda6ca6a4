"""The bases of modal screens, and short questions: yes or no, a choice, a text, a file to write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen, ScreenResultCallbackType, ScreenResultType
from textual.widgets import Static

from buddy.app.reports.formatting import Glyphs, clip
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.prompt import Prompt
from buddy.app.workspace.files import write_whole
from buddy.app.workspace.inputs import typed_path
from buddy.compiler.protocol import Diagnostic

Answer = TypeVar("Answer")


class Dialogs:
    """Opens screens over the panes, and the prompt at the bottom; `say` shows a message."""

    def __init__(self, app: App[Any], say: Callable[[str], object], glyphs: Glyphs) -> None:
        self._app, self._say, self._glyphs = app, say, glyphs

    @property
    def engaged(self) -> bool:
        """Whether a screen is open over the panes, or the prompt."""
        return len(self._app.screen_stack) > 1 or bool(self._prompt.display)

    @property
    def _prompt(self) -> Prompt:
        return self._app.screen_stack[0].query_one(Prompt)

    def ask(self, title: str, initial: str, answer: Callable[[str], object]) -> None:
        """Ask for a text in the prompt, and call `answer` with it."""
        self._prompt.ask(title, initial, answer)

    def confirm(self, question: str, act: Callable[[], object], otherwise: str = "nothing was written") -> None:
        """Call `act` if the user answers `question` with yes; else show the message `otherwise`."""

        def answered(yes: bool | None) -> None:
            if yes:
                act()
            else:
                self._say(otherwise)

        self._app.push_screen(ConfirmScreen(question), answered)

    def open(self, screen: Screen[Answer], then: ScreenResultCallbackType[Answer] | None = None) -> None:
        """Open a screen over the panes. `then` gets its result, or `None` if the user closes it without one."""
        self._app.push_screen(screen, then)

    async def result_of(self, screen: Screen[Answer]) -> Answer | None:
        """Open a screen and wait for its result. Must be called in a worker."""
        return await self._app.push_screen_wait(screen)

    def open_problem(self, problem: Diagnostic | None) -> None:
        """Show the full diagnostic, if any."""
        from buddy.app.screens.detail import problem_screen

        if problem is not None:
            self._app.push_screen(problem_screen(problem))

    def suspend(self) -> AbstractContextManager[None]:
        """Give the terminal to another program temporarily. Raises Textual's `SuspendNotSupported`."""
        return self._app.suspend()

    def copy(self, text: str) -> None:
        """Copy a text to the clipboard, and show a message."""
        if text:
            self._app.copy_to_clipboard(text)
            self._say(f"copied: {clip(text.splitlines()[0], 60, self._glyphs)}")
        else:
            self._say("nothing to copy here")


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


class AnsweringScreen(ModalScreen[ScreenResultType]):
    """A modal screen that ignores input after its answer, such as a second `enter`.

    Without this, Textual would pop another screen for it, and finally the workbench's own.
    """

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self.app.screen is not self:
            return AwaitComplete.nothing()
        return super().dismiss(result)

    def set_box_title(self, title: str) -> None:
        """Set the title of the screen's box. Does nothing if the screen is already closed."""
        for box in self.query("#box"):
            box.border_title = title


class ConfirmScreen(AnsweringScreen[bool]):
    """Returns true for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", "Yes"),
        Binding("n,escape,q,ctrl+c", "dismiss(False)", "No", priority=True),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Sure?"
            box.border_subtitle = "y yes, n no"
            yield Static(self._question, markup=False)


# Minimum number of lines of a box on a very small screen.
LEAST = 6


class ListScreen(AnsweringScreen[ScreenResultType]):
    """Shows `view` in a box with `title` at the top and the text `keys` at the bottom."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c", "dismiss(None)", "Close", show=False, priority=True),
        Binding("j,down", "move('move_down')", show=False),
        Binding("k,up", "move('move_up')", show=False),
        Binding("ctrl+d,pagedown", "move('move_page_down')", show=False),
        Binding("ctrl+u,pageup", "move('move_page_up')", show=False),
        Binding("home", "move('move_top')", show=False),
        Binding("G,end", "move('move_bottom')", show=False),
    ]

    def __init__(self, title: str, keys: str, view: CursorView) -> None:
        super().__init__()
        self._title, self._keys, self._view = title, keys, view

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title, box.border_subtitle = self._title, self._keys
            yield self._view

    def on_mount(self) -> None:
        self._view.focus()
        self.fit()

    def wanted_height(self) -> int:
        """The height of a box that shows all lines."""
        return self._view.row_count + 2

    def fit(self) -> None:
        """Set the height of the box: `wanted_height`, limited by the screen."""
        for box in self.query("#box"):  # none if the screen was closed while rows still arrived
            box.styles.height = min(self.wanted_height(), max(self.app.size.height - 4, LEAST))

    def action_move(self, method: str) -> None:
        getattr(self._view, method)()
