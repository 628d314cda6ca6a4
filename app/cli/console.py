"""The text output of headless verbs: progress, the script's output, notes and errors."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import diagnostic_text

_MAX_PROGRESS_WIDTH = 100
# The width of a terminal that does not report one.
_DEFAULT_COLUMNS = 80
# Return to column 1, and erase to the end of the line.
_CLEAR_LINE = "\r\x1b[K"


class Console:
    """Writes progress, notes and errors to stderr, and output of the script and of the verb to stdout.

    With `stdout_is_data`, this output goes to stderr too, because stdout is for the data that the verb prints. With
    `plain`, no line is redrawn.
    """

    def __init__(self, plain: bool = False, stdout_is_data: bool = False) -> None:
        self._stderr: TextIO = sys.stderr
        self._stdout = sys.stderr if stdout_is_data else sys.stdout
        self._redraws = not plain and self._stderr.isatty()
        self._progress = ""
        # Whether the last output is an unfinished line, in the terminal, pipe or file to which stderr also writes.
        self._is_within_line = False

    def progress(self, text: str) -> None:
        """Shows progress. On a terminal, it replaces the previous progress.

        In a pipe or a file, it is a new line, unless its first word, such as "compiling", is the same as before: a log
        has one line for each activity.
        """
        self._end_line()
        if self._redraws:
            self._stderr.write(f"{_CLEAR_LINE}{text[: min(_MAX_PROGRESS_WIDTH, _columns(self._stderr) - 1)]}")
        elif text.split(maxsplit=1)[:1] != self._progress.split(maxsplit=1)[:1]:
            self._stderr.write(f"{text}\n")
        self._progress = text
        self._stderr.flush()

    def clear_progress(self) -> None:
        """Erases the progress, and forgets it."""
        self._erase_progress()
        self._end_line()
        self._progress = ""

    def _erase_progress(self) -> None:
        if self._redraws and self._progress and not self._is_within_line:
            self._stderr.write(_CLEAR_LINE)
            self._stderr.flush()

    def _end_line(self) -> None:
        """Ends an unfinished line of output, so that the next message neither erases nor continues it."""
        if self._is_within_line:
            self._stderr.write("\n")
            self._is_within_line = False

    def print_output(self, text: str, stream: str = "stdout") -> None:
        """Prints output of the script, or of the verb, that belongs on `stream`: "stdout" or "stderr"."""
        if not text:
            return
        self._erase_progress()
        out = self._stderr if stream == "stderr" else self._stdout
        out.write(text)
        out.flush()
        self._is_within_line = not text.endswith("\n") and _write_to_same_place(out, self._stderr)

    def note(self, text: str) -> None:
        """Prints a line to stderr."""
        self._erase_progress()
        self._end_line()
        print(text, file=self._stderr)

    def error(self, diagnostic: Diagnostic, context: str = "") -> None:
        """Prints a diagnostic: what happened, where, what to do, and the last lines of its detail.

        `context` names what the error is in, such as "graph 1".
        """
        self._erase_progress()
        self._end_line()
        print(diagnostic_text(diagnostic, f"error{context and f' in {context}'}"), file=self._stderr)


def _columns(stream: TextIO) -> int:
    """The width of the terminal of `stream`."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
    except (OSError, ValueError):
        return _DEFAULT_COLUMNS


def _write_to_same_place(a: TextIO, b: TextIO) -> bool:
    """Whether both streams write to the same terminal, pipe or file."""
    try:
        return a is b or os.path.sameopenfile(a.fileno(), b.fileno())
    except (OSError, ValueError):
        return False
