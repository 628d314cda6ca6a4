"""Finds the user's own `mlir-opt` without running it. Imports no MLIR.

`BUDDY_MLIR_OPT` names it, by path or by a name on the path; the default is the `mlir-opt` on the path, if any.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "BUDDY_MLIR_OPT"
_NAME = "mlir-opt"


class ToolError(Exception):
    """The tool failed or was not found.

    Holds its first message, its whole output, and the number of the set of nodes that the message is about (0: none).
    """

    def __init__(self, message: str, detail: str = "", place: int = 0) -> None:
        super().__init__(message)
        self.detail, self.place = detail, place


@dataclass(frozen=True)
class MlirTool:
    """An executable with the interface of `mlir-opt`: its full path and its state on disk."""

    path: str
    state: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def identity(self) -> str:
        """Returns a text that changes with the executable."""
        return f"{self.path} {self.state}"


def tool() -> MlirTool | None:
    """Returns the tool in use, or `None`. Raises `ToolError` if the variable names nothing that can be executed."""
    asked = os.environ.get(VARIABLE, "")
    found = shutil.which(asked or _NAME)
    if found is None:
        if asked:
            raise ToolError(f"{VARIABLE}={asked} is not executable: set it to the path of your mlir-opt, or unset it")
        return None
    status = os.stat(found)
    return MlirTool(os.path.abspath(found), (status.st_size, status.st_mtime_ns))


def identity() -> str:
    """Returns a text that changes with the tool in use; "" without one, or if the variable names none."""
    try:
        found = tool()
    except ToolError:
        return ""
    return found.identity if found is not None else ""
