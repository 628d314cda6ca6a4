"""Assertions: nodes without results that raise if a condition does not hold."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


class AssertOp(Op):
    """Raises an error with the second argument as its message if the only element of the first is 0."""

    has_effect = True
    targets = ("_assert_async.msg",)
