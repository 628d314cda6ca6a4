"""Nodes of imported graphs, for the graph's table; the imported module defines what they compute."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


class GivenOp(Op):
    """An op of an imported module; `target` is its name there."""

    only_eager = "the graph is an imported module without an eager program"


class ResultOp(Op):
    """A result of an imported graph, or a buffer that it has written to."""

    only_eager = GivenOp.only_eager
