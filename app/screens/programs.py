"""The screen that opens another program: the recent programs, and a path with completion."""

from __future__ import annotations

import os.path
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from buddy.app.screens.modal import AnsweringScreen
from buddy.app.screens.picker import ChoiceList, PickerChoice, rank_choices
from buddy.app.widgets.prompt import StillInput
from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.app.workspace.sources import Program, parse_typed_program, path_completions

# The lines of the box besides the list: border, input, the input's margin, and the line for errors.
_FRAME_ROWS = 6
# The summaries of entries that are paths.
_FOLDER, _FILE = "folder", "file"


class ProgramScreen(AnsweringScreen[Program]):
    """Asks for the program to open, and returns it: a recent one, or a path, with arguments of the script after it.

    If the engine runs on this machine (`local`), paths are completed, and paths that cannot be opened are rejected.
    """

    title_text = "Open a program"
    hint_text = "enter opens, tab completes the path, escape cancels"
    # Whether the files of the current folder are listed before anything is typed.
    lists_files = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,ctrl+n,ctrl+j", "move('move_down')", show=False, priority=True),
        Binding("up,ctrl+k", "move('move_up')", show=False, priority=True),
        Binding("pagedown,ctrl+d", "move('move_page_down')", show=False, priority=True),
        Binding("pageup,ctrl+u", "move('move_page_up')", show=False, priority=True),
        Binding("tab", "complete", show=False, priority=True),
    ]

    def __init__(self, recent: Sequence[Program], *, local: bool = True) -> None:
        super().__init__()
        self._local = local
        self._recent = [
            PickerChoice(relative_to_working_directory(program.text), _time_text(program.opened_at), program)
            for program in recent
        ]
        # Whether the user has moved the cursor after typing: then `enter` opens the cursor's entry, not the typed path.
        self._has_moved = False

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = self.title_text
            yield StillInput(placeholder="path, then arguments of the script; or type to search", compact=True)
            yield Static("", markup=False, classes="field-error")
            yield ChoiceList(self._recent)

    def on_mount(self) -> None:
        self.query_one("#box").styles.height = max(min(24, self.app.size.height - 4), _FRAME_ROWS + 2)
        self._show_choices("")

    @property
    def _list(self) -> ChoiceList:
        return self.query_one(ChoiceList)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._has_moved = False
        self._show_error("")
        self._show_choices(event.value)

    def _show_choices(self, typed: str) -> None:
        """Lists the recent programs that match, then the paths that continue the typed one."""
        paths = path_completions(typed) if self._local and (typed or self.lists_files) else []
        choices = [*rank_choices(self._recent, typed), *(_path_choice(path) for path in paths)]
        self._list.choices = self._list.matches = choices
        self._list.cursor = 0
        self._list.rows_changed()
        self._show_position()

    def _show_position(self) -> None:
        """Shows which entry the cursor is on, and how many there are: a small screen does not show all."""
        position = f"{self._list.cursor + 1}/{len(self._list.matches)}, " if self._list.matches else ""
        self.query_one("#box").border_subtitle = position + self.hint_text

    def on_cursor_view_moved(self) -> None:
        self._show_position()

    def _show_error(self, text: str) -> None:
        error = self.query_one(Static)
        error.update(text)
        error.display = bool(text)

    # ---- keys ----------------------------------------------------------------------------------------------------

    def action_move(self, method: str) -> None:
        self._has_moved = True
        getattr(self._list, method)()

    def action_complete(self) -> None:
        """Inserts the entry that the user has moved to, or else the common start of all completions."""
        typed, choice = self.query_one(Input).value, self._list.current
        paths = path_completions(typed) if self._local else []
        if self._has_moved and choice is not None and isinstance(choice.value, (Program, str)):
            self._type(choice.value.text if isinstance(choice.value, Program) else choice.value)
        elif len(paths) == 1:
            self._type(paths[0])
        elif paths:
            # By characters, as a shell completes; `commonpath` would compare whole folders.
            common_start = os.path.commonprefix(paths)  # noqa: RUF071
            if len(common_start) > len(typed):
                self._type(common_start)

    def _type(self, text: str) -> None:
        field = self.query_one(Input)
        field.value, field.cursor_position = text, len(text)

    def on_input_submitted(self) -> None:
        """Opens the typed path. If the user has moved to an entry, or the text is a query, opens the cursor's entry."""
        typed, choice = self.query_one(Input).value.strip(), self._list.current
        if typed and not self._has_moved:
            try:
                self.dismiss(parse_typed_program(typed, is_local=self._local))
                return
            except ValueError as error:
                is_path = "/" in typed or typed in (".", "..")
                # Text that is no path is a query: open the first entry that matches it.
                if choice is None or is_path:
                    self._show_error(str(error))
                    return
        self._open(choice)

    def _open(self, choice: PickerChoice | None) -> None:
        """Closes the screen with the program of an entry. For a folder, lists the folder's files instead."""
        if choice is None:
            self._show_error("give the path of a script or of a model file")
            return
        text = choice.value.text if isinstance(choice.value, Program) else choice.value
        if choice.summary == _FOLDER:
            self._type(text)
            return
        try:
            self.dismiss(parse_typed_program(text, is_local=self._local))
        except ValueError as error:
            self._show_error(str(error))

    def on_cursor_view_double_clicked(self) -> None:
        self._open(self._list.current)


def _path_choice(path: str) -> PickerChoice:
    """Returns the entry for a path, which may be quoted. The path of a folder ends with a slash."""
    return PickerChoice(path, _FOLDER if path.rstrip("'").endswith("/") else _FILE, path)


def _time_text(opened_at: float) -> str:
    """Returns when a program was opened: `opened today 17:30`, or with the date; empty for 0, an unknown time."""
    if not opened_at:
        return ""
    opened, now = time.localtime(opened_at), time.localtime()
    is_today = opened[:3] == now[:3]
    return time.strftime("opened today %H:%M" if is_today else "opened %Y-%m-%d %H:%M", opened)
