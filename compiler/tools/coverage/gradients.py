"""Gradients of a program's results by its inputs, with random numbers as the gradients of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

SEED = 0


class Gradients(NamedTuple):
    """One dense tensor for each leaf; `any` says whether some result depends on some leaf."""

    tensors: tuple[torch.Tensor, ...]
    any: bool


def leaves_of(arguments: Any) -> list[torch.Tensor]:
    """The tensors in a nest of arguments whose gradients are wanted."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def differentiate(results: Any, leaves: Sequence[torch.Tensor]) -> Gradients:
    """The gradients of `leaves`, of a nest of results of a call that autograd has followed.

    Autograd says None of a leaf that results do not depend on, or gives zeros, which is the same: it is zeros here.
    The strides of gradients are nobody's promise, so all are contiguous.
    """
    wanted, seeds = [], []
    for number, result in enumerate(tree_leaves(results)):
        if isinstance(result, torch.Tensor) and result.requires_grad:
            chance = torch.Generator().manual_seed(SEED + number)
            wanted.append(result)
            seeds.append(torch.randn(result.shape, dtype=result.dtype, generator=chance))
    found = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True) if wanted and leaves else [None] * len(leaves)
    made = [
        torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(leaves, found, strict=True)
    ]
    dense = [gradient.to_dense() if gradient.layout != torch.strided else gradient for gradient in made]
    return Gradients(
        tuple(gradient.detach().contiguous() for gradient in dense), any(gradient is not None for gradient in found)
    )
