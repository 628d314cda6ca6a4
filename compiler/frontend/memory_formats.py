"""Decompositions of ops whose results have other strides in eager than by PyTorch's decompositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Returns `x` rolled by `shifts`: concatenates two parts in each dim, as eager does if `x` is not contiguous.

    The concatenation has the format of its parts; the op itself reports a contiguous result.
    """
    if x.is_contiguous() or not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.size(dim)
        if not isinstance(size, int):
            return NotImplemented
        start = -shift % size if size else 0
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim) if size else x.clone()
    return x


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Returns `x` [batch, channels, ...] with the channels of `groups` interleaved, in the format of `x`."""
    parts = x.reshape(x.size(0), groups, x.size(1) // groups, *x.shape[2:])
    return parts.transpose(1, 2).reshape(x.shape).contiguous(memory_format=suggest_memory_format(x))


def make_first_contiguous(rule: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., Sequence[torch.Tensor]]:
    """Returns torch's `rule` with a contiguous first result."""

    def decompose(x: torch.Tensor, *rest: object) -> Sequence[torch.Tensor]:
        first, *others = rule(x, *rest)
        return first.contiguous(), *others

    return decompose


def in_suggested_format(rule: Callable[..., object]) -> Callable[..., object]:
    """Returns torch's `rule`, called with the operand in its suggested format, so that the result has that format."""

    def decompose(x: torch.Tensor, *rest: object) -> object:
        return rule(x.contiguous(memory_format=suggest_memory_format(x)), *rest)

    return decompose


def batch_norm(x: torch.Tensor, *rest: object) -> object:
    """Normalizes `x` in its suggested memory format, so that the result has that format, as in eager."""
    memory_format = suggest_memory_format(x)
    if x.is_contiguous(memory_format=memory_format):
        return NotImplemented
    return aten._native_batch_norm_legit_no_training(x.contiguous(memory_format=memory_format), *rest)


_BATCH_NORMS = [
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
    aten._native_batch_norm_legit.no_stats,
]
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.channel_shuffle.default: channel_shuffle,
    aten.native_channel_shuffle.default: channel_shuffle,
    aten.log_sigmoid_forward.default: make_first_contiguous(
        torch._decomp.decomposition_table[aten.log_sigmoid_forward.default]
    ),
    **{op: in_suggested_format(torch._decomp.decomposition_table[op]) for op in _BATCH_NORMS},
}
# For ops with an op class, which handles all calls for which these return `NotImplemented`.
CONDITIONAL_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.roll.default: roll,
    aten._native_batch_norm_legit_no_training.default: batch_norm,
}
