"""Finds the user's own `mlir-opt` without running it. Does not import MLIR.

`BUDDY_MLIR_OPT` names it, by path or by a name on the path; the default is the `mlir-opt` on the path, if any.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.protocol.errors import BuddyError

TOOL_VARIABLE = "BUDDY_MLIR_OPT"
_NAME = "mlir-opt"


class ToolError(BuddyError):
    """The tool failed or was not found.

    The text is the tool's first message, `detail` its complete output, and `node_set` the number (in `LocationSets`) of
    the set of nodes that the message is about, 0 if unknown.
    """

    def __init__(self, message: str, detail: str = "", node_set: int = 0) -> None:
        super().__init__(message)
        self.detail, self.node_set = detail, node_set


@dataclass(frozen=True)
class MlirTool:
    """An executable with the interface of `mlir-opt`.

    `path` is absolute; `state` is the file's size in bytes and its modification time in nanoseconds.
    """

    path: str
    state: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def identity(self) -> str:
        """Returns a text that changes with the executable."""
        return f"{self.path} {self.state}"


def find_tool() -> MlirTool | None:
    """Returns the tool in use, or `None`. Raises `ToolError` if `BUDDY_MLIR_OPT` does not name an executable."""
    configured = os.environ.get(TOOL_VARIABLE, "")
    path = shutil.which(configured or _NAME)
    if path is None:
        if configured:
            raise ToolError(
                f"{TOOL_VARIABLE}={configured} is not executable: set it to the path of your mlir-opt, or unset it"
            )
        return None
    status = os.stat(path)
    return MlirTool(os.path.abspath(path), (status.st_size, status.st_mtime_ns))


def tool_identity() -> str:
    """Returns a text that changes with the tool in use; "" if there is no tool or `BUDDY_MLIR_OPT` is invalid."""
    try:
        current = find_tool()
    except ToolError:
        return ""
    return current.identity if current is not None else ""
