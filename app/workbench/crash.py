"""A mistake of the workbench's own: it goes to a file, and the user is told which."""

from __future__ import annotations

import traceback
from pathlib import Path

from buddy.compiler.protocol import Diagnostic


def kept(error: BaseException, path: Path, what: str = "the workbench stopped") -> Diagnostic:
    """What to tell of `error`, whose traceback is added to the file at `path` where that can be written."""
    what = f"{what}: {type(error).__name__}: {error}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return Diagnostic(what)
    return Diagnostic(what, todo=f"what led to it is in {path}")
