"""Decomposes dropout so that only its random op may run in eager."""

from __future__ import annotations

import torch


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` with each element kept with probability 1 - `p` and then divided by that, and the mask of kept elements.

    Follows eager's `dropout` on a CPU: the noise has the form of `x` (its strides determine the order of drawing), is
    divided first, and none is drawn if nothing or everything is dropped.
    """
    if train is False or p == 0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    noise = _kept(x, 1 - p)
    return x * (noise / (1 - p)), noise.to(torch.bool)


def _kept(x: torch.Tensor, p: float) -> torch.Tensor:
    """Ones with probability `p`, else zeros, drawn in the memory order of a tensor like `x`."""
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda dim: -strides[dim])
    return torch.ops.aten.bernoulli.p(x.permute(order), p).permute([order.index(dim) for dim in range(x.dim())])


DECOMPOSITIONS = {torch.ops.aten.native_dropout.default: native_dropout}
