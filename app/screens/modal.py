"""Modal screens: their bases, which return an answer, and show lists and tables in a box; the yes-or-no question.

`Dialogs` opens screens over the panes and the prompt, and copies to the clipboard; `FileWriter` writes files to typed
paths.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen, ScreenResultCallbackType, ScreenResultType
from textual.widgets import Static

from buddy.app.actions import actions_of_pane
from buddy.app.reports.formatting import Glyphs, clip
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.app.widgets.prompt import Prompt
from buddy.app.widgets.table import Column, Row, TableView
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.inputs import parse_path
from buddy.compiler.protocol import Diagnostic


class AnsweringScreen(ModalScreen[ScreenResultType]):
    """A modal screen that returns an answer, and answers only once: further calls of `dismiss` do nothing.

    Otherwise, a second `enter` that arrives before the screen has closed would also close the screen below.
    Escape and ctrl+c close the screen; if a prompt is open in the screen, they close only the prompt.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "close", "Close", show=False, priority=True),
    ]

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self.app.screen is not self:
            return AwaitComplete.nothing()
        return super().dismiss(result)

    def action_close(self) -> None:
        """Closes the prompt if it is open, else the screen."""
        prompts = [prompt for prompt in self.query(Prompt) if prompt.display]
        if prompts:
            prompts[0].action_cancel()
        else:
            self.close_unanswered()

    def close_unanswered(self) -> None:
        self.dismiss(None)

    def set_box_title(self, title: str) -> None:
        """Sets the title of the screen's box. Does nothing if the screen is already closed."""
        for box in self.query("#box"):
            box.border_title = title


class ReadOnlyScreen(AnsweringScreen[ScreenResultType]):
    """A screen in which the user types no text, so that `q` and the keys of the help can close the screen, too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,f1,question_mark", "close", "Close", show=False)]


class ConfirmScreen(ReadOnlyScreen[bool]):
    """Asks a question. Returns true for yes, false for no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "dismiss(True)", "Yes"),
        Binding("n", "close", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = "Sure?"
            box.border_subtitle = "y yes, n no"
            yield Static(self._question, markup=False)

    def close_unanswered(self) -> None:
        self.dismiss(False)


def moving_bindings() -> list[BindingType]:
    """Returns bindings for the list of a screen: the keys that move the cursor in a pane.

    Of a sequence such as `g g`, the first key alone is bound to the move. The second one repeats the move.
    """
    moves = (action for action in actions_of_pane("any") if action.id.startswith("move."))
    keys = {action.method: [key.split()[0] for key in action.keys] for action in moves}
    return [Binding(",".join(names), f"move('{method}')", show=False) for method, names in keys.items()]


# The minimum number of lines of a box on a very small screen.
MIN_BOX_LINES = 6


class ListScreen(ReadOnlyScreen[ScreenResultType]):
    """Shows `view` in a box with `title` at the top and `keys`, a summary of the keys, at the bottom.

    `/` searches the view that has focus, `n` and `N` go to other matches.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", show=False),
        Binding("n", "step_search(1)", "Next match", show=False),
        Binding("N", "step_search(-1)", "Previous match", show=False),
        *moving_bindings(),
    ]

    def __init__(self, title: str, keys: str, view: CursorView) -> None:
        super().__init__()
        self._title, self._keys, self._view = title, keys, view

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title, box.border_subtitle = self._title, self.keys_text()
            yield self._view
            yield Prompt()

    def on_mount(self) -> None:
        self._view.focus()
        self.fit()

    def keys_text(self) -> str:
        """The summary of the keys at the bottom of the box."""
        return self._keys

    def full_height(self) -> int:
        """The height of a box that shows all lines, with its border."""
        return self._view.row_count + 2

    def fit(self) -> None:
        """Sets the height of the box to `full_height`, or to the height of the screen minus 4 lines if that is less."""
        # A closed screen, for which results may still arrive, has no box.
        for box in self.query("#box"):
            box.styles.height = min(self.full_height(), max(self.app.size.height - 4, MIN_BOX_LINES))

    def action_move(self, method: str) -> None:
        getattr(self._view, method)()

    # ---- search --------------------------------------------------------------------------------------------------

    def action_search(self) -> None:
        if self._view.searchable:
            self._view.search.ask(self.query_one(Prompt))

    def action_step_search(self, by: int) -> None:
        self._view.search.step(by)

    def on_cursor_view_searched(self, event: CursorView.Searched) -> None:
        """Shows the pattern and the count instead of the keys, until the search ends."""
        for box in self.query("#box"):
            keys = ", n N next and previous match" if event.view.search.matches.lines else ""
            box.border_subtitle = f"{event.text}{keys}" if event.text else self.keys_text()


# ---- tables ----------------------------------------------------------------------------------------------------------


# The box is high enough for this many rows, even if the table has fewer.
_MIN_ROWS = 3
# The lines of the box besides rows and foot: two of the border, the head, and an empty line above the foot.
_FRAME_LINES = 4


class TableRows(TableView[Row]):
    """The table of a `TableScreen`. Below the rows are `foot_lines` lines with the text that `foot_text` returns.

    `unsorted_rows` are the rows in their initial order.
    """

    def __init__(
        self, columns: Sequence[Column[Row]], rows: Sequence[Row], foot_text: Callable[[Row], str], foot_lines: int
    ) -> None:
        super().__init__()
        self.unsorted_rows, self.rows = list(rows), list(rows)
        self._columns, self._foot_text, self._foot_lines = columns, foot_text, foot_lines

    @property
    def current(self) -> Row | None:
        """The row under the cursor, `None` without rows."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def foot(self, width: int) -> list[Cells]:
        text = self._foot_text(self.current) if self.current is not None else ""
        lines = textwrap.wrap(text, max(width - 2, 10))[: self._foot_lines]
        blank_lines = [""] * (self._foot_lines - len(lines))
        return [[], *([(f" {line}", "text")] for line in (*lines, *blank_lines))]

    def empty(self, width: int) -> list[Cells]:
        return [[(" nothing yet", "dim")]]

    def show(self, rows: Sequence[Row]) -> None:
        """Replaces the rows. A cursor that the user has moved stays on its row if the row still exists."""
        self.unsorted_rows = list(rows)
        self.sort_rows()

    def sort_rows(self) -> None:
        current = self.current
        self.rows = self.order.sorted(self.unsorted_rows, self._columns)
        # A cursor on the first row, which the user may not have moved, stays on the first row.
        if self.cursor and current in self.rows:
            self.cursor = self.rows.index(current)
        self.rows_changed()


class TableScreen(ListScreen[Any], Generic[Row]):
    """A table in a box; `show` replaces its rows while it is open. Returns the chosen row, or what a subclass defines.

    `s` sorts by the column that left and right choose; a click on the head of a column sorts too.
    """

    TITLE_TEXT: ClassVar[str] = ""
    KEYS_TEXT: ClassVar[str] = "enter chooses, s sorts, q closes"
    # The number of lines of text under the table.
    FOOT_LINES: ClassVar[int] = 3
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Choose", show=False),
        Binding("s", "move('sort_by_column')", "Sort", show=False),
        Binding("left,h", "move('column_left')", show=False),
        Binding("right,l", "move('column_right')", show=False),
    ]

    def __init__(self, columns: Sequence[Column[Row]], rows: Sequence[Row] = ()) -> None:
        self._table: TableRows[Row] = TableRows(columns, rows, self.foot_text, self.FOOT_LINES)
        super().__init__(self.TITLE_TEXT, self.KEYS_TEXT, self._table)

    def foot_text(self, row: Row) -> str:
        """The text under the table about the row under the cursor."""
        return ""

    def full_height(self) -> int:
        return max(len(self._table.rows), _MIN_ROWS) + self.FOOT_LINES + _FRAME_LINES

    def show(self, rows: Sequence[Row]) -> None:
        """Replaces the rows, and fits the height of the box to them."""
        self._table.show(rows)
        self.fit()

    def show_progress(self, text: str) -> None:
        """Adds `text` to the title of the box; an empty text restores the title."""
        self.set_box_title(f"{self.TITLE_TEXT}: {text}" if text else self.TITLE_TEXT)

    @property
    def current(self) -> Row | None:
        """The row under the cursor, `None` without rows."""
        return self._table.current

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(self.current)

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()


# ---- opening screens, copying and writing files ----------------------------------------------------------------------


Answer = TypeVar("Answer")
# The maximum length of a text that all terminals accept for their clipboards: some reject escape sequences (OSC 52) of
# more than 100,000 bytes, and base64 needs 4 bytes for 3 of the text.
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
        return self._app.screen_stack[0].query_one(Prompt)

    def ask(self, title: str, initial: str, use_answer: Callable[[str], object]) -> None:
        """Asks for a text in the prompt. Calls `use_answer` with the text unless the user cancels."""
        self.prompt.ask(title, initial, use_answer)

    def confirm(self, question: str, action: Callable[[], object], if_declined: str = "nothing was written") -> None:
        """Calls `action` if the user answers `question` with yes. Otherwise, shows the message `if_declined`."""

        def use_answer(yes: bool | None) -> None:
            if yes:
                action()
            else:
                self._say(if_declined)

        self._app.push_screen(ConfirmScreen(question), use_answer)

    def open(self, screen: Screen[Answer], use_result: ScreenResultCallbackType[Answer] | None = None) -> None:
        """Opens a screen over the panes. When the screen closes, calls `use_result` with its result, or `None`."""
        self._app.push_screen(screen, use_result)

    async def result_of(self, screen: Screen[Answer]) -> Answer | None:
        """Opens a screen and waits for its result. Must be called in a worker."""
        return await self._app.push_screen_wait(screen)

    def open_problem(self, problem: Diagnostic | None) -> None:
        """Opens a screen with the full diagnostic. Does nothing for `None`."""
        from buddy.app.screens.detail import problem_screen

        if problem is not None:
            self._app.push_screen(problem_screen(problem))

    def suspend(self) -> AbstractContextManager[None]:
        """Gives the terminal to another program temporarily. Raises Textual's `SuspendNotSupported`."""
        return self._app.suspend()

    def copy(self, text: str, description: str = "") -> None:
        """Copies a text to the clipboard, and shows a message with the number of lines.

        The message also has `description`, or, without one, the first line of the text.
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
        """Calls `action` after the user has answered `question` with yes, or at once if `question` is empty."""
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
        """Calls `action` with the typed path. Does nothing for an empty text.

        If `question` returns a question about the path, such as whether to overwrite it, the user must first answer
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
        """Writes `text` to the typed path. Asks before it overwrites a file."""

        def question(target: Path) -> str:
            return f"{path} already exists. Overwrite?" if target.exists() and not target.is_dir() else ""

        self.use_path(path, lambda target, _confirmed: self._write(path, target, text), question)

    def _write(self, path: str, target: Path, text: str) -> None:
        """Writes `text` to `target`, and shows a message with `path`, the path as it was typed."""
        try:
            write_text_atomically(target, text)
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"wrote {path}")
