"""The text output of headless verbs: progress, the script's output, errors, tables."""

from __future__ import annotations

import sys
from typing import TextIO

from buddy.compiler.protocol import Diagnostic

_DETAIL_LINES = 20
_CLEAR = "\r\x1b[K"


class Console:
    """Writes progress and errors to stderr, and the script's output to stdout, or to stderr if stdout is for data."""

    def __init__(self, plain: bool = False, stdout_is_data: bool = False) -> None:
        self._err: TextIO = sys.stderr
        self._script = sys.stderr if stdout_is_data else sys.stdout
        self._redraws = not plain and self._err.isatty()
        self._shown = ""

    def progress(self, what: str) -> None:
        """Show progress: in place on a terminal, elsewhere one line for each new kind of work."""
        if self._redraws:
            self._err.write(f"{_CLEAR}{what[:100]}")
        elif what.split(maxsplit=1)[:1] != self._shown.split(maxsplit=1)[:1]:
            self._err.write(f"{what}\n")
        self._shown = what
        self._err.flush()

    def done(self) -> None:
        """Clear the progress line."""
        if self._redraws and self._shown:
            self._err.write(_CLEAR)
            self._err.flush()
        self._shown = ""

    def printed(self, text: str, stream: str) -> None:
        """Print the output of the script."""
        self.done()
        out = self._err if stream == "stderr" else self._script
        out.write(text)
        out.flush()

    def note(self, text: str) -> None:
        self.done()
        print(text, file=self._err)

    def error(self, found: Diagnostic, subject: str = "") -> None:
        """Print a diagnostic (of `subject`): what happened, where, what to do, and the messages of the tools."""
        self.done()
        lines = [f"error{subject and f' in {subject}'}: {found.what}"]
        lines += [f"  {name}: {text}" for name, text in (("where", found.where), ("to do", found.todo)) if text]
        detail = found.detail.strip().splitlines()
        lines += [f"  | {line}" for line in detail[-_DETAIL_LINES:]]
        print("\n".join(lines), file=self._err)
