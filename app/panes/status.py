"""The message on the status line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.timer import Timer

MESSAGE_SECONDS = 6.0


class Status:
    """Shows a message for `MESSAGE_SECONDS`. `redraw` updates the header, the status line and the keys."""

    def __init__(self, app: App[Any], redraw: Callable[[], None]) -> None:
        self._app = app
        self._silence: Timer | None = None
        self.redraw = redraw
        self.message = ""

    def say(self, message: str) -> None:
        """Show a message for a few seconds."""
        self.message = message
        if self._silence is not None:
            self._silence.stop()
        self._silence = self._app.set_timer(MESSAGE_SECONDS, self.clear)
        self.redraw()

    def clear(self) -> None:
        """Remove the message."""
        self.message = ""
        self.redraw()
