"""Rewriting functions that graph passes share, their notes on nodes, and the insertion of observers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, new_op
from buddy.compiler.graph.operations.effects import OBSERVE, ObserveOp


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


class TransformError(Exception):
    """A graph pass rejects the graph, or its options; the text says why and where."""


class Note(NamedTuple):
    """What a pass did to a node, or why it did nothing; `node` is the node's stable name."""

    node: str
    text: str


# A graph pass rewrites the graph in place. Options are keyword arguments with defaults.
Transform = Callable[..., list[Note] | None]


EVERY = "*"
BEHIND = "@"
# Prefix of the stable name of an observing node; that of the observed node follows.
SHOWS = "observe:"


def observe(graph: Graph, nodes: str = EVERY) -> list[Note]:
    """Pass nodes to the observer of a run: those named, or all for `*`; NODE@OTHER observes NODE after OTHER.

    Names are stable names, separated by blanks. An observed value is stored completely, which prevents the fusion of
    ops around it.
    """
    wanted = list(_wanted(graph, nodes))
    observers: dict[Op, list[Op]] = {}
    for node, place in wanted:
        observers.setdefault(place, []).append(_observer(graph, node, place))
    graph.body = [found for op in graph.body for found in (op, *observers.get(op, ()))]
    return [Note(node.stable, "is passed to the observer of a run") for node, _ in wanted]


def observed(graph: Graph) -> tuple[str, ...]:
    """Returns the stable names of the nodes that a run of `graph` observes, in the order of the run."""
    return tuple(op.args[0].stable for op in graph.operations if isinstance(op, ObserveOp))


def can_be_shown(node: Op) -> bool:
    """True if a node has a tensor result with elements."""
    return not node.multiple and bool(node.metas) and node.metas[0] is not None and 0 not in node.metas[0].shape


def _wanted(graph: Graph, nodes: str) -> Iterator[tuple[Op, Op]]:
    """Yields each node to be observed, and the node to observe it after.

    Raises `TransformError` for an unknown name.
    """
    if nodes.strip() == EVERY:
        yield from ((op, op) for op in graph.operations if can_be_shown(op))
        return
    known = {op.stable: op for op in graph.operations}
    for text in nodes.split():
        name, _, behind = text.partition(BEHIND)
        for part in (name, behind or name):
            if part not in known:
                raise TransformError(f"{graph.name} has no node {part!r} that computes a value")
        if can_be_shown(known[name]):
            yield known[name], known[behind or name]


def _observer(graph: Graph, node: Op, place: Op) -> Op:
    """Returns a node that observes `node`, in the module of `place`, which determines its function."""
    found = new_op(ObserveOp, fresh_name(graph, f"observe_{node.name}"), OBSERVE, [node], [None])
    found.stable = SHOWS + node.stable
    found.module, found.location = place.module, place.location
    return found
