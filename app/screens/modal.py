"""Modal screens: the bases of screens that return an answer and of lists in a box; a yes-or-no question."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Static

from buddy.app.actions import actions_of_pane
from buddy.app.widgets.cursor_view import CursorView


class AnsweringScreen(ModalScreen[ScreenResultType]):
    """A modal screen that returns an answer once; further calls of `dismiss` do nothing.

    A second `enter` that arrives before the screen has closed would otherwise close the screen below as well.
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
    """Asks a question. Returns true for yes, false for no."""

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


def moving_bindings() -> list[BindingType]:
    """The keys that move in a pane, for the list of a screen. `g g` is `g` there, so the second `g` changes nothing."""
    moves = (action for action in actions_of_pane("any") if action.id.startswith("move."))
    keys = {action.method: [key.split()[0] for key in action.keys] for action in moves}
    return [Binding(",".join(names), f"move('{method}')", show=False) for method, names in keys.items()]


# Minimum number of lines of a box on a very small screen.
MIN_BOX_LINES = 6


class ListScreen(AnsweringScreen[ScreenResultType]):
    """Shows `view` in a box with `title` at the top and a summary of the keys, `keys`, at the bottom."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c", "dismiss(None)", "Close", show=False, priority=True),
        *moving_bindings(),
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

    def full_height(self) -> int:
        """The height of a box that shows all lines."""
        return self._view.row_count + 2

    def fit(self) -> None:
        """Set the height of the box to `full_height`, or to the height of the screen minus 4 lines if that is less."""
        for box in self.query("#box"):  # There is no box if the screen was closed while rows still arrived.
            box.styles.height = min(self.full_height(), max(self.app.size.height - 4, MIN_BOX_LINES))

    def action_move(self, method: str) -> None:
        getattr(self._view, method)()
