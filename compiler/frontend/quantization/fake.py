"""Decompositions of `fake_quantize_*`, which round as eager does.

Eager's kernels are in aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Quantised = tuple[torch.Tensor, torch.Tensor]

# Beyond int64, to which eager converts between rounding and clamping per channel.
_BEYOND_INT64 = 2.0**63


def _rounded(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    """`x` in steps of `scale`, in float32 or wider; ties round to even."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return zero_point.to(wide.dtype) + torch.round(wide * scale.to(torch.float32).reciprocal())


def _back(
    x: torch.Tensor, steps: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int
) -> Quantised:
    """The clamped `steps` converted back, in the type of `scale`, and the mask of steps that were in range."""
    kept = torch.where(steps.isnan(), low, steps.clamp(low, high))
    numbers = (kept - zero_point.to(steps.dtype)).to(scale.dtype) * scale
    return numbers.to(x.dtype), (steps >= low) & (steps <= high)


def per_tensor(x: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Quantised:
    step, zero = torch.full([], scale, dtype=torch.float32), torch.full([], zero_point, dtype=torch.int64)
    return _back(x, _rounded(x, step, zero), step, zero, quant_min, quant_max)


def per_tensor_of_tensors(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, quant_min: int,
    quant_max: int,
) -> Quantised:  # fmt: skip
    """`scale`, `zero_point` and `enabled` have one element each; if the last one is 0, `x` is unchanged."""
    step, zero, on = scale.reshape([]), zero_point.reshape([]), enabled.reshape([]) != 0
    numbers, inside = _back(x, _rounded(x, step, zero), step, zero, quant_min, quant_max)
    return torch.where(on, numbers, x), inside | ~on


def per_channel(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> Quantised:
    if zero_point.is_floating_point():
        return NotImplemented
    form = [-1 if dim == axis else 1 for dim in range(x.dim())]
    # Per channel, eager converts the scales to the promoted type; a single scale stays in float32.
    step, zero = scale.reshape(form).to(torch.promote_types(x.dtype, scale.dtype)), zero_point.reshape(form)
    steps = _rounded(x, step, zero)
    steps = torch.where(steps.abs() < _BEYOND_INT64, steps, float("nan"))
    return _back(x, steps, step, zero, quant_min, quant_max)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: per_tensor_of_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: per_channel,
}
