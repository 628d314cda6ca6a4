"""A yes-or-no question."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from buddy.app.screens.modal import AnsweringScreen


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
