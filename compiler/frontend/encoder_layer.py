"""Decomposes the fused transformer layer that `nn.TransformerEncoderLayer` calls in evaluation mode."""

from __future__ import annotations

import torch

F = torch.nn.functional


def encoder_layer(
    x: torch.Tensor, width: int, heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, out_weight: torch.Tensor,
    out_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor, up_weight: torch.Tensor,
    up_bias: torch.Tensor, down_weight: torch.Tensor, down_bias: torch.Tensor, mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """One layer on `x` [batch, tokens, width]. With a mask the op is unchanged."""
    if mask is not None or x.dim() != 3:
        return NotImplemented

    def attention(y: torch.Tensor) -> torch.Tensor:
        qkv = F.linear(y, qkv_weight, qkv_bias).unflatten(-1, (3, heads, width // heads))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)
        return F.linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed_forward(y: torch.Tensor) -> torch.Tensor:
        y = F.linear(y, up_weight, up_bias)
        return F.linear(F.gelu(y) if use_gelu else F.relu(y), down_weight, down_bias)

    first = (norm_weight_1.shape, norm_weight_1, norm_bias_1, eps)
    second = (norm_weight_2.shape, norm_weight_2, norm_bias_2, eps)
    if norm_first:
        x = x + attention(F.layer_norm(x, *first))
        return x + feed_forward(F.layer_norm(x, *second))
    x = F.layer_norm(x + attention(x), *first)
    return F.layer_norm(x + feed_forward(x), *second)


DECOMPOSITIONS = {torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer}
