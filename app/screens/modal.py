"""A screen over the workbench that answers once."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, ScreenResultType


class AnsweringScreen(ModalScreen[ScreenResultType]):
    """A screen that is left by an answer; what comes after it, such as a second `enter` pressed at once, is nobody's.

    Textual would take another screen away for it, and in the end the workbench's own.
    """

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self.app.screen is not self:
            return AwaitComplete.nothing()
        return super().dismiss(result)

    def set_box_title(self, title: str) -> None:
        """Set the title of the screen's box. Work that a closed screen began may end later: there is no box then."""
        for box in self.query("#box"):
            box.border_title = title
