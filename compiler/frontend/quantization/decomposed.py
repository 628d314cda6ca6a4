"""Decompositions of the ops of `quantized_decomposed`, which exported and PT2E-quantised models call.

PyTorch defines these ops by Python functions (torch/ao/quantization/fx/_decomposed.py). A function that only calls
other ops is its op's decomposition; those below stand for the ones that read numbers out of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.ao.quantization.fx import _decomposed as eager

ops = torch.ops.quantized_decomposed

Parameters = tuple[torch.Tensor, torch.Tensor]


def _single(parameter: torch.Tensor, like: torch.dtype) -> torch.Tensor:
    """The number in a tensor of one element, as an operand that takes no part in the promotion of types."""
    return parameter.reshape([]).to(like)


def quantize_per_tensor(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: Any, high: Any, dtype: torch.dtype
) -> torch.Tensor:
    """`x` in steps of `scale`; the parameters are tensors of one element, `low` and `high` numbers or such tensors."""
    wide = x.to(torch.float32)
    # Eager divides in double precision, in Python, and multiplies in that of `wide`.
    inverse = scale.to(torch.float64).reciprocal()
    steps = torch.round(wide * _single(inverse, wide.dtype)) + _single(zero_point, wide.dtype)
    return _clamped(steps, low, high).to(dtype)


def _clamped(steps: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    if isinstance(low, torch.Tensor):
        return torch.clamp(steps, _single(low, steps.dtype), _single(high, steps.dtype))
    return torch.clamp(steps, low, high)


def dequantize_per_tensor(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: Any, high: Any, dtype: torch.dtype,
    *, out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    number = out_dtype or torch.float32
    # Eager's scalar operands are of float32 where the others are halves.
    wide = torch.promote_types(number, torch.float32)
    above = (q.to(number).to(wide) - _single(zero_point, wide)).to(number)
    return (above.to(wide) * _single(scale, wide)).to(number)


def _ranges(x: torch.Tensor) -> Parameters:
    """The least and the greatest of `x` and 0, without dims."""
    least, most = torch.aminmax(x)
    return torch.minimum(least, torch.zeros_like(least)), torch.maximum(most, torch.zeros_like(most))


def choose_qparams(x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> Parameters:
    """A scale, float64, and a zero point, int64, with one element each, by which `x` covers `low` to `high`."""
    least, most = _ranges(x)
    scale = torch.maximum((most - least) / float(high - low), torch.full([1], eps, dtype=torch.float32))
    zero_point = low - torch.round(least / scale).to(torch.int32)
    return scale.to(torch.float64), torch.clamp(zero_point, low, high).to(torch.int64)


def choose_qparams_symmetric(x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> Parameters:
    """As `choose_qparams`, with the zero point in the middle of the range of `dtype`."""
    least, most = _ranges(x)
    scale = torch.maximum(-least, most) / (float(high - low) / 2)
    scale = torch.maximum(scale, torch.full([1], eps, dtype=torch.float32))
    middle = 128 if dtype == torch.uint8 else 0
    return scale.to(torch.float64), torch.full([1], middle, dtype=torch.int64)


def quantize_per_channel_group(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, low: int, high: int, dtype: torch.dtype,
    group_size: int = 128,
) -> torch.Tensor:  # fmt: skip
    """Each `group_size` elements along the rows of `x` [m, n] have a scale and a zero point, [m, n / group_size].

    As in eager, NaN is refused.
    """
    size = x.shape[-1] if group_size > x.shape[-1] and scales.shape[-1] == 1 else group_size
    torch.ops.aten._assert_async.msg(x.isnan().logical_not().all(), "to_quant must not contain NaNs")
    inverse = (1.0 / scales).reshape(-1, 1)
    steps = (x.reshape(-1, size) * inverse + zero_points.reshape(-1, 1)).round().clamp(low, high)
    return steps.to(dtype).reshape(x.shape)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    ops.quantize_per_tensor.default: eager.quantize_per_tensor,
    ops.quantize_per_tensor.tensor: quantize_per_tensor,
    ops.quantize_per_tensor.tensor2: quantize_per_tensor,
    ops.dequantize_per_tensor.default: eager.dequantize_per_tensor,
    ops.dequantize_per_tensor.tensor: dequantize_per_tensor,
    ops.dequantize_per_tensor.tensor2: dequantize_per_tensor,
    ops.choose_qparams.tensor: choose_qparams,
    ops.choose_qparams_symmetric.tensor: choose_qparams_symmetric,
    ops.quantize_per_channel.default: eager.quantize_per_channel,
    ops.dequantize_per_channel.default: eager.dequantize_per_channel,
    ops.choose_qparams_per_token.default: eager.choose_qparams_per_token,
    ops.choose_qparams_per_token_asymmetric.default: eager.choose_qparams_per_token_asymmetric,
    ops._choose_qparams_per_token_asymmetric_impl.default: eager._choose_qparams_per_token_asymmetric_impl,
    ops.quantize_per_token.default: eager.quantize_per_token,
    ops.dequantize_per_token.default: eager.dequantize_per_token,
    ops.quantize_per_channel_group.default: quantize_per_channel_group,
    ops.dequantize_per_channel_group.default: eager.dequantize_per_channel_group,
    ops.convert_element_type.no_fuse: eager.convert_element_type,
}
