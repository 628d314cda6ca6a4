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
