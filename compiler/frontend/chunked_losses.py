"""Decomposes `linear_cross_entropy`, a linear layer and its cross entropy, in chunks of rows.

The logits of one chunk are in memory at a time, rather than those of all rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any

import torch

# A loss of more chunks stays one op, which runs in eager: each chunk adds about twenty ops to the graph.
_MAX_CHUNKS = 16


def reduced_loss(
    x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None,
    class_weight: torch.Tensor | None, reduction: str, ignored: int, label_smoothing: float, chunk: int, policy: str,
    accumulator: torch.dtype, retain_graph: bool, wants_x: bool, wants_weight: bool, wants_bias: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Returns the loss of `x` [rows, width], and its gradients of x, `weight` [classes, width] and `bias` [classes].

    `reduction` is "mean" or "sum". `target` [rows] are class numbers; rows whose target is `ignored` do not count, and
    the mean is NaN if all are ignored. `class_weight` [classes] are factors of the losses. `chunk` is the number of
    rows of a chunk. A gradient that is not wanted is empty.

    Calls with symbolic sizes, without rows, with label smoothing or more than `_MAX_CHUNKS` chunks stay unchanged, and
    run in eager. So do calls in half precision, whose `accumulator` is of another type than `x`, because eager rounds
    according to `policy`.
    """
    if not _is_supported(x, weight, chunk) or label_smoothing or accumulator != x.dtype or not x.size(0):
        return NotImplemented
    scale = _row_weights(target, class_weight, ignored, x.dtype)
    if reduction == "mean":
        total = scale.sum()
        scale = scale / torch.where(total == 0, torch.nan, total)
    losses, x_gradients, weight_gradients, bias_gradients = [], [], [], []
    for rows, targets, row_scale in _chunks(x, target, scale, ignored, chunk):
        loss, shifted, log_sums = _losses(rows, weight, bias, targets)
        losses.append((loss * row_scale).sum())
        probabilities = (shifted - log_sums).exp()
        is_target = torch.arange(weight.size(0), device=x.device) == targets.unsqueeze(1)
        logit_gradients = (probabilities - is_target.to(x.dtype)) * row_scale.unsqueeze(1)
        x_gradients.append(logit_gradients @ weight)
        weight_gradients.append(logit_gradients.t() @ rows)
        bias_gradients.append(logit_gradients.sum(0))
    return (
        reduce(add, losses),
        torch.cat(x_gradients) if wants_x else x.new_zeros([0, 0]),
        reduce(add, weight_gradients) if wants_weight else x.new_zeros([0, 0]),
        reduce(add, bias_gradients) if wants_bias else x.new_zeros([0]),
    )


def row_losses(
    x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None,
    class_weight: torch.Tensor | None, ignored: int, chunk: int, policy: str, accumulator: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Returns the losses [rows] of `x` [rows, width]; 0 for rows whose target is `ignored`.

    The arguments are those of `reduced_loss`, and the same calls stay unchanged.
    """
    if not _is_supported(x, weight, chunk) or accumulator != x.dtype or not x.size(0):
        return NotImplemented
    scale = _row_weights(target, class_weight, ignored, x.dtype)
    chunks = _chunks(x, target, scale, ignored, chunk)
    return torch.cat([_losses(rows, weight, bias, targets)[0] * row_scale for rows, targets, row_scale in chunks])


def _is_supported(x: torch.Tensor, weight: torch.Tensor, chunk: int) -> bool:
    is_static = all(type(size) is int for size in (*x.shape, *weight.shape))
    return is_static and weight.dim() == 2 and x.size(0) <= _MAX_CHUNKS * chunk


def _row_weights(
    target: torch.Tensor, class_weight: torch.Tensor | None, ignored: int, dtype: torch.dtype
) -> torch.Tensor:
    """Returns the factor [rows] of each row's loss: 0 for an ignored row, else the weight of its class."""
    is_ignored = target == ignored
    if class_weight is None:
        return (~is_ignored).to(dtype)
    return torch.where(is_ignored, 0, class_weight.index_select(0, torch.where(is_ignored, 0, target)).to(dtype))


def _chunks(
    x: torch.Tensor, target: torch.Tensor, scale: torch.Tensor, ignored: int, chunk: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields, chunk by chunk, rows, their class numbers (0 if ignored), and the factors of their losses."""
    classes = torch.where(target == ignored, 0, target)
    for start in range(0, x.size(0), chunk):
        end = min(start + chunk, x.size(0))
        yield x[start:end], classes[start:end], scale[start:end]


def _losses(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the cross entropy of each row, its logits minus their maximum, and the logsumexp of these differences."""
    logits = rows @ weight.t()
    logits = logits if bias is None else logits + bias
    shifted = logits - logits.amax(1, keepdim=True)
    log_sums = shifted.exp().sum(1, keepdim=True).log()
    return (log_sums - shifted.gather(1, targets.unsqueeze(1))).squeeze(1), shifted, log_sums


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns the rules by op; none before PyTorch 2.13, which has the ops in a module that registers them."""
    with suppress(ImportError):
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
    rules: dict[str, Callable[..., Any]] = {
        "_linear_cross_entropy_batch_chunked": reduced_loss,
        "_linear_cross_entropy_batch_chunked_no_reduction": row_losses,
    }
    ops = torch.ops.torch_nn
    return {getattr(ops, name).default: rule for name, rule in rules.items() if hasattr(ops, name)}


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = _decompositions()
