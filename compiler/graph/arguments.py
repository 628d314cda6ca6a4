"""Reads the arguments of nodes, whether they are passed by position or by name."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op


def argument(node: Op, position: int, name: str, default: Any = None) -> Any:
    """Returns an argument of `node`, passed by position or by name, else `default`."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)


def normalized(dim: int, rank: int) -> int:
    """Returns a dimension counted from the front; a rank of 0 counts as 1, as in PyTorch."""
    return dim + max(rank, 1) if dim < 0 else dim


def permutation_of(node: Op) -> list[int]:
    """Returns the operand's dims in the order of the result's, for a node that transposes or permutes."""
    rank = len(node.tensor_meta.shape)
    if len(node.args) == 1:
        return list(range(rank))[::-1]
    if len(node.args) == 2:
        return [normalized(dim, rank) for dim in node.args[1]]
    order = list(range(rank))
    first, second = normalized(node.args[1], rank), normalized(node.args[2], rank)
    if rank:
        order[first], order[second] = order[second], order[first]
    return order
