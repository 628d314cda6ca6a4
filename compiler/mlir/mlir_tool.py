"""Which `mlir-opt` is the user's own, found without running it. Imports no MLIR.

`BUDDY_MLIR_OPT` names it, by path or by a name on the path; without it, it is the `mlir-opt` on the path, if there is
one.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "BUDDY_MLIR_OPT"
_NAME = "mlir-opt"


class ToolError(Exception):
    """The tool refused, or is none: its first message, all that it said, the set of nodes it said it of (0: none)."""

    def __init__(self, message: str, detail: str = "", place: int = 0) -> None:
        super().__init__(message)
        self.detail, self.place = detail, place


@dataclass(frozen=True)
class Tool:
    """An executable that works as `mlir-opt` does, by its whole path and its state on disk."""

    path: str
    state: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def identity(self) -> str:
        """What is another text once the executable is another one."""
        return f"{self.path} {self.state}"


def tool() -> Tool | None:
    """The tool in use, `None` where there is none. Raises `ToolError` where the variable names nothing that runs."""
    asked = os.environ.get(VARIABLE, "")
    found = shutil.which(asked or _NAME)
    if found is None:
        if asked:
            raise ToolError(f"{VARIABLE}={asked} is no executable: set it to the path of your mlir-opt, or unset it")
        return None
    status = os.stat(found)
    return Tool(os.path.abspath(found), (status.st_size, status.st_mtime_ns))


def identity() -> str:
    """What is another text once the tool in use is another one; "" without one, or with a variable that names none."""
    try:
        found = tool()
    except ToolError:
        return ""
    return found.identity if found is not None else ""
