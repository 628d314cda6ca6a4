"""Fuses attention to one op: from scaled-dot-product nodes, and from a product, mask, softmax and product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, argument, new_op, normalized, permutation_of
from buddy.compiler.graph.operations import (
    AddOp,
    AliasOp,
    BatchMatmulOp,
    CloneOp,
    DivOp,
    ExpandOp,
    FlashAttentionForCpuPrefillOp,
    GQAAttentionFusedOp,
    MaskedSoftmaxAttentionOp,
    MulOp,
    PermuteOp,
    ReshapeOp,
    ScaledDotProductFlashAttentionForCpuOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnsqueezeOp,
    ViewOp,
)
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.graph.transform.rewriting import Note, fresh_name, only_first_result, replaced, take_first_result
from buddy.compiler.graph.types import TensorDType, TensorMeta


class _MismatchError(Exception):
    """The nodes around a softmax are not attention; the text says why."""


@dataclass(frozen=True)
class _Pattern:
    """The nodes of an attention: product `first` computes the scores, product `second` reads the softmax's result."""

    softmax: Op
    first: Op
    second: Op
    scale: float
    mask: Op | None

    @property
    def batch(self) -> tuple[int, ...]:
        return self.softmax.tensor_meta.shape[:-2]


def fuse_softmax_attention(graph: Graph, softmax: SoftmaxOp, target: str) -> Note:
    """Replaces the second product of the attention around `softmax`, if it is one, by a fused node.

    `target` is the torch op that runs the fused node in eager.
    """
    try:
        pattern = _match(softmax)
    except _MismatchError as reason:
        return Note(softmax.stable, f"left: {reason}")
    name = pattern.second.name
    _fuse_softmax(graph, pattern, target)
    return Note(softmax.stable, f"part of the attention {name}")


# ---- matching --------------------------------------------------------------------------------------------------------


def _match(softmax: Op) -> _Pattern:
    meta = softmax.tensor_meta
    rank = len(meta.shape)
    if rank < 3 or normalized(softmax.args[1], rank) != rank - 1:
        raise _MismatchError("it is not over the columns of a batch of matrices")
    if meta.dtype not in (TensorDType.Float32, TensorDType.Float64) or softmax.args[0].tensor_meta.dtype != meta.dtype:
        raise _MismatchError("not all of its element types are f32 or f64")
    second = _reader_of(softmax)
    node, mask = softmax.args[0], None
    if isinstance(node, AddOp) and node.kwargs.get("alpha", 1) == 1 and isinstance(node.args[1], Op):
        node, mask = _split_mask(_only_read_here(node))
    scale = 1.0
    while isinstance(node, (MulOp, DivOp)) and isinstance(node.args[1], (int, float)):
        scale = scale * node.args[1] if isinstance(node, MulOp) else scale / node.args[1]
        node = _only_read_here(node).args[0]
    first = _only_read_here(_skip_views(node))
    if not isinstance(first, BatchMatmulOp):
        raise _MismatchError(f"its operand is computed by {first}, not by a product")
    return _Pattern(softmax, first, second, scale, mask)


def _reader_of(softmax: Op) -> Op:
    """Returns the product that reads the softmax's result, through views, as its first factor."""
    node = softmax
    while True:
        reader = _only_reader(node)
        if isinstance(reader, BatchMatmulOp):
            if reader.args[0] is not node or reader.args[1] is node:
                raise _MismatchError(f"it is not the first factor of {reader}")
            return reader
        if not _is_view(reader):
            raise _MismatchError(f"its reader {reader} is not a product")
        node = reader


def _split_mask(add: Op) -> tuple[Op, Op]:
    """Returns the scores and the mask of an addition: the scores are the operand that a product computes."""
    for scores, mask in ((add.args[0], add.args[1]), (add.args[1], add.args[0])):
        source = scores
        while _is_view(source) or isinstance(source, (MulOp, DivOp)):
            source = source.args[0]
        if isinstance(source, BatchMatmulOp) and scores.tensor_meta.shape == add.tensor_meta.shape:
            if mask.tensor_meta.dtype != add.tensor_meta.dtype:
                raise _MismatchError(f"its mask {mask} has another element type")
            return scores, mask
    raise _MismatchError(f"neither operand of {add} is a product")


def _is_view(node: Op) -> bool:
    """True if `node` has the elements of its operand, in the same order."""
    if isinstance(node, (ViewOp, ReshapeOp, CloneOp, AliasOp)):
        return True
    return isinstance(node, ExpandOp) and node.args[0].tensor_meta.shape == node.tensor_meta.shape


def _skip_views(node: Op) -> Op:
    while _is_view(node):
        node = _only_read_here(node).args[0]
    return node


def _only_read_here(node: Op) -> Op:
    """Returns `node`. Raises `_MismatchError` if it does not have exactly one reader."""
    _only_reader(node)
    return node


def _only_reader(node: Op) -> Op:
    if len(node._children) != 1:
        raise _MismatchError(f"{node} has other readers")
    return node._children[0]


# ---- rewriting -------------------------------------------------------------------------------------------------------


def _fuse_softmax(graph: Graph, pattern: _Pattern, target: str) -> None:
    first, second, batch = pattern.first, pattern.second, pattern.batch
    rows, keys = pattern.softmax.tensor_meta.shape[-2:]
    q, width = _reshaped(graph, second, first.args[0], (*batch, rows), -1), first.args[0].tensor_meta.shape[-1]
    k = _transposed(graph, second, first.args[1], (*batch, width, keys))
    v = _reshaped(graph, second, second.args[1], (*batch, keys), -1)
    result = TensorMeta((*batch, rows, v.tensor_meta.shape[-1]), second.tensor_meta.dtype)
    cls = FlashAttentionForCpuPrefillOp if pattern.mask is None else MaskedSoftmaxAttentionOp
    fused = new_op(cls, second.name, target, metas=[result])
    fused.stable = second.stable
    chain = [fused]
    if result.shape != second.tensor_meta.shape:
        back = new_op(ViewOp, fresh_name(graph, f"{second.name}_view"), "view.default", metas=[second.tensor_meta])
        back._arguments = [fused, list(second.tensor_meta.shape)]
        chain.append(back)
    graph.displace_node_with_chain(second, chain)
    fused.metas = (result,)
    graph.set_arguments(fused, [q, k, v, pattern.mask, 0.0, False], {"scale": pattern.scale})
    graph.link()


def _reshaped(graph: Graph, before: Op, node: Op, lead: tuple[int, ...], last: int) -> Op:
    """Returns `node` in the shape [*lead, its dim `last`]: an operand that it views, or else a new view of it."""
    shape = (*lead, node.tensor_meta.shape[last])
    found, source = None, node
    while True:
        found = source if source.tensor_meta.shape == shape else found
        if not _is_view(source):
            break
        source = source.args[0]
    return found or _insert(graph, before, ViewOp, node, list(shape), shape)


def _transposed(graph: Graph, before: Op, node: Op, shape: tuple[int, ...]) -> Op:
    """Returns the keys [batch…, keys, width]; `node` is their transpose [batch…, width, keys], in `shape`."""
    *batch, width, keys = shape
    wide = _reshaped(graph, before, node, shape[:-1], -1)
    source, order = wide, list(range(len(shape)))
    if isinstance(wide, (TransposeOp, PermuteOp)):
        source, order = wide.args[0], permutation_of(wide)
    order[-2], order[-1] = order[-1], order[-2]
    if order == sorted(order):
        return source
    return _insert(graph, before, PermuteOp, source, order, (*batch, keys, width))


def _insert(graph: Graph, before: Op, cls: type[Op], source: Op, argument: list[int], shape: tuple[int, ...]) -> Op:
    """Inserts a view or permutation of `source` before node `before`."""
    kind = "view" if cls is ViewOp else "permute"
    name = fresh_name(graph, f"{source.name}_{kind}")
    node = new_op(cls, name, f"{kind}.default", [source, argument], [TensorMeta(shape, source.tensor_meta.dtype)])
    node.module, node.location = before.module, before.location
    graph.insert_before(before, node)
    return node


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
