"""The input line at the bottom for a search, a filter or a file name."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region
from textual.message import Message
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import Input, Static

# The minimum width of the input next to its title, in columns.
MIN_INPUT_WIDTH = 48
# The keys that end a prompt, each with its label.
KEYS = (("enter", "accepts"), ("escape", "cancels"))


class StillInput(Input):
    """An input without cursor blinking, which would cause traffic over ssh twice a second."""

    cursor_blink = var(False, init=False)

    def on_resize(self) -> None:
        """Scrolls to the cursor, which `Input` does only when the cursor moves."""
        self.scroll_to_region(Region(self._cursor_offset, 0, width=1, height=1), force=True, animate=False)


class PromptWatcher(Protocol):
    """Follows what the user types in a prompt."""

    def text_changed(self, text: str) -> None:
        """Called when the user has changed the text."""

    def step_requested(self, by: int) -> None:
        """Called with 1 for the down key, with -1 for the up key."""

    def cancelled(self) -> None:
        """Called when the user has cancelled the prompt."""


class Prompt(Horizontal):
    """The input line, hidden until `ask`. When the user accepts or cancels, it hides again and restores the focus."""

    class Toggled(Message):
        """The prompt has been shown or hidden."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", "Cancel", show=False, priority=True),
        Binding("down", "step(1)", show=False),
        Binding("up", "step(-1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="prompt")
        self.title = ""
        self._use_answer: Callable[[str], object] | None = None
        self._watcher: PromptWatcher | None = None
        # The initial text, or the one that was passed to the watcher last.
        self._watched_text = ""
        self._previous_focus: Widget | None = None

    def compose(self) -> ComposeResult:
        yield Static("", markup=False)
        yield StillInput(compact=True)
        yield Static("", markup=False, id="prompt-note")

    def ask(
        self, title: str, initial: str, use_answer: Callable[[str], object], watcher: PromptWatcher | None = None
    ) -> None:
        """Shows the prompt with the text `initial`; when the user accepts, calls `use_answer` with the text.

        `watcher` is called while the user types. Only with a watcher, there is place for a note (`show_note`).
        """
        self._use_answer, self._watcher, self._watched_text = use_answer, watcher, initial
        # This class reserves the width of the note: if the input became narrower later, its cursor could leave it.
        self.set_class(watcher is not None, "-noted")
        if not self.display:
            self._previous_focus = self.screen.focused
        self.title = title
        self.query(Static).first().update(f" {title}: ")
        self._place_title()
        self.show_note("")
        field = self.query_one(Input)
        field.value = initial
        field.cursor_position = len(initial)
        self.display = True
        # The next key belongs to the prompt, and `field.focus` would move the focus only later.
        self.screen.set_focus(field)
        self.post_message(self.Toggled())

    def _place_title(self) -> None:
        """Puts the title above the input if less than `MIN_INPUT_WIDTH` columns are left next to the title."""
        title_width = len(f" {self.title}: ")
        self.set_class(title_width + MIN_INPUT_WIDTH > self.app.size.width, "-stacked")

    def on_resize(self) -> None:
        self._place_title()

    def show_note(self, text: str) -> None:
        """Shows `text` at the right end of the prompt; "" removes it."""
        self.query_one("#prompt-note", Static).update(f" {text} " if text else "")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._watcher is not None and event.value != self._watched_text:
            self._watched_text = event.value
            self._watcher.text_changed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        use_answer = self._use_answer
        # Hide first: `use_answer` may ask again.
        self._hide()
        if use_answer is not None:
            use_answer(event.value)

    def action_step(self, by: int) -> None:
        if self._watcher is not None:
            self._watcher.step_requested(by)

    def action_cancel(self) -> None:
        watcher = self._watcher
        self._hide()
        if watcher is not None:
            watcher.cancelled()

    def _hide(self) -> None:
        self.display = False
        self._use_answer = self._watcher = None
        if self._previous_focus is not None:
            self.screen.set_focus(self._previous_focus)
        self.post_message(self.Toggled())

    async def press(self, key: str) -> None:
        """Accepts or cancels, depending on `key`, which is one of `KEYS`."""
        if key == "escape":
            self.action_cancel()
        else:
            await self.query_one(Input).action_submit()
