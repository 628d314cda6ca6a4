"""Determines why Dynamo broke a graph, and at which line of the user's code."""

from __future__ import annotations

from typing import Any, NamedTuple

from buddy.compiler.frontend.aten import AtenGraph
from buddy.compiler.frontend.names import is_library

# Dynamo's name for Python's bytecode jumps, and its description; its other reasons begin with a readable line.
_JUMP, _BRANCH = "generic_jump", "a branch on a tensor's value"


class GraphBreak(NamedTuple):
    """The reason and the line (`file:line`); both "" if the graph ends with its function."""

    reason: str = ""
    line: str = ""


NO_BREAK = GraphBreak()


def graph_break(aten: AtenGraph) -> GraphBreak:
    """The position at which the Dynamo graph of `aten` ended, or the reason why `aten` is a piece of a graph.

    A backward graph ends with its forward graph, which has the break.
    """
    if aten.part:
        return GraphBreak(*aten.ends)
    found: Any = getattr(aten.dynamo, "compile_subgraph_reason", None)
    if found is None or not found.graph_break or aten.kind == "backward":
        return NO_BREAK
    frames = [frame for frame in found.user_stack if not is_library(frame.filename)]
    line = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return GraphBreak(_first_line(str(found.reason)), line)


def _first_line(reason: str) -> str:
    """The first line of Dynamo's message; hints and links follow it."""
    first = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return _BRANCH if first.startswith(_JUMP) else first
