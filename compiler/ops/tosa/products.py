"""Matrix products and attention in TOSA, by `tosa.matmul`, which takes rank 3 and accumulates floats in f32."""

from __future__ import annotations

from functools import partial
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.indexing import causal_mask
from buddy.compiler.ops.tosa.reductions import log_sum_exp, softmax
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import (
    TosaTensor,
    cast,
    is_equal,
    matmul,
    reduced,
    reshape,
    select,
    tiled,
    transpose,
)
from buddy.compiler.ops.tosa.types import require
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)


def _factors(node: Op, symbol_table: SymbolTable, first: int = 0) -> tuple[TosaTensor, TosaTensor]:
    a, b = (tensor_of(arg, symbol_table) for arg in node.args[first : first + 2])
    require("matmul", a.dtype)
    require("matmul", b.dtype)
    return a, b


def _rank_3(x: TosaTensor) -> TosaTensor:
    return reshape(x, [1, *x.shape]) if len(x.shape) == 2 else x


def _product(node: Op, symbol_table: SymbolTable, first: int = 0) -> TosaTensor:
    """Returns the product of two matrices, or of two batches of them, in the accumulator type."""
    a, b = _factors(node, symbol_table, first)
    found = matmul(_rank_3(a), _rank_3(b))
    return reshape(found, found.shape[1:]) if len(a.shape) == 2 else found


@lowering("MatmulOp", "BatchMatmulOp", "IntMatmulOp")
def product(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return cast(_product(node, symbol_table), node.tensor_meta.dtype)


@lowering("TransposeMatmulFusedOp", "TransposeAddMMFusedOp")
def product_by_transpose(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Computes `a bᵀ`, plus the third operand if the node has one."""
    a, b = _factors(node, symbol_table)
    found = matmul(_rank_3(a), transpose(_rank_3(b), [0, 2, 1]))
    found = reshape(found, found.shape[1:])
    if len(node.args) > 2:
        found = found + registration.operand(node.args[2], 2, symbol_table, found.dtype)
    return cast(found, node.tensor_meta.dtype)


@lowering("MatVecOp")
def matrix_by_vector(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    a, v = _factors(node, symbol_table)
    found = matmul(_rank_3(a), reshape(v, [1, v.shape[0], 1]))
    return cast(reshape(found, [a.shape[0]]), node.tensor_meta.dtype)


@lowering("DotOp")
def dot(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    a, b = _factors(node, symbol_table)
    size = a.shape[0]
    return cast(reshape(matmul(reshape(a, [1, 1, size]), reshape(b, [1, size, 1])), []), node.tensor_meta.dtype)


@lowering("AddMMOp", "BaddbmmOp")
def product_with_addend(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Computes `beta * addend + alpha * (a @ b)`, rounded once to a half type."""
    meta = node.tensor_meta
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    found = _product(node, symbol_table, 1)
    found = found if alpha == 1 else found * alpha
    if beta != 0:
        addend = registration.operand(node.args[0], len(meta.shape), symbol_table, found.dtype)
        found = found + (addend if beta == 1 else addend * beta)
    return cast(found, meta.dtype)


@lowering("ScaledDotProductFlashAttentionForCpuOp")
def attention(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Lowers `softmax(scale * q kᵀ + mask) v` on [batch, heads, length, width]. Also returns each row's log-sum-exp."""
    q, k, v = (tensor_of(arg, symbol_table) for arg in node.args[:3])
    require("matmul", q.dtype)
    if argument(node, 3, "dropout_p", 0.0):
        raise LoweringError("attention with dropout is random")
    (batch, heads, rows, _), columns = q.shape, k.shape[2]
    k, v = (_repeat_heads(found, heads) for found in (k, v))
    scale = node.kwargs.get("scale")
    keys = transpose(_merge_heads(k), [0, 2, 1])
    scores = reshape(matmul(_merge_heads(q), keys), [batch, heads, rows, columns])
    scores = _apply_masks(node, symbol_table, scores * (q.shape[-1] ** -0.5 if scale is None else scale))
    weights = _merge_heads(_zero_masked_rows(node, softmax(scores, 3), scores))
    found = reshape(matmul(cast(weights, v.dtype), _merge_heads(v)), [batch, heads, rows, v.shape[-1]])
    results = [cast(found, q.dtype)]
    if node.metas[1] is not None:
        sums = reshape(_zero_masked_rows(node, log_sum_exp(scores, 3), scores), [batch, heads, rows])
        results.append(cast(reshape(sums, node.metas[1].shape), node.metas[1].dtype))
    return results


def _zero_masked_rows(node: Op, found: TosaTensor, scores: TosaTensor) -> TosaTensor:
    """Returns `found` with zeros in fully masked rows, as in eager's kernel; softmax returns NaN for them."""
    if node.kwargs.get("attn_mask") is None:
        return found
    shown = select(is_equal(scores, float("-inf")), scores.like(0.0), scores.like(1.0))
    return select(is_equal(reduced("reduce_max", shown, [3]), 0.0), found.like(0.0), found)


def _repeat_heads(x: TosaTensor, heads: int) -> TosaTensor:
    """Repeats each head of keys or values for the query heads that share it."""
    batch, own, length, width = x.shape
    apart = tiled(reshape(x, [batch, own, 1, length, width]), [1, 1, heads // own, 1, 1])
    return reshape(apart, [batch, heads, length, width])


def _merge_heads(x: TosaTensor) -> TosaTensor:
    """Merges batch and heads into one dim."""
    return reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])


def _apply_masks(node: Op, symbol_table: SymbolTable, scores: TosaTensor) -> TosaTensor:
    mask, hidden = node.kwargs.get("attn_mask"), scores.like(float("-inf"))
    if mask is not None:
        found = registration.operand(mask, len(scores.shape), symbol_table)
        scores = select(found, scores, hidden) if found.dtype is TensorDType.Bool else scores + found
    if argument(node, 4, "is_causal", False):
        scores = select(causal_mask(scores.shape), scores, hidden)
    return scores


ops_registry.absent |= dict.fromkeys(
    ("FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp", "MaskedSoftmaxAttentionOp"),
    "no loop-carried values, which blocked attention needs",
)
