"""Internal errors: the traceback is written to a file, and the message names the file."""

from __future__ import annotations

import traceback
from pathlib import Path

from buddy.compiler.protocol import Diagnostic


def save_crash_log(error: BaseException, path: Path, what: str = "the workbench stopped") -> Diagnostic:
    """Append the traceback of `error` to the file at `path`, if possible. Returns the message for the user."""
    what = f"{what}: {type(error).__name__}: {error}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return Diagnostic(what)
    return Diagnostic(what, todo=f"the traceback is in {path}")
