"""A line of input whose cursor does not blink."""

from __future__ import annotations

from textual.reactive import var
from textual.widgets import Input


class StillInput(Input):
    """An idle screen sends nothing: over ssh a blinking cursor is traffic twice a second."""

    cursor_blink = var(False, init=False)
