"""Graph passes that simplify data movement: identities, transposes, views, slices of concatenations, max pools."""

from __future__ import annotations

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, argument, is_only_result_read, normalize_dim, permutation_of
from buddy.compiler.graph.operations import (
    AliasOp,
    CatOp,
    CloneOp,
    ExpandOp,
    MaxPool2dOp,
    MaxPool2dWithIndicesOp,
    PermuteOp,
    ReshapeOp,
    SliceOp,
    TOp,
    TransposeOp,
    UnsqueezeOp,
    ViewOp,
)
from buddy.compiler.graph.transform.rewriting import Note, bypass_getitems, replace_node


def slice_parts(graph: Graph) -> list[Note]:
    """Make a slice of a concatenation read the one concatenated tensor that contains it, or replace it by that tensor.

    A decoding step that returns only the new rows of a KV cache then needs no concatenated cache.
    """
    notes = []
    for node in graph.operations:
        located = _containing_part(node)
        if located is None:
            continue
        part, start, end = located
        notes.append(Note(node.stable, f"reads {part}, which contains it"))
        graph.replace_argument(node, node.args[0], part)
        dim = argument(node, 1, "dim", 0)
        node._arguments, node._keyword_arguments = [part, dim, start, end], {}
        if part.tensor_meta.shape == node.tensor_meta.shape:
            graph.replace_uses(node, part)
    graph.drop_unused()
    return notes


def _containing_part(node: Op) -> tuple[Op, int, int] | None:
    """Returns the concatenated tensor that contains a slice, with the slice's start and end in that tensor.

    Returns `None` if `node` is not such a slice, or spans several tensors.
    """
    if not isinstance(node, SliceOp) or not isinstance(node.args[0], CatOp) or argument(node, 4, "step", 1) != 1:
        return None
    whole, rank = node.args[0], len(node.tensor_meta.shape)
    dim = normalize_dim(argument(node, 1, "dim", 0), rank)
    parts = [part for part in whole.args[0] if len(part.tensor_meta.shape) == rank]
    sizes = [part.tensor_meta.shape[dim] for part in parts]
    start, count = argument(node, 2, "start", 0) or 0, node.tensor_meta.shape[dim]
    is_static = all(isinstance(number, int) for number in (start, count, *sizes))
    if not is_static or normalize_dim(argument(whole, 1, "dim", 0), rank) != dim:
        return None
    start = max(start + sum(sizes), 0) if start < 0 else start
    for part, size in zip(parts, sizes, strict=True):
        if 0 <= start < start + count <= size and part.tensor_meta.dtype is whole.tensor_meta.dtype:
            return part, start, start + count
        start -= size
    return None


_COPIES = (CloneOp, AliasOp)
_IDENTITIES_IF_SAME_SHAPE = (ViewOp, ReshapeOp, ExpandOp, SliceOp)
_VIEWS = (ViewOp, ReshapeOp)


def drop_identities(graph: Graph) -> list[Note]:
    """Make readers of an identity read its operand, and a view of a view read the first view's operand.

    Tensors are immutable values in the graph, so copies are unnecessary. A node that the program returns is kept.
    """
    notes = []
    for node in graph.operations:
        if isinstance(node, _VIEWS) and isinstance(node.args[0], _VIEWS):
            notes.append(Note(node.stable, f"reads the source of the view {node.args[0]}"))
            graph.replace_argument(node, node.args[0], node.args[0].args[0])
        if _is_identity(node):
            notes.append(Note(node.stable, f"identity of {node.args[0]}, which its readers read now"))
            graph.replace_uses(node, node.args[0])
    graph.drop_unused()
    return notes


def _is_identity(node: Op) -> bool:
    """True if `node` has the elements of its operand, in the same shape."""
    if isinstance(node, _COPIES):
        return bool(node.args[0].tensor_meta == node.tensor_meta)
    return isinstance(node, _IDENTITIES_IF_SAME_SHAPE) and node.args[0].tensor_meta.shape == node.tensor_meta.shape


_TRANSPOSES = (TOp, TransposeOp, PermuteOp)
_RESHAPES = (ViewOp, ReshapeOp, UnsqueezeOp)


def eliminate_transpose(graph: Graph) -> list[Note]:
    """Replace a transpose of a transpose by one transpose, or by its operand if they cancel."""
    notes = [note for node in graph.operations if isinstance(node, _TRANSPOSES) for note in _compose(graph, node)]
    graph.drop_unused()
    return notes


def _compose(graph: Graph, node: Op) -> list[Note]:
    """Replaces `node` by the composition of the chain of transposes that ends with it."""
    order, source = permutation_of(node), node.args[0]
    while isinstance(source, _TRANSPOSES):
        inner = permutation_of(source)
        order, source = [inner[dim] for dim in order], source.args[0]
    if order == sorted(order):
        graph.replace_uses(node, source)
        return [Note(node.stable, f"is an identity; its readers read {source} now")]
    if source is node.args[0]:
        return [Note(node.stable, f"left: {source} is not a transpose")]
    replace_node(graph, node, PermuteOp, "permute.default", [source, order])
    return [Note(node.stable, f"reads {source} in the order {order}")]


def eliminate_matmul_transpose_reshape(graph: Graph) -> list[Note]:
    """Replace transposes that move only dims of size 1 by views, and views of views by one view."""
    notes = [_replace_by_view(graph, node) for node in graph.operations if isinstance(node, _TRANSPOSES)]
    notes += [note for node in graph.operations if isinstance(node, _RESHAPES) for note in _merge_views(graph, node)]
    graph.drop_unused()
    return notes


def _replace_by_view(graph: Graph, node: Op) -> Note:
    """Replaces a transpose by a view if it moves only dims of size 1. Returns what was done."""
    sizes = node.args[0].tensor_meta.shape
    moved = [dim for dim in permutation_of(node) if sizes[dim] != 1]
    if moved != sorted(moved):
        return Note(node.stable, "left: it changes the order of the elements")
    replace_node(graph, node, ViewOp, "view.default", [node.args[0], list(node.tensor_meta.shape)])
    return Note(node.stable, "moves dims of size 1 only: a view")


def _merge_views(graph: Graph, node: Op) -> list[Note]:
    """Replaces the chain of views that ends with `node` by one view, or by nothing if the shape is the same."""
    source = node.args[0]
    while isinstance(source, _RESHAPES):
        source = source.args[0]
    if source.tensor_meta.shape == node.tensor_meta.shape:
        graph.replace_uses(node, source)
        return [Note(node.stable, f"identity of {source}, which its readers read now")]
    if source is node.args[0]:
        return []
    replace_node(graph, node, ViewOp, "view.default", [source, list(node.tensor_meta.shape)])
    return [Note(node.stable, f"one view of {source}")]


def maxpool2d_simplify(graph: Graph) -> list[Note]:
    """Drop the indices of a max pool if they have no readers."""
    pools = [node for node in graph.operations if isinstance(node, MaxPool2dWithIndicesOp)]
    notes = [_drop_indices(graph, node) for node in pools]
    graph.drop_unused()
    return notes


def _drop_indices(graph: Graph, node: Op) -> Note:
    """Replaces a max pool by one without indices if they are not read. Returns what was done."""
    if not is_only_result_read(node, 0):
        return Note(node.stable, "left: its indices are read")
    bypass_getitems(graph, replace_node(graph, node, MaxPool2dOp, "max_pool2d.default", list(node.args), **node.kwargs))
    return Note(node.stable, "returns only the values, without indices")
