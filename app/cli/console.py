"""What headless verbs say to a person: progress, the script's printout, errors, tables."""

from __future__ import annotations

import sys
from typing import TextIO

from buddy.compiler.protocol import Diagnostic

_DETAIL_LINES = 20
_CLEAR = "\r\x1b[K"


class Console:
    """Progress and errors on stderr; the script's own printout on stdout, or on stderr when stdout is for data."""

    def __init__(self, plain: bool = False, stdout_is_data: bool = False) -> None:
        self._err: TextIO = sys.stderr
        self._script = sys.stderr if stdout_is_data else sys.stdout
        self._redraws = not plain and self._err.isatty()
        self._shown = ""

    def progress(self, what: str) -> None:
        """Say what is going on: in place on a terminal, elsewhere a line whenever another kind of work begins."""
        if self._redraws:
            self._err.write(f"{_CLEAR}{what[:100]}")
        elif what.split(maxsplit=1)[:1] != self._shown.split(maxsplit=1)[:1]:
            self._err.write(f"{what}\n")
        self._shown = what
        self._err.flush()

    def done(self) -> None:
        """Take the progress off the screen."""
        if self._redraws and self._shown:
            self._err.write(_CLEAR)
            self._err.flush()
        self._shown = ""

    def printed(self, text: str, stream: str) -> None:
        """Pass on what the script printed."""
        self.done()
        out = self._err if stream == "stderr" else self._script
        out.write(text)
        out.flush()

    def note(self, text: str) -> None:
        self.done()
        print(text, file=self._err)

    def error(self, found: Diagnostic, subject: str = "") -> None:
        """What happened (to `subject`), where, what to do, and what the tools said."""
        self.done()
        lines = [f"error{subject and f' in {subject}'}: {found.what}"]
        lines += [f"  {name}: {text}" for name, text in (("where", found.where), ("to do", found.todo)) if text]
        detail = found.detail.strip().splitlines()
        lines += [f"  | {line}" for line in detail[-_DETAIL_LINES:]]
        print("\n".join(lines), file=self._err)
