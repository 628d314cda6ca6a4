"""Graph passes that group ops for `GraphDriver`, fuse transposes into products, and call PyTorch's kernels."""

from __future__ import annotations

import math

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, PlaceholderOp, permutation_of
from buddy.compiler.graph.operations import (
    AddMMOp,
    BatchMatmulOp,
    CallExternalOp,
    MatmulOp,
    PermuteOp,
    TOp,
    TransposeAddMMFusedOp,
    TransposeMatmulFusedOp,
    TransposeOp,
)
from buddy.compiler.graph.transform.rewriting import Note, replace_node
from buddy.compiler.graph.types import DeviceType

GROUP = "subgraph0"


def simply_fuse(graph: Graph) -> list[Note]:
    """Put all ops into one group, subgraph0, which `GraphDriver` turns into a single function."""
    members = [op for op in graph.body if not isinstance(op, PlaceholderOp)]
    graph.op_groups, graph.group_map_device = {GROUP: members}, {GROUP: DeviceType.CPU}
    return [Note(op.stable, f"in the group {GROUP}") for op in graph.operations]


def apply_classic_fusion(graph: Graph) -> list[Note]:
    """Fuse matrix products with a transpose of their rhs operand, and put all ops into one group."""
    notes = [note for node in graph.operations for note in _fuse_transpose(graph, node)]
    graph.drop_unused()
    simply_fuse(graph)
    return notes


def _fuse_transpose(graph: Graph, node: Op) -> list[Note]:
    """Replaces `mm(a, bᵀ)` by `linear(a, b)`, and `addmm(c, a, bᵀ)` by `linear(a, b, c)`."""
    if not isinstance(node, (MatmulOp, AddMMOp)):
        return []
    *others, rhs = node.args
    if not isinstance(rhs, (TOp, TransposeOp, PermuteOp)) or permutation_of(rhs) != [1, 0]:
        return [Note(node.stable, f"left: {rhs} is not a transpose")]
    if isinstance(node, MatmulOp):
        replace_node(graph, node, TransposeMatmulFusedOp, "linear.default", [*others, rhs.args[0]])
    elif (reason := _not_linear_reason(node)) is not None:
        return [Note(node.stable, f"left: {reason}")]
    else:
        addend, lhs = others
        replace_node(graph, node, TransposeAddMMFusedOp, "linear.default", [lhs, rhs.args[0], addend])
    return [Note(node.stable, f"one op with the transpose {rhs}")]


def _not_linear_reason(node: Op) -> str | None:
    """Returns why an `addmm` is not a `linear`, or `None` if it is."""
    if any(node.kwargs.get(key, 1) != 1 for key in ("alpha", "beta")):
        return "it scales its operands"
    if node.args[0].tensor_meta.shape != node.tensor_meta.shape[1:]:
        return "its addend is not a single row"
    return None


_PRODUCTS = (MatmulOp, AddMMOp, BatchMatmulOp)


def replace_matmul_with_onednn(graph: Graph) -> list[Note]:
    """Replace matrix products by calls of PyTorch's kernels (oneDNN or MKL)."""
    return replace_matmul_with_onednn_selective(graph)


def replace_matmul_with_onednn_selective(graph: Graph, min_size: int = 0) -> list[Note]:
    """Replace matrix products by calls of PyTorch's kernels, if each result matrix has at least min-size elements."""
    notes = []
    for node in [op for op in graph.operations if isinstance(op, _PRODUCTS)]:
        size = math.prod(node.tensor_meta.shape[-2:])
        if size < (min_size or 0):
            notes.append(Note(node.stable, f"left: a result matrix has {size} elements, fewer than {min_size}"))
            continue
        replace_node(graph, node, CallExternalOp, node.target, list(node.args), **node.kwargs)
        notes.append(Note(node.stable, f"a call of torch's {node.target}"))
    return notes
