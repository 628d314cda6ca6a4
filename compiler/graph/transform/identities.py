"""Removes nodes that return their operand (clones, aliases, views to the same shape), and merges views of views."""

from __future__ import annotations

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import AliasOp, CloneOp, ExpandOp, ReshapeOp, SliceOp, ViewOp
from buddy.compiler.graph.transform.notes import Note

_COPIES = (CloneOp, AliasOp)
_SAME_IF_SHAPE_IS = (ViewOp, ReshapeOp, ExpandOp, SliceOp)
_VIEWS = (ViewOp, ReshapeOp)


def drop_identities(graph: Graph) -> list[Note]:
    """Make readers of an identity read its operand, and a view of a view read the first view's operand.

    Tensors are immutable values in the graph, so copies are unnecessary. A node that the program returns stays.
    """
    notes = []
    for node in graph.operations:
        if isinstance(node, _VIEWS) and isinstance(node.args[0], (ViewOp, ReshapeOp)):
            notes.append(Note(node.stable, f"reads the source of the view {node.args[0]}"))
            graph.replace_argument(node, node.args[0], node.args[0].args[0])
        if _is_identity(node):
            notes.append(Note(node.stable, f"identity of {node.args[0]}, which its readers read now"))
            graph.replace_uses(node, node.args[0])
    graph.drop_unused()
    return notes


def _is_identity(node: Op) -> bool:
    if isinstance(node, _COPIES):
        return node.args[0].tensor_meta == node.tensor_meta
    return isinstance(node, _SAME_IF_SHAPE_IS) and node.args[0].tensor_meta.shape == node.tensor_meta.shape
