"""IR that a graph comes with, instead of being lowered node by node."""

from __future__ import annotations

import msgspec


class GivenIR(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module as text, which has the graph's placeholders for arguments and the graph's results for results.

    `phase` is the phase of the line that it enters at, `entry` the name of the function that is called ("" where there
    is only one that is public). Every op says by a name location, `loc("linear_1")`, or by several fused, which nodes
    it comes from.

    `frontend` is the frontend that made it beside the nodes, which a recipe may compile instead; where it is "", there
    is nothing else to compile.
    """

    text: str
    phase: str = "toplevel"
    entry: str = ""
    frontend: str = ""
