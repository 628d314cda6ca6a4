"""Decompositions of ATen's quantisation ops: `fake_quantize_*`, which round like eager, and products with scales.

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


def scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`a` [m, k] times `b` [k, n], float8, in float32; scales are per tensor, or per row of `a` and column of `b`.

    As in eager, `scale_result` only divides results that are float8 because of `out_dtype`; `use_fast_accum` is for
    GPUs.
    """
    product = (a.to(torch.float32) * scale_a) @ (b.to(torch.float32) * scale_b)
    if bias is not None:
        product = product + bias
    if scale_result is not None and out_dtype is not None and out_dtype.itemsize == 1:
        product = product / scale_result
    return product.to(out_dtype or a.dtype)


def int8_weight_mm(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x` [m, k], a float type, times the transpose of `weight` [n, k], int8; column i is scaled by `scales[i]`."""
    product = x.to(torch.float32) @ weight.to(torch.float32).t()
    return (product * scales.to(torch.float32)).to(x.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: per_tensor_of_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: per_channel,
    aten._scaled_mm.default: scaled_mm,
    aten._weight_int8pack_mm.default: int8_weight_mm,
}
