"""Where a call of a graph gives the values of its symbolic sizes."""

from __future__ import annotations

from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol.artifact import Symbol


def symbols_of(graph: Graph) -> list[Symbol]:
    """Where a call of `graph` tells its symbols, by the numbers of placeholders."""
    numbers = {op.name: i for i, op in enumerate(graph.placeholders)}
    return [Symbol(found.name, numbers.get(found.node, -1), found.place) for found in graph.symbols]
