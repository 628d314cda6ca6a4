"""Helpers of graph passes: replace nodes, describe the changes in notes, and insert observers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, new_op
from buddy.compiler.graph.operations.effects import OBSERVE_TARGET, ObserveOp
from buddy.compiler.protocol.errors import BuddyError


def replace_node(graph: Graph, node: Op, cls: type[Op], target: str, args: list[object], **kwargs: object) -> Op:
    """Replaces `node` by a new node of class `cls` with the same names and the meta of the first result.

    `target` is the torch op that runs the new node in eager. `args` and `kwargs` are the arguments of the new node;
    keyword arguments that are `None` are omitted.
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
    """Returns a name that no node of the graph has: `base`, or `base` with a number."""
    number, name = 0, base
    while name in graph.node_table:
        number += 1
        name = f"{base}_{number}"
    return name


def bypass_getitems(graph: Graph, node: Op) -> None:
    """Makes the readers of the `GetItemOp`s of `node` read `node` itself. All of them must pick the first result."""
    for getitem in list(node._children):
        for reader in list(getitem._children):
            graph.replace_argument(reader, getitem, node)


# ---- graph passes and their results ----------------------------------------------------------------------------------


class TransformError(BuddyError):
    """A graph pass is unknown, or rejects the graph or its options; the message has the reason."""


class Note(NamedTuple):
    """What a pass did to a node, or why it did nothing; `node` is the node's stable name."""

    node: str
    text: str


# A graph pass rewrites the graph in place. Options are keyword arguments with defaults.
Transform = Callable[..., list[Note] | None]


# ---- observers -------------------------------------------------------------------------------------------------------

# The option of `observe` for all nodes that can be observed.
ALL_NODES = "*"
# In an option of `observe`, separates the observed node from the node that the observer follows.
AFTER_SEPARATOR = "@"
# The stable name of an observer is this prefix followed by the stable name of the observed node.
OBSERVER_PREFIX = "observe:"


def observe(graph: Graph, nodes: str = ALL_NODES) -> list[Note]:
    """Pass the named nodes to the observer of a run, or all nodes for `*`; NODE@OTHER observes NODE after OTHER.

    Names are stable names, separated by spaces. An observed value is stored in memory, which prevents fusion across it.
    Raises `TransformError` for an unknown name.
    """
    requests = list(_parse_requests(graph, nodes))
    observers: dict[Op, list[Op]] = {}
    for node, predecessor in requests:
        observers.setdefault(predecessor, []).append(_observer(graph, node, predecessor))
    graph.body = [new for op in graph.body for new in (op, *observers.get(op, ()))]
    return [Note(node.stable, "is passed to the observer of a run") for node, _ in requests]


def observed_nodes(graph: Graph) -> tuple[str, ...]:
    """Returns the stable names of the nodes that a run of `graph` observes, in the order of the run."""
    return tuple(op.args[0].stable for op in graph.operations if isinstance(op, ObserveOp))


def is_observable(node: Op) -> bool:
    """True if the result of `node` is one tensor that is not empty."""
    return not node.multiple and bool(node.metas) and node.metas[0] is not None and 0 not in node.metas[0].shape


def _parse_requests(graph: Graph, nodes: str) -> Iterator[tuple[Op, Op]]:
    """Yields each node to observe, and the node after which to observe it.

    Raises `TransformError` for an unknown name.
    """
    if nodes.strip() == ALL_NODES:
        yield from ((op, op) for op in graph.operations if is_observable(op))
        return
    nodes_by_name = {op.stable: op for op in graph.operations}
    for text in nodes.split():
        name, _, predecessor = text.partition(AFTER_SEPARATOR)
        for stable_name in (name, predecessor or name):
            if stable_name not in nodes_by_name:
                raise TransformError(f"{graph.name} has no op node {stable_name!r}")
        if is_observable(nodes_by_name[name]):
            yield nodes_by_name[name], nodes_by_name[predecessor or name]


def _observer(graph: Graph, node: Op, predecessor: Op) -> Op:
    """Returns a node that observes `node` after `predecessor`, in the module (and so the function) of `predecessor`."""
    observer = new_op(ObserveOp, fresh_name(graph, f"observe_{node.name}"), OBSERVE_TARGET, [node], [None])
    observer.stable = OBSERVER_PREFIX + node.stable
    observer.module, observer.location = predecessor.module, predecessor.location
    return observer
