"""The bases of modal screens: screens with an answer, with a yes-or-no question, and with a list in a box."""

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


def moving_bindings() -> list[BindingType]:
    """The keys that move in a pane, for the list of a screen. `g g` is `g` there, so the second `g` changes nothing."""
    moves = (action for action in actions_of_pane("any") if action.id.startswith("move."))
    keys = {action.method: [key.split()[0] for key in action.keys] for action in moves}
    return [Binding(",".join(names), f"move('{method}')", show=False) for method, names in keys.items()]


# Minimum number of lines of a box on a very small screen.
LEAST = 6


class ListScreen(AnsweringScreen[ScreenResultType]):
    """Shows `view` in a box with `title` at the top and the text `keys` at the bottom."""

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

    def wanted_height(self) -> int:
        """The height of a box that shows all lines."""
        return self._view.row_count + 2

    def fit(self) -> None:
        """Set the height of the box: `wanted_height`, limited by the screen."""
        for box in self.query("#box"):  # none if the screen was closed while rows still arrived
            box.styles.height = min(self.wanted_height(), max(self.app.size.height - 4, LEAST))

    def action_move(self, method: str) -> None:
        getattr(self._view, method)()
