"""The gradients of fused attention in terms of matrix products: what eager keeps in one opaque op."""

from __future__ import annotations

import math

import torch


def attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, dropout_p: float, is_causal: bool, *, attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Gradients of query, key and value, [batch, heads, tokens, width] each, from what the forward pass kept.

    Weights are made again from `logsumexp` [batch, heads, tokens], as in FlashAttention (Dao et al., 2022):
    with P = exp(S - logsumexp) and D = rowsum(grad * out), dS = P * (grad Vt - D). Attention with dropout never gets
    here, since PyTorch does not fuse it on a CPU.
    """
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    kind, work = query.dtype, torch.promote_types(query.dtype, torch.float32)
    grad, query, key, value, out = (t.to(work) for t in (grad, query, key, value, out))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * factor
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = (scores - logsumexp[..., None]).exp()
    if attn_mask is not None:  # a row that sees nothing has no weights
        weights = torch.where((logsumexp == -torch.inf)[..., None], 0.0, weights)
    slopes = weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True)) * factor
    return (slopes @ key).to(kind), (slopes.mT @ query).to(kind), (weights.mT @ grad).to(kind)


DECOMPOSITIONS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward}
