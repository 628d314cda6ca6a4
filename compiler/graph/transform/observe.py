"""Nodes whose values a run shows while it lasts."""

from __future__ import annotations

from collections.abc import Iterator

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op, new_op
from buddy.compiler.graph.operations.observing import OBSERVE, ObserveOp
from buddy.compiler.graph.transform.notes import Note, TransformError
from buddy.compiler.graph.transform.rewriting import fresh_name

EVERY = "*"
BEHIND = "@"
# What the stable name of a node that shows another one begins with; that one's follows.
SHOWS = "observe:"


def observe(graph: Graph, nodes: str = EVERY) -> list[Note]:
    """Nodes named are shown to the observer of a run, all where none is; NODE@OTHER is shown behind OTHER.

    Names are stable ones, with blanks between them. A value that is shown has to be in memory whole: ops that would
    have been fused are not where it lies between them.
    """
    wanted = list(_wanted(graph, nodes))
    behind: dict[Op, list[Op]] = {}
    for node, place in wanted:
        behind.setdefault(place, []).append(_shown(graph, node, place))
    graph.body = [found for op in graph.body for found in (op, *behind.get(op, ()))]
    return [Note(node.stable, "is shown to the observer of a run") for node, _ in wanted]


def observed(graph: Graph) -> tuple[str, ...]:
    """The stable names of the nodes that a run of `graph` shows, in the order in which it does."""
    return tuple(op.args[0].stable for op in graph.operations if isinstance(op, ObserveOp))


def can_be_shown(node: Op) -> bool:
    """Whether a node gives a tensor with elements, to look at."""
    return not node.multiple and bool(node.metas) and node.metas[0] is not None and 0 not in node.metas[0].shape


def _wanted(graph: Graph, nodes: str) -> Iterator[tuple[Op, Op]]:
    """Each node to be shown, and behind which one. Raises `TransformError` for a name that no node has."""
    if nodes.strip() == EVERY:
        yield from ((op, op) for op in graph.operations if can_be_shown(op))
        return
    known = {op.stable: op for op in graph.operations}
    for text in nodes.split():
        name, _, behind = text.partition(BEHIND)
        for part in (name, behind or name):
            if part not in known:
                raise TransformError(f"{graph.name} has no node {part!r} that computes something")
        if can_be_shown(known[name]):
            yield known[name], known[behind or name]


def _shown(graph: Graph, node: Op, place: Op) -> Op:
    """A node that shows `node`, in the module that `place` is in, since that says which function it goes to."""
    found = new_op(ObserveOp, fresh_name(graph, f"observe_{node.name}"), OBSERVE, [node], [None])
    found.stable = SHOWS + node.stable
    found.module, found.location = place.module, place.location
    return found
