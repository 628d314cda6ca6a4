"""A group of programs on the same inputs, and how inputs are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class Group:
    """`functions` all take `inputs`; they are captured as one program that returns a tensor for each."""

    inputs: tuple[torch.Tensor, ...]
    functions: dict[str, Callable[..., torch.Tensor]]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [function(*inputs) for function in self.functions.values()]


_random = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_random).to(dtype)


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=_random).to(dtype)
