"""The text output of headless verbs: progress, the script's output, notes and errors."""

from __future__ import annotations

import sys
from typing import TextIO

from buddy.compiler.protocol import Diagnostic

_MAX_DETAIL_LINES = 20
_MAX_PROGRESS_WIDTH = 100
# Return to column 1, and erase to the end of the line.
_CLEAR_LINE = "\r\x1b[K"


class Console:
    """Writes progress, notes and errors to stderr, and output to stdout.

    With `stdout_is_data`, all output goes to stderr. With `plain`, no line is redrawn.
    """

    def __init__(self, plain: bool = False, stdout_is_data: bool = False) -> None:
        self._stderr: TextIO = sys.stderr
        self._stdout = sys.stderr if stdout_is_data else sys.stdout
        self._redraws = not plain and self._stderr.isatty()
        self._progress = ""

    def progress(self, text: str) -> None:
        """Show progress: on a terminal, in place of the last one; elsewhere, only if its first word has changed."""
        if self._redraws:
            self._stderr.write(f"{_CLEAR_LINE}{text[:_MAX_PROGRESS_WIDTH]}")
        elif text.split(maxsplit=1)[:1] != self._progress.split(maxsplit=1)[:1]:
            self._stderr.write(f"{text}\n")
        self._progress = text
        self._stderr.flush()

    def clear_progress(self) -> None:
        if self._redraws and self._progress:
            self._stderr.write(_CLEAR_LINE)
            self._stderr.flush()
        self._progress = ""

    def print_output(self, text: str, stream: str = "stdout") -> None:
        """Print output of the script, or of the verb, that belongs on `stream`: "stdout" or "stderr"."""
        self.clear_progress()
        out = self._stderr if stream == "stderr" else self._stdout
        out.write(text)
        out.flush()

    def note(self, text: str) -> None:
        self.clear_progress()
        print(text, file=self._stderr)

    def error(self, diagnostic: Diagnostic, subject: str = "") -> None:
        """Print a diagnostic: what happened (in `subject`), where, what to do, and the last lines of its detail."""
        self.clear_progress()
        lines = [f"error{subject and f' in {subject}'}: {diagnostic.what}"]
        lines += [
            f"  {name}: {text}" for name, text in (("where", diagnostic.where), ("to do", diagnostic.todo)) if text
        ]
        detail = diagnostic.detail.strip().splitlines()
        lines += [f"  | {line}" for line in detail[-_MAX_DETAIL_LINES:]]
        print("\n".join(lines), file=self._stderr)
