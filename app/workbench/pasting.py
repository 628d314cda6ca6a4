"""What is pasted stays text: escape sequences inside of it are taken out before Textual reads them."""

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
    """Textual's reader of a terminal's input, which alone takes what follows an escape in a paste for keys."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._recent = ""
        self._held = ""
        self._pasting = False

    def feed(self, data: str) -> Iterable[Message]:
        """The events of `data`; "" says that there is no more input."""
        left = "".join(map(self._passed_on, data))
        return super().feed(left) if left or not data else ()

    def _passed_on(self, character: str) -> str:
        """What of the input up to `character` is to be read now. The marks come in parts where reads end."""
        if not self._pasting:
            self._recent = (self._recent + character)[-len(START) :]
            self._pasting = self._recent == START
            return character
        self._held += character
        if self._held == END:
            self._pasting, self._held, self._recent = False, "", ""
            return END
        if END.startswith(self._held):
            return ""
        at = self._held.rfind(_ESCAPE)
        text, self._held = (self._held, "") if at < 1 else (self._held[:at], self._held[at:])
        return "".join(each for each in text if each >= " " or each in _KEPT)


def read_pastes_as_text(driver: type[Driver]) -> None:
    """Have the drivers of `driver`'s module, where they read escape sequences, read them with `PasteParser`."""
    module = sys.modules[driver.__module__]
    if hasattr(module, "XTermParser"):
        module.XTermParser = PasteParser  # type: ignore[attr-defined]
