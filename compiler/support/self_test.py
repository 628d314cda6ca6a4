"""A model that tests an installation: a matrix product, followed by element-wise ops."""

from __future__ import annotations

import torch


def model(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Returns gelu(x @ weight + bias), for `x` [rows, k], `weight` [k, columns] and `bias` [columns]."""
    return torch.nn.functional.gelu(x @ weight + bias)


# In float32: `x` [8, 16], `weight` [16, 4], `bias` [4].
example_inputs = (
    torch.linspace(-1, 1, 8 * 16).reshape(8, 16),
    torch.linspace(0, 1, 16 * 4).reshape(16, 4),
    torch.ones(4),
)
