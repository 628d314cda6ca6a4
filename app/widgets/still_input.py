"""An input line with a steady cursor."""

from __future__ import annotations

from textual.reactive import var
from textual.widgets import Input


class StillInput(Input):
    """An input without cursor blinking, which would cause traffic over ssh twice a second."""

    cursor_blink = var(False, init=False)
