"""Removes and merges transposes and views."""

from __future__ import annotations

from buddy.compiler.graph.arguments import permutation_of
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import PermuteOp, ReshapeOp, TOp, TransposeOp, UnsqueezeOp, ViewOp
from buddy.compiler.graph.transform.notes import Note
from buddy.compiler.graph.transform.rewriting import replaced

TRANSPOSES = (TOp, TransposeOp, PermuteOp)
_VIEWS = (ViewOp, ReshapeOp, UnsqueezeOp)


def eliminate_transpose(graph: Graph) -> list[Note]:
    """Replace a transpose of a transpose by one transpose, or by its operand if they cancel."""
    notes = [note for node in graph.operations if isinstance(node, TRANSPOSES) for note in _compose(graph, node)]
    graph.drop_unused()
    return notes


def _compose(graph: Graph, node: Op) -> list[Note]:
    order, source = permutation_of(node), node.args[0]
    while isinstance(source, TRANSPOSES):
        inner = permutation_of(source)
        order, source = [inner[dim] for dim in order], source.args[0]
    if order == sorted(order):
        graph.replace_uses(node, source)
        return [Note(node.stable, f"moves nothing; its readers read {source} now")]
    if source is node.args[0]:
        return [Note(node.stable, f"left: {source} is not a transpose")]
    replaced(graph, node, PermuteOp, "permute.default", [source, order])
    return [Note(node.stable, f"reads {source} in the order {order}")]


def eliminate_matmul_transpose_reshape(graph: Graph) -> list[Note]:
    """Replace transposes that move only dims of size 1 by views, and views of views by one view."""
    notes = [_replace_by_view(graph, node) for node in graph.operations if isinstance(node, TRANSPOSES)]
    notes += [note for node in graph.operations if isinstance(node, _VIEWS) for note in _merge_views(graph, node)]
    graph.drop_unused()
    return notes


def _replace_by_view(graph: Graph, node: Op) -> Note:
    sizes = node.args[0].tensor_meta.shape
    moved = [dim for dim in permutation_of(node) if sizes[dim] != 1]
    if moved != sorted(moved):
        return Note(node.stable, "left: it moves elements")
    replaced(graph, node, ViewOp, "view.default", [node.args[0], list(node.tensor_meta.shape)])
    return Note(node.stable, "moves dims of size 1 only: a view")


def _merge_views(graph: Graph, node: Op) -> list[Note]:
    source = node.args[0]
    while isinstance(source, _VIEWS):
        source = source.args[0]
    if source.tensor_meta.shape == node.tensor_meta.shape:
        graph.replace_uses(node, source)
        return [Note(node.stable, f"identity of {source}, which its readers read now")]
    if source is node.args[0]:
        return []
    replaced(graph, node, ViewOp, "view.default", [source, list(node.tensor_meta.shape)])
    return [Note(node.stable, f"one view of {source}")]
