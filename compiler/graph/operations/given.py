"""Nodes of graphs that begin as IR: what the graph's table shows of them; the IR itself says what they compute."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


class GivenOp(Op):
    """An op of the IR that a graph comes with; `target` is its name there."""

    only_eager = "the graph begins as IR, which has no eager program beside it"


class ResultOp(Op):
    """What a graph that begins as IR gives: a result, or a buffer that it has written to."""

    only_eager = GivenOp.only_eager
