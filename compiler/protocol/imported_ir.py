"""IR that comes with a graph, instead of being lowered node by node."""

from __future__ import annotations

import msgspec


class ImportedIR(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module as text, whose arguments are the graph's placeholders and whose results are the graph's results.

    `phase` is the phase of the pipeline that it enters, `entry` the name of the entry function ("" if only one function
    is public). Every op names the nodes that it comes from by a name location, `loc("linear_1")`, or by several fused
    ones.

    `frontend` is the frontend that produced it in addition to the nodes; a recipe may compile the nodes instead. If it
    is "", only the IR can be compiled.
    """

    text: str
    phase: str = "toplevel"
    entry: str = ""
    frontend: str = ""
