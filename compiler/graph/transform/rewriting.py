"""Functions that graph passes share."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import GetItemOp, Op


def replaced(graph: Graph, node: Op, cls: type[Op], target: str, args: list[Any], **kwargs: Any) -> Op:
    """Replaces `node` by a node of class `cls` that has its names and one result, of the type of its first result.

    `target` is the torch op that runs the new node in eager. `args` and `kwargs` are its arguments; keyword arguments
    that are `None` are omitted.
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
    """Returns a name that the graph does not have: `base`, or `base` with a number."""
    number, name = 0, base
    while name in graph.node_table:
        number += 1
        name = f"{base}_{number}"
    return name


def only_first_result(node: Op) -> bool:
    """True if only the first result of a node with several results is read."""
    return all(isinstance(reader, GetItemOp) and reader.args[1] == 0 for reader in node._children)


def take_first_result(graph: Graph, node: Op) -> None:
    """Makes the readers of the `GetItemOp`s of `node` read `node` itself, which has only one result now."""
    for getitem in list(node._children):
        for reader in list(getitem._children):
            graph.replace_argument(reader, getitem, node)
