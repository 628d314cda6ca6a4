"""Decompositions of matrix products whose operands are quantised, with their scales: in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


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
    aten._scaled_mm.default: scaled_mm,
    aten._weight_int8pack_mm.default: int8_weight_mm,
}
