"""Matrix products as calls of the library that eager PyTorch calls."""

from __future__ import annotations

import math

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operations import AddMMOp, BatchMatmulOp, CallExternalOp, MatmulOp
from buddy.compiler.graph.transform.notes import Note
from buddy.compiler.graph.transform.rewriting import replaced

_PRODUCTS = (MatmulOp, AddMMOp, BatchMatmulOp)


def replace_matmul_with_onednn(graph: Graph) -> list[Note]:
    """Matrix products become calls of the library that torch has for them (oneDNN or MKL), out of line."""
    return replace_matmul_with_onednn_selective(graph)


def replace_matmul_with_onednn_selective(graph: Graph, min_size: int = 0) -> list[Note]:
    """Matrix products of at least min-size elements become calls of torch's library; smaller ones are compiled."""
    notes = []
    for node in [node for node in graph.operations if isinstance(node, _PRODUCTS)]:
        size = math.prod(node.tensor_meta.shape[-2:])
        if size < (min_size or 0):
            notes.append(Note(node.stable, f"left: its result has {size} elements, fewer than {min_size}"))
            continue
        replaced(graph, node, CallExternalOp, node.target, list(node.args), **node.kwargs)
        notes.append(Note(node.stable, f"a call of torch's {node.target}"))
    return notes
