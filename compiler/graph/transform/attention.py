"""Fuses attention into one op, from scaled-dot-product nodes or from separate products and softmax."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.arguments import argument
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import (
    AliasOp,
    CloneOp,
    ExpandOp,
    FlashAttentionForCpuPrefillOp,
    GQAAttentionFusedOp,
    ReshapeOp,
    ScaledDotProductFlashAttentionForCpuOp,
    SliceOp,
    SoftmaxOp,
    UnsqueezeOp,
    ViewOp,
)
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.graph.transform.notes import Note
from buddy.compiler.graph.transform.rewriting import only_first_result, replaced, take_first_result
from buddy.compiler.graph.transform.softmax_attention import fuse_softmax_attention
from buddy.compiler.graph.types import TensorDType

# The equivalent torch op, for running the fused op in eager.
TARGET = "scaled_dot_product_attention.default"
_DYNAMIC_SIZES = "its sizes are dynamic, and blocks of keys need static ones"
FLOATS = (TensorDType.Float32, TensorDType.Float64)


def flash_attention_prefill(graph: Graph) -> list[Note]:
    """Replace attention by one op that processes blocks of keys, and so does not store all scores."""
    notes = []
    for node in graph.operations:
        if isinstance(node, ScaledDotProductFlashAttentionForCpuOp):
            reason = _unsupported_reason(node)
            if reason is None:
                grouped = None if _heads(node.args[0]) == _heads(node.args[1]) else True
                _fuse(graph, node, FlashAttentionForCpuPrefillOp, node.args[:3], enable_gqa=grouped)
            notes.append(Note(node.stable, f"left: {reason}" if reason else "its keys are processed by blocks"))
        elif isinstance(node, SoftmaxOp):
            static = not is_dynamic(node.tensor_meta.shape)
            notes.append(
                fuse_softmax_attention(graph, node, TARGET) if static else Note(node.stable, f"left: {_DYNAMIC_SIZES}")
            )
    graph.drop_unused()
    return notes


def gqa_attention_fusion(graph: Graph) -> list[Note]:
    """Make attention on repeated heads of keys and values read each head in place, without the repetition."""
    notes = []
    for node in graph.operations:
        if isinstance(node, (ScaledDotProductFlashAttentionForCpuOp, FlashAttentionForCpuPrefillOp)):
            notes.append(_fuse_repetition(graph, node))
    graph.drop_unused()
    return notes


def _unsupported_reason(node: Op) -> str | None:
    """Returns why a scaled-dot-product node is not fused, or `None`."""
    if any(is_dynamic(factor.tensor_meta.shape) for factor in node.args[:3]):
        return _DYNAMIC_SIZES
    if argument(node, 3, "dropout_p", 0.0):
        return "it has dropout"
    if not only_first_result(node):
        return "its log-sum-exp is read"
    if node.tensor_meta.dtype not in FLOATS:
        return f"{node.tensor_meta.dtype.value} needs a wider accumulator"
    return None


def _fuse(graph: Graph, node: Op, cls: type[Op], factors: list[Op], **options: Any) -> Op:
    """Replaces `node` by a fused node of class `cls` on `factors`, which are q, k and v."""
    if isinstance(node, ScaledDotProductFlashAttentionForCpuOp):
        mask, causal = node.kwargs.get("attn_mask"), argument(node, 4, "is_causal", False)
        scale = node.kwargs.get("scale")
        new = replaced(graph, node, cls, TARGET, [*factors, mask, 0.0, causal], scale=scale, **options)
        take_first_result(graph, new)
        return new
    return replaced(graph, node, cls, TARGET, [*factors, *node.args[3:]], **{**node.kwargs, **options})


def _fuse_repetition(graph: Graph, node: Op) -> Note:
    q, k, v = node.args[:3]
    reason = _unsupported_reason(node) if isinstance(node, ScaledDotProductFlashAttentionForCpuOp) else None
    sources = [_repeated_source(value) or value for value in (k, v)]
    if _heads(sources[0]) != _heads(sources[1]):
        sources = [k, v]
    if reason is None and _heads(q) == _heads(sources[0]):
        reason = "keys and values are not both repeated, by unsqueeze, expand and view"
    if reason is not None:
        return Note(node.stable, f"left: {reason}")
    _fuse(graph, node, GQAAttentionFusedOp, [q, *sources], enable_gqa=True)
    return Note(node.stable, f"{_heads(q)} heads read {_heads(sources[0])} heads of keys and values")


def _heads(node: Op) -> int:
    return node.tensor_meta.shape[-3]


def _repeated_source(node: Op) -> Op | None:
    """Returns the tensor whose heads `node` repeats, by a view to [batch, heads, …] of an expand of an unsqueeze.

    Copies in between are ignored. Returns `None` if `node` does not repeat heads.
    """
    shape, view = node.tensor_meta.shape, _skip_copies(node)
    if len(shape) != 4 or not isinstance(view, (ViewOp, ReshapeOp)):
        return None
    expand = _skip_copies(view.args[0])
    if not isinstance(expand, ExpandOp):
        return None
    narrow = _skip_copies(expand.args[0])
    if not isinstance(narrow, (UnsqueezeOp, ViewOp, ReshapeOp)):
        return None
    source = narrow.args[0]
    batch, groups, *rest = source.tensor_meta.shape
    times = shape[1] // groups if groups else 0
    is_repetition = (
        (batch, groups * times, *rest) == shape
        and narrow.tensor_meta.shape == (batch, groups, 1, *rest)
        and expand.tensor_meta.shape == (batch, groups, times, *rest)
    )
    return source if is_repetition else None


def _skip_copies(node: Op) -> Op:
    """Returns the operand that `node` copies; slices and expands to the same shape count as copies."""
    while isinstance(node, (CloneOp, AliasOp, SliceOp, ExpandOp)) and node.args[0].tensor_meta == node.tensor_meta:
        node = node.args[0]
    return node
