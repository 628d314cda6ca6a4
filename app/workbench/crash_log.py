"""Appends the traceback of an internal error to a file, because the user of a workbench never sees a traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

from buddy.compiler.protocol import Diagnostic


def save_crash_log(error: BaseException, path: Path, effect: str = "the workbench stopped") -> Diagnostic:
    """Append the traceback of `error` to the file at `path`, if possible. Returns the message for the user.

    `effect` says what the error has caused.
    """
    message = f"{effect}: {type(error).__name__}: {error}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return Diagnostic(message)
    return Diagnostic(message, todo=f"the traceback is in {path}")
