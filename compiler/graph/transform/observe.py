"""Inserts nodes that pass values to the observer of a run."""

from __future__ import annotations

from collections.abc import Iterator

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op, new_op
from buddy.compiler.graph.operations.observing import OBSERVE, ObserveOp
from buddy.compiler.graph.transform.notes import Note, TransformError
from buddy.compiler.graph.transform.rewriting import fresh_name

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
