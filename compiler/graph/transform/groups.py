"""Groups of ops that become functions of `GraphDriver`, fusion of transposes, and calls of an external library."""

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
from buddy.compiler.graph.transform.rewriting import Note, replaced
from buddy.compiler.graph.types import DeviceType

GROUP = "subgraph0"


def simply_fuse(graph: Graph) -> list[Note]:
    """Put all ops into one group, subgraph0, which `GraphDriver` turns into a single function."""
    members = [op for op in graph.body if not isinstance(op, PlaceholderOp)]
    graph.op_groups, graph.group_map_device = {GROUP: members}, {GROUP: DeviceType.CPU}
    return [Note(op.stable, f"in the group {GROUP}") for op in graph.operations]


def apply_classic_fusion(graph: Graph) -> list[Note]:
    """Fuse matrix products with the transpose of their second factor, and put all ops into one group."""
    notes = [note for node in graph.operations for note in _fuse_transpose(graph, node)]
    graph.drop_unused()
    simply_fuse(graph)
    return notes


def _fuse_transpose(graph: Graph, node: Op) -> list[Note]:
    """Fuses `mm(a, tᵀ)` and `addmm(c, a, tᵀ)` into products of rows with rows, as in `linear`."""
    if not isinstance(node, (MatmulOp, AddMMOp)):
        return []
    *rest, factor = node.args
    if not isinstance(factor, (TOp, TransposeOp, PermuteOp)) or permutation_of(factor) != [1, 0]:
        return [Note(node.stable, f"left: {factor} is not a transpose")]
    if isinstance(node, MatmulOp):
        replaced(graph, node, TransposeMatmulFusedOp, "linear.default", [*rest, factor.args[0]])
    elif (reason := _not_linear_reason(node)) is not None:
        return [Note(node.stable, f"left: {reason}")]
    else:
        addend, first = rest
        replaced(graph, node, TransposeAddMMFusedOp, "linear.default", [first, factor.args[0], addend])
    return [Note(node.stable, f"one op with the transpose {factor}")]


def _not_linear_reason(node: Op) -> str | None:
    """Returns why an `addmm` is not a `linear`, or `None` if it is."""
    if any(node.kwargs.get(key, 1) != 1 for key in ("alpha", "beta")):
        return "it scales its operands"
    if node.args[0].tensor_meta.shape != node.tensor_meta.shape[1:]:
        return "its addend is not a single row"
    return None


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
