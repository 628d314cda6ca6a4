"""Results of ops that NaN and infinity reach depending on the algorithm: other correct ones may differ.

By definition they reach every number of a Fourier transform, in both of its parts. An algorithm leaves out products
with known zeros, which depend on how it factors the length. Only numbers that are their own conjugates, in transforms
of real numbers, are always real.

Attention of a NaN query is NaN in most of PyTorch's kernels; the one for CPUs returns 0.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu.default
_TRANSFORMS = (_aten._fft_c2c.default, _aten._fft_r2c.default, _aten._fft_c2r.default)


def spread_nonfinite(func: Any, args: Any, kwargs: Any, found: Any, chance: torch.Generator) -> None:
    """Changes `found`, the results of `func`, in place and at random where another algorithm might differ.

    Results of ops outside this module are unchanged.
    """
    if func in _TRANSFORMS:
        _transformed(func, args, found, chance)
    elif func == _ATTENTION and bool(torch.rand((), generator=chance) < 0.5):
        _attended(args, kwargs or {}, found[0])


def _attended(args: Any, kwargs: Any, found: torch.Tensor) -> None:
    query, key, value, *rest = args
    defaults: list[Any] = [0.0, False]
    dropout, is_causal = rest + defaults[len(rest) :]
    with torch.utils._python_dispatch._disable_current_modes():
        if not all(bool(tensor.isfinite().all()) for tensor in (query, key, value)):
            mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
            by_math = _aten._scaled_dot_product_attention_math
            found.copy_(by_math(query, key, value, mask, dropout, is_causal, None, scale=scale)[0])


def _transformed(func: Any, args: Any, found: Any, chance: torch.Generator) -> None:
    """Makes every part that another algorithm might make NaN either NaN or infinite."""
    with torch.utils._python_dispatch._disable_current_modes():
        numbers, dims = args[0], args[1]
        reached = (~numbers.isfinite()).sum(dims, keepdim=True).bool().expand(found.shape)
        parts = torch.view_as_real(found) if found.is_complex() else found
        if found.is_complex():
            reached = torch.stack([reached, reached], -1)
        if func == _aten._fft_r2c.default:
            reached[..., 1] &= ~_own_conjugates(numbers, found, dims)
        values = torch.where(torch.rand(parts.shape, generator=chance) < 0.5, math.nan, math.inf)
        parts.copy_(torch.where(reached, values.to(parts.dtype), parts))


def _own_conjugates(numbers: torch.Tensor, found: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Which results are their own conjugates: number k of n is the conjugate of number n - k, and number 0 of
    itself.
    """
    own = torch.ones(found.shape, dtype=torch.bool)
    for dim in dims:
        places = torch.arange(found.shape[dim])
        along = (2 * places) % numbers.shape[dim] == 0
        own &= along.reshape([-1 if place == dim % found.dim() else 1 for place in range(found.dim())])
    return own
