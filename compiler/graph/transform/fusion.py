"""Graph passes that fuse ops: attention, products with transposes, and groups of ops for `GraphDriver`.

Attention is fused into one op from scaled-dot-product nodes, and from matrix products around a softmax. Two passes
replace matrix products by calls of PyTorch's kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import (
    Op,
    PlaceholderOp,
    argument,
    is_only_result_read,
    new_op,
    normalize_dim,
    permutation_of,
)
from buddy.compiler.graph.operations import (
    AddMMOp,
    AddOp,
    AliasOp,
    BatchMatmulOp,
    CallExternalOp,
    CloneOp,
    DivOp,
    ExpandOp,
    FlashAttentionForCpuPrefillOp,
    GQAAttentionFusedOp,
    MaskedSoftmaxAttentionOp,
    MatmulOp,
    MulOp,
    PermuteOp,
    ReshapeOp,
    ScaledDotProductFlashAttentionForCpuOp,
    SliceOp,
    SoftmaxOp,
    TOp,
    TransposeAddMMFusedOp,
    TransposeMatmulFusedOp,
    TransposeOp,
    UnsqueezeOp,
    ViewOp,
)
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.graph.transform.rewriting import Note, bypass_getitems, fresh_name, replace_node
from buddy.compiler.graph.types import DeviceType, TensorDType, TensorMeta


class _MismatchError(Exception):
    """The nodes around a softmax are not an attention that can be fused; the text says why."""


@dataclass(frozen=True)
class _Pattern:
    """The nodes of an attention: product `scores` computes q kᵀ, product `result` multiplies the softmax by v.

    The operand of the softmax is `scale * scores + mask`.
    """

    softmax: Op
    scores: Op
    result: Op
    scale: float
    mask: Op | None

    @property
    def batch(self) -> tuple[int, ...]:
        """The sizes of the leading dims, all but the rows and the columns of the scores."""
        return self.softmax.tensor_meta.shape[:-2]


def fuse_softmax_attention(graph: Graph, softmax: SoftmaxOp, target: str) -> Note:
    """Replaces the nodes of an attention around `softmax` by a fused node, if they match. Returns what was done.

    `target` is the torch op that runs the fused node in eager.
    """
    try:
        pattern = _match(softmax)
    except _MismatchError as reason:
        return Note(softmax.stable, f"left: {reason}")
    name = pattern.result.name
    _fuse_softmax(graph, pattern, target)
    return Note(softmax.stable, f"part of the attention {name}")


# ---- matching --------------------------------------------------------------------------------------------------------


def _match(softmax: Op) -> _Pattern:
    """Returns the attention around `softmax`. Raises `_MismatchError` if the nodes do not match."""
    meta = softmax.tensor_meta
    rank = len(meta.shape)
    if rank < 3 or normalize_dim(softmax.args[1], rank) != rank - 1:
        raise _MismatchError("it is not over the columns of a batch of matrices")
    if meta.dtype not in (TensorDType.Float32, TensorDType.Float64) or softmax.args[0].tensor_meta.dtype != meta.dtype:
        raise _MismatchError("not all of its element types are f32 or f64")
    result = _reading_product(softmax)
    node, mask = softmax.args[0], None
    if isinstance(node, AddOp) and node.kwargs.get("alpha", 1) == 1 and isinstance(node.args[1], Op):
        node, mask = _split_mask(_check_one_reader(node))
    scale = 1.0
    while isinstance(node, (MulOp, DivOp)) and isinstance(node.args[1], (int, float)):
        scale = scale * node.args[1] if isinstance(node, MulOp) else scale / node.args[1]
        node = _check_one_reader(node).args[0]
    scores = _check_one_reader(_skip_views(node))
    if not isinstance(scores, BatchMatmulOp):
        raise _MismatchError(f"its operand is computed by {scores}, not by a batched matrix product")
    return _Pattern(softmax, scores, result, scale, mask)


def _reading_product(softmax: Op) -> Op:
    """Returns the product that reads the softmax's result, possibly through views, as its lhs operand.

    Raises `_MismatchError` if there is no such product, or if another node also reads the result or a view.
    """
    node = softmax
    while True:
        reader = _only_reader(node)
        if isinstance(reader, BatchMatmulOp):
            if reader.args[0] is not node or reader.args[1] is node:
                raise _MismatchError(f"it is not the lhs operand of {reader}")
            return reader
        if not _is_view(reader):
            raise _MismatchError(f"its reader {reader} is not a batched matrix product")
        node = reader


def _split_mask(add: Op) -> tuple[Op, Op]:
    """Returns the scores and the mask, the operands of `add`: the scores come from a matrix product.

    Raises `_MismatchError` if no operand comes from one, or if the mask has another element type.
    """
    for scores, mask in ((add.args[0], add.args[1]), (add.args[1], add.args[0])):
        source = scores
        while _is_view(source) or isinstance(source, (MulOp, DivOp)):
            source = source.args[0]
        if isinstance(source, BatchMatmulOp) and scores.tensor_meta.shape == add.tensor_meta.shape:
            if mask.tensor_meta.dtype != add.tensor_meta.dtype:
                raise _MismatchError(f"its mask {mask} has another element type")
            return scores, mask
    raise _MismatchError(f"neither operand of {add} comes from a matrix product")


def _is_view(node: Op) -> bool:
    """True if `node` has the elements of its operand, in the same order."""
    if isinstance(node, (ViewOp, ReshapeOp, CloneOp, AliasOp)):
        return True
    return isinstance(node, ExpandOp) and node.args[0].tensor_meta.shape == node.tensor_meta.shape


def _skip_views(node: Op) -> Op:
    """Returns the node that `node` views, or `node`. Raises `_MismatchError` if a view has several readers."""
    while _is_view(node):
        node = _check_one_reader(node).args[0]
    return node


def _check_one_reader(node: Op) -> Op:
    """Returns `node`. Raises `_MismatchError` if it does not have exactly one reader."""
    _only_reader(node)
    return node


def _only_reader(node: Op) -> Op:
    """Returns the reader of `node`. Raises `_MismatchError` if there is not exactly one."""
    if len(node._children) != 1:
        raise _MismatchError(f"{node} has {len(node._children)} readers, not one")
    return node._children[0]


# ---- rewriting -------------------------------------------------------------------------------------------------------


def _fuse_softmax(graph: Graph, pattern: _Pattern, target: str) -> None:
    """Replaces the nodes of an attention by a fused node, followed by a view if the shape of the result differs."""
    scores, old, batch = pattern.scores, pattern.result, pattern.batch
    rows, keys = pattern.softmax.tensor_meta.shape[-2:]
    width = scores.args[0].tensor_meta.shape[-1]
    q = _reshape(graph, old, scores.args[0], (*batch, rows))
    k = _transpose_keys(graph, old, scores.args[1], (*batch, width, keys))
    v = _reshape(graph, old, old.args[1], (*batch, keys))
    meta = TensorMeta((*batch, rows, v.tensor_meta.shape[-1]), old.tensor_meta.dtype)
    fused = new_op(MaskedSoftmaxAttentionOp, old.name, target, metas=[meta])
    fused.stable = old.stable
    chain = [fused]
    if meta.shape != old.tensor_meta.shape:
        view = new_op(ViewOp, fresh_name(graph, f"{old.name}_view"), "view.default", metas=[old.tensor_meta])
        view._arguments = [fused, list(old.tensor_meta.shape)]
        chain.append(view)
    graph.displace_node_with_chain(old, chain)
    fused.metas = (meta,)
    graph.set_arguments(fused, [q, k, v, pattern.mask, 0.0, False], {"scale": pattern.scale})
    graph.link()


def _reshape(graph: Graph, before: Op, node: Op, leading_sizes: tuple[int, ...]) -> Op:
    """Returns `node` in the shape [*leading_sizes, its last dim].

    The result is the earliest node with this shape among `node` and the operands that it views. If no node has it, the
    result is a new view of `node`, inserted before node `before`.
    """
    shape = (*leading_sizes, node.tensor_meta.shape[-1])
    earliest, source = None, node
    while True:
        earliest = source if source.tensor_meta.shape == shape else earliest
        if not _is_view(source):
            break
        source = source.args[0]
    return earliest or _insert(graph, before, ViewOp, node, list(shape), shape)


def _transpose_keys(graph: Graph, before: Op, node: Op, shape: tuple[int, ...]) -> Op:
    """Returns the keys [*batch, keys, width]; `node` has their transpose, of `shape` [*batch, width, keys]."""
    *batch, width, keys = shape
    transposed = _reshape(graph, before, node, shape[:-1])
    source, order = transposed, list(range(len(shape)))
    if isinstance(transposed, (TransposeOp, PermuteOp)):
        source, order = transposed.args[0], permutation_of(transposed)
    order[-2], order[-1] = order[-1], order[-2]
    if order == sorted(order):
        return source
    return _insert(graph, before, PermuteOp, source, order, (*batch, keys, width))


def _insert(
    graph: Graph, before: Op, cls: type[Op], source: Op, sizes_or_order: list[int], shape: tuple[int, ...]
) -> Op:
    """Inserts a view or permutation of `source`, with a result of `shape`, before node `before`."""
    op_name = "view" if cls is ViewOp else "permute"
    name = fresh_name(graph, f"{source.name}_{op_name}")
    meta = TensorMeta(shape, source.tensor_meta.dtype)
    node = new_op(cls, name, f"{op_name}.default", [source, sizes_or_order], [meta])
    node.module, node.location = before.module, before.location
    graph.insert_before(before, node)
    return node


# ---- graph passes ----------------------------------------------------------------------------------------------------


# The torch op that runs a fused node in eager.
TARGET = "scaled_dot_product_attention.default"
_DYNAMIC_SHAPE_REASON = "its shape is dynamic, and blocks of keys need a static shape"
# The element types of the attention that is fused.
FLOATS = (TensorDType.BFloat16, TensorDType.Float16, TensorDType.Float32, TensorDType.Float64)


def flash_attention_prefill(graph: Graph) -> list[Note]:
    """Replace attention by one op that processes blocks of keys, and so does not store all scores."""
    notes = []
    for node in graph.operations:
        if isinstance(node, ScaledDotProductFlashAttentionForCpuOp):
            reason = _unsupported_reason(node)
            if reason is None:
                # A `None` option is omitted.
                enable_gqa = None if _heads(node.args[0]) == _heads(node.args[1]) else True
                _fuse(graph, node, FlashAttentionForCpuPrefillOp, node.args[:3], enable_gqa=enable_gqa)
            notes.append(Note(node.stable, f"left: {reason}" if reason else "processes its keys in blocks"))
        elif isinstance(node, SoftmaxOp):
            if is_dynamic(node.tensor_meta.shape):
                notes.append(Note(node.stable, f"left: {_DYNAMIC_SHAPE_REASON}"))
            else:
                notes.append(fuse_softmax_attention(graph, node, TARGET))
    graph.drop_unused()
    return notes


def gqa_attention_fusion(graph: Graph) -> list[Note]:
    """Make grouped-query attention read each head of keys and values directly, without repeating it in memory."""
    notes = []
    for node in graph.operations:
        if isinstance(node, (ScaledDotProductFlashAttentionForCpuOp, FlashAttentionForCpuPrefillOp)):
            notes.append(_fuse_repetition(graph, node))
    graph.drop_unused()
    return notes


def _unsupported_reason(node: Op) -> str | None:
    """Returns why a scaled-dot-product node is not fused, or `None`."""
    if any(is_dynamic(operand.tensor_meta.shape) for operand in node.args[:3]):
        return _DYNAMIC_SHAPE_REASON
    if argument(node, 3, "dropout_p", 0.0):
        return "it has dropout"
    if not is_only_result_read(node, 0):
        return "its log-sum-exp is read"
    if node.tensor_meta.dtype not in FLOATS:
        return f"{node.tensor_meta.dtype.value} is not supported"
    return None


def _fuse(graph: Graph, node: Op, cls: type[Op], operands: list[Op], **options: object) -> Op:
    """Replaces `node` by a fused node of class `cls` with `operands` q, k and v."""
    if isinstance(node, ScaledDotProductFlashAttentionForCpuOp):
        mask, causal = node.kwargs.get("attn_mask"), argument(node, 4, "is_causal", False)
        scale = node.kwargs.get("scale")
        new = replace_node(graph, node, cls, TARGET, [*operands, mask, 0.0, causal], scale=scale, **options)
        bypass_getitems(graph, new)
        return new
    return replace_node(graph, node, cls, TARGET, [*operands, *node.args[3:]], **{**node.kwargs, **options})


def _fuse_repetition(graph: Graph, node: Op) -> Note:
    """Makes an attention read the tensors whose heads its keys and values repeat. Returns what was done."""
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
    """Returns the number of heads of `node`, of shape […, heads, rows, width]."""
    heads: int = node.tensor_meta.shape[-3]
    return heads


def _repeated_source(node: Op) -> Op | None:
    """Returns the tensor whose heads `node` repeats, or `None` if `node` does not repeat heads.

    The pattern is an unsqueeze, an expand, and a view to [batch, heads, …]; copies between these nodes are ignored.
    """
    shape, view = node.tensor_meta.shape, _skip_copies(node)
    if len(shape) != 4 or not isinstance(view, (ViewOp, ReshapeOp)):
        return None
    expand = _skip_copies(view.args[0])
    if not isinstance(expand, ExpandOp):
        return None
    unsqueeze = _skip_copies(expand.args[0])
    if not isinstance(unsqueeze, (UnsqueezeOp, ViewOp, ReshapeOp)):
        return None
    source = unsqueeze.args[0]
    batch, groups, *rest = source.tensor_meta.shape
    times = shape[1] // groups if groups else 0
    is_repetition = (
        (batch, groups * times, *rest) == shape
        and unsqueeze.tensor_meta.shape == (batch, groups, 1, *rest)
        and expand.tensor_meta.shape == (batch, groups, times, *rest)
    )
    return source if is_repetition else None


def _skip_copies(node: Op) -> Op:
    """Returns the tensor that `node` copies, or `node`; slices and expands to the same shape count as copies."""
    while isinstance(node, (CloneOp, AliasOp, SliceOp, ExpandOp)) and node.args[0].tensor_meta == node.tensor_meta:
        node = node.args[0]
    return node


# ---- products and groups ---------------------------------------------------------------------------------------------


# The name of the group of all ops.
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
