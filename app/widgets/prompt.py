"""The input line at the bottom for a search, a filter or a file name."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import Input, Static

# The minimum width of the input next to its title, in columns.
MIN_INPUT = 48


class StillInput(Input):
    """An input without cursor blinking, which would cause traffic over ssh twice a second."""

    cursor_blink = var(False, init=False)


class Prompt(Horizontal):
    """Hidden until `ask`. When the user accepts or cancels, it hides again and restores the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "cancel", "Cancel", show=False, priority=True)]

    def __init__(self) -> None:
        super().__init__(id="prompt")
        self._title = ""
        self._use_answer: Callable[[str], object] | None = None
        self._previous_focus: Widget | None = None

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)
        yield StillInput(compact=True)

    def ask(self, title: str, initial: str, use_answer: Callable[[str], object]) -> None:
        """Ask for a text, and call `use_answer` with it unless the user cancels."""
        self._use_answer = use_answer
        if not self.display:
            self._previous_focus = self.screen.focused
        self._title = title
        self.query_one(Static).update(f" {title}: ")
        self._fit()
        field = self.query_one(Input)
        field.value = initial
        field.cursor_position = len(initial)
        self.display = True
        # Not `focus`, which moves the focus later: the next key belongs to the prompt.
        self.screen.set_focus(field)

    def _fit(self) -> None:
        """Put the title above the input if it would leave less than `MIN_INPUT` columns for it."""
        self.set_class(len(self._title) + 3 + MIN_INPUT > self.app.size.width, "-stacked")

    def on_resize(self) -> None:
        self._fit()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        use_answer = self._use_answer
        # Hide first: `use_answer` may ask again.
        self.action_cancel()
        if use_answer is not None:
            use_answer(event.value)

    def action_cancel(self) -> None:
        self.display = False
        self._use_answer = None
        if self._previous_focus is not None:
            self.screen.set_focus(self._previous_focus)
