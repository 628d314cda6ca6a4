"""Frames that extract a subgraph, and that write a graph as a script."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.plain_values import GraphInfo
from buddy.compiler.protocol.recipe import Recipe


class Extract(Request["Extracted"], frozen=True):
    """Make a graph of the `nodes` (stable or FX names) of the graph of `recipe`, with their real inputs.

    Answered by `Extracted`.

    It becomes another graph of the program until the program is opened again; the same nodes give the same graph.
    """

    recipe: Recipe
    nodes: tuple[str, ...]


class Extracted(Frame, frozen=True):
    """The new graph, and its number as recipes name it."""

    request: int
    graph: int
    info: GraphInfo


class WriteScript(Request["Script"], frozen=True):
    """Write the graph of `recipe` as a script that needs only torch; answered by `Script`."""

    recipe: Recipe


class Script(Frame, frozen=True):
    """A script to be saved as `name`.py, and the tensors that it reads, to be saved next to it as `name`.npz."""

    request: int
    name: str
    text: str
    values: bytes
