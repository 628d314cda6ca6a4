"""Simplifies max pools whose indices have no readers."""

from __future__ import annotations

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import MaxPool2dOp, MaxPool2dWithIndicesOp
from buddy.compiler.graph.transform.notes import Note
from buddy.compiler.graph.transform.rewriting import only_first_result, replaced, take_first_result


def maxpool2d_simplify(graph: Graph) -> list[Note]:
    """Drop the indices of a max pool if they have no readers."""
    found = [node for node in graph.operations if isinstance(node, MaxPool2dWithIndicesOp)]
    notes = [_drop_indices(graph, node) for node in found]
    graph.drop_unused()
    return notes


def _drop_indices(graph: Graph, node: Op) -> Note:
    if not only_first_result(node):
        return Note(node.stable, "left: its indices are read")
    take_first_result(graph, replaced(graph, node, MaxPool2dOp, "max_pool2d.default", list(node.args), **node.kwargs))
    return Note(node.stable, "returns its values only")
