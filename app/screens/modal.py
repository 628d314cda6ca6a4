"""The base of modal screens that return one answer."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, ScreenResultType


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
