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
from buddy.app.widgets.prompt import Prompt


class AnsweringScreen(ModalScreen[ScreenResultType]):
    """A modal screen that returns an answer, and answers only once: further calls of `dismiss` do nothing.

    Otherwise, a second `enter` that arrives before the screen has closed would close the screen below it as well.
    Escape and ctrl+c close the screen; if a prompt is open in it, they close only the prompt.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "close", "Close", show=False, priority=True),
    ]

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self.app.screen is not self:
            return AwaitComplete.nothing()
        return super().dismiss(result)

    def action_close(self) -> None:
        """Close the prompt if it is open, else the screen."""
        prompts = [prompt for prompt in self.query(Prompt) if prompt.display]
        if prompts:
            prompts[0].action_cancel()
        else:
            self.close_unanswered()

    def close_unanswered(self) -> None:
        """Close the screen without an answer."""
        self.dismiss(None)

    def set_box_title(self, title: str) -> None:
        """Set the title of the screen's box. Does nothing if the screen is already closed."""
        for box in self.query("#box"):
            box.border_title = title


class ReadOnlyScreen(AnsweringScreen[ScreenResultType]):
    """A screen in which the user types no text, so that `q` and the keys of the help can close it, too."""

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
    """Shows `view` in a box with `title` at the top and a summary of the keys, `keys`, at the bottom.

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
        """The height of a box that shows all lines."""
        return self._view.row_count + 2

    def fit(self) -> None:
        """Set the height of the box to `full_height`, or to the height of the screen minus 4 lines if that is less."""
        for box in self.query("#box"):  # There is no box if the screen was closed while results still arrive.
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
        """Show the pattern and the count instead of the keys, until the search ends."""
        for box in self.query("#box"):
            keys = ", n N next and previous match" if event.view.search.matches.lines else ""
            box.border_subtitle = f"{event.text}{keys}" if event.text else self.keys_text()
