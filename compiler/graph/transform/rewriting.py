"""Rewriting functions that graph passes share."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import GetItemOp, Op


def replaced(graph: Graph, node: Op, cls: type[Op], target: str, args: list[Any], **kwargs: Any) -> Op:
    """Replaces `node` by a node of class `cls` with one result, which gets its names and its first result's type.

    `target` is the equivalent torch op, for running it in eager. Arguments that are `None` are omitted from `kwargs`.
    """
    new = cls()
    new.name, new.stable, new.target = node.name, node.stable, target
    metas = node.metas[:1]
    graph.displace_node(node, new)
    new._op_type = cls.op_type
    new.metas, new.multiple = metas, False
    graph.set_arguments(new, args, {key: value for key, value in kwargs.items() if value is not None})
    graph.link()
    return new


def fresh_name(graph: Graph, base: str) -> str:
    """Returns `base`, with the first number that makes it unique in the graph if necessary."""
    number, name = 0, base
    while name in graph.node_table:
        number += 1
        name = f"{base}_{number}"
    return name


def only_first_result(node: Op) -> bool:
    """True if only the first result of a node with several results is read."""
    return all(isinstance(reader, GetItemOp) and reader.args[1] == 0 for reader in node._children)


def take_first_result(graph: Graph, node: Op) -> None:
    """Makes readers of the first of several results read `node`, which now has one; the picking node becomes unused."""
    for picked in list(node._children):
        for reader in list(picked._children):
            graph.replace_argument(reader, picked, node)
