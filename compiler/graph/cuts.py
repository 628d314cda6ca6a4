"""Splits a long sequence of nodes into parts of similar length, at positions with few live values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buddy.compiler.graph.operation import GetItemOp, Op


def split_nodes(nodes: Sequence[Op], uses: Mapping[str, set[str]], length: int) -> list[tuple[Op, ...]]:
    """Splits consecutive `nodes` into parts of `length / 2` to `3 * length / 2` nodes.

    `uses` maps the name of a node to those of its readers. A cut is made where the fewest values are live, and never
    between a node with several results and the nodes that pick one of them.
    """
    live = _live_values(nodes, uses)
    found, start = [], 0
    while len(nodes) - start > length + length // 2:
        window = range(start + length // 2, start + length + length // 2)
        cut = min(window, key=lambda position: (live[position], abs(position - start - length)))
        found.append(tuple(nodes[start:cut]))
        start = cut
    found.append(tuple(nodes[start:]))
    return found


def _live_values(nodes: Sequence[Op], uses: Mapping[str, set[str]]) -> list[float]:
    """Returns for each position the number of values that are live across it; infinite where no cut is possible."""
    positions = {op.name: i for i, op in enumerate(nodes)}
    change = [0.0] * (len(nodes) + 1)
    barred = [False] * (len(nodes) + 1)
    for i, op in enumerate(nodes):
        readers = [positions[name] for name in uses.get(op.name, ()) if name in positions]
        last = max(readers, default=i)
        change[i + 1] += 1
        change[last + 1] -= 1
        if op.multiple or not op.metas or op.metas[0] is None or any(isinstance(nodes[r], GetItemOp) for r in readers):
            barred[i + 1 : last + 1] = [True] * (last - i)
    live, count = list[float](), 0.0
    for i in range(len(nodes)):
        count += change[i]
        live.append(float("inf") if barred[i] else count)
    return live
