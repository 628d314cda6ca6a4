"""Nodes of imported graphs, which only list the ops of the imported module: that module is compiled."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


class GivenOp(Op):
    """An op of an imported module; `target` is the op's name in it."""

    only_eager = "the graph is an imported module without an eager program"


class ResultOp(Op):
    """A result of an imported graph, or a buffer that it writes to."""

    only_eager = GivenOp.only_eager
