"""Determines why Dynamo broke a graph, and at which line of the user's code."""

from __future__ import annotations

from typing import Any, NamedTuple

from buddy.compiler.frontend.aten import AtenGraph
from buddy.compiler.frontend.names import is_library

# The start of Dynamo's reason for a branch on a tensor, and the text to show instead; other reasons are readable.
_JUMP, _BRANCH = "generic_jump", "a branch on a tensor's value"


class GraphBreak(NamedTuple):
    """The reason and the line (`file:line`); both "" if the graph ends with its function."""

    reason: str = ""
    line: str = ""


NO_BREAK = GraphBreak()


def graph_break(aten: AtenGraph) -> GraphBreak:
    """Why and where the Dynamo graph of `aten` ended; for a piece of a graph, why the graph was cut.

    A backward graph has no break: the break is reported for its forward graph.
    """
    if aten.part:
        return GraphBreak(*aten.ends)
    reason: Any = getattr(aten.dynamo, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break or aten.kind == "backward":
        return NO_BREAK
    frames = [frame for frame in reason.user_stack if not is_library(frame.filename)]
    line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return GraphBreak(_first_line(str(reason.reason)), line)


def _first_line(reason: str) -> str:
    """The first line of Dynamo's message; hints and links follow it."""
    line = next((text.strip() for text in reason.splitlines() if text.strip()), "")
    return _BRANCH if line.startswith(_JUMP) else line
