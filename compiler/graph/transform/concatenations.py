"""Slices of concatenations: reads a part of the concatenation directly if it contains the slice."""

from __future__ import annotations

from buddy.compiler.graph.arguments import argument, normalized
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import CatOp, SliceOp
from buddy.compiler.graph.transform.notes import Note


def slice_parts(graph: Graph) -> list[Note]:
    """Replace a slice of a concatenation that is within one part by a slice of that part, or the part itself.

    A decoding step that returns only its addition to a KV cache needs no concatenated cache then.
    """
    notes = []
    for node in graph.operations:
        found = _containing_part(node)
        if found is None:
            continue
        part, start, end = found
        notes.append(Note(node.stable, f"reads {part}, which contains it"))
        graph.replace_argument(node, node.args[0], part)
        dim = argument(node, 1, "dim", 0)
        node._arguments, node._keyword_arguments = [part, dim, start, end], {}
        if part.tensor_meta.shape == node.tensor_meta.shape:
            graph.replace_uses(node, part)
    graph.drop_unused()
    return notes


def _containing_part(node: Op) -> tuple[Op, int, int] | None:
    """Returns the part that contains a slice, and the slice's start and end in it; `None` if no part does."""
    if not isinstance(node, SliceOp) or not isinstance(node.args[0], CatOp) or argument(node, 4, "step", 1) != 1:
        return None
    whole, rank = node.args[0], len(node.tensor_meta.shape)
    dim = normalized(argument(node, 1, "dim", 0), rank)
    parts = [part for part in whole.args[0] if len(part.tensor_meta.shape) == rank]
    sizes = [part.tensor_meta.shape[dim] for part in parts]
    start, count = argument(node, 2, "start", 0) or 0, node.tensor_meta.shape[dim]
    known = all(isinstance(number, int) for number in (start, count, *sizes))
    if not known or normalized(argument(whole, 1, "dim", 0), rank) != dim:
        return None
    start = max(start + sum(sizes), 0) if start < 0 else start
    for part, size in zip(parts, sizes, strict=True):
        if 0 <= start < start + count <= size and part.tensor_meta.dtype is whole.tensor_meta.dtype:
            return part, start, start + count
        start -= size
    return None
