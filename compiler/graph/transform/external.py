"""Replaces matrix products by calls of PyTorch's own kernels."""

from __future__ import annotations

import math

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operations import AddMMOp, BatchMatmulOp, CallExternalOp, MatmulOp
from buddy.compiler.graph.transform.notes import Note
from buddy.compiler.graph.transform.rewriting import replaced

_PRODUCTS = (MatmulOp, AddMMOp, BatchMatmulOp)


def replace_matmul_with_onednn(graph: Graph) -> list[Note]:
    """Replace matrix products by calls of PyTorch's own kernels (oneDNN or MKL)."""
    return replace_matmul_with_onednn_selective(graph)


def replace_matmul_with_onednn_selective(graph: Graph, min_size: int = 0) -> list[Note]:
    """Replace matrix products whose result has at least min-size elements by calls of PyTorch's own kernels."""
    notes = []
    for node in [node for node in graph.operations if isinstance(node, _PRODUCTS)]:
        size = math.prod(node.tensor_meta.shape[-2:])
        if size < (min_size or 0):
            notes.append(Note(node.stable, f"left: its result has {size} elements, fewer than {min_size}"))
            continue
        replaced(graph, node, CallExternalOp, node.target, list(node.args), **node.kwargs)
        notes.append(Note(node.stable, f"a call of torch's {node.target}"))
    return notes
