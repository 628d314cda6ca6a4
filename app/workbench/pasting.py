"""Pasted text stays text: escape sequences inside it are removed before Textual parses them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.message import Message

START, END = "\x1b[200~", "\x1b[201~"
_ESCAPE = "\x1b"
_KEPT = "\n\r\t"


class PasteParser(XTermParser):
    """Textual's input parser, except that escape sequences in pasted text are not parsed as keys."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._recent = ""
        self._pending = ""
        self._pasting = False

    def feed(self, data: str) -> Iterable[Message]:
        """The events of `data`; an empty string is the end of the input."""
        left = "".join(map(self._parsable_text, data))
        return super().feed(left) if left or not data else ()

    def _parsable_text(self, character: str) -> str:
        """The input up to `character` that can be parsed now. Paste markers may be split between reads."""
        if not self._pasting:
            self._recent = (self._recent + character)[-len(START) :]
            self._pasting = self._recent == START
            return character
        self._pending += character
        if self._pending == END:
            self._pasting, self._pending, self._recent = False, "", ""
            return END
        if END.startswith(self._pending):
            return ""
        at = self._pending.rfind(_ESCAPE)
        text, self._pending = (self._pending, "") if at < 1 else (self._pending[:at], self._pending[at:])
        return "".join(each for each in text if each >= " " or each in _KEPT)


def read_pastes_as_text(driver: type[Driver]) -> None:
    """Make the drivers in the module of `driver` parse escape sequences with `PasteParser`."""
    module = sys.modules[driver.__module__]
    if hasattr(module, "XTermParser"):
        module.XTermParser = PasteParser  # type: ignore[attr-defined]
