"""Decomposes fractional max pooling (Graham 2014) and its gradient: the starts of windows depend on random samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

aten = torch.ops.aten


def fractional_max_pool(
    x: torch.Tensor, kernel_sizes: Sequence[int], result_sizes: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the maxima of windows of `x` [*batch, channels, *sizes], and their indices.

    Both are [*batch, channels, *result_sizes]. `samples` [n, channels, dims] are numbers from 0 to 1 that move the
    windows. An index counts the elements of one channel. Of equal elements the first is chosen, and of several NaNs the
    last, as in eager. A call with symbolic sizes stays unchanged, and runs in eager.
    """
    dims = len(kernel_sizes)
    sizes = x.shape[-dims:]
    if not all(type(size) is int for size in (*sizes, *result_sizes)):
        return NotImplemented
    planes = x.reshape(samples.size(0), x.size(-dims - 1), math.prod(sizes))  # [n, channels, elements]
    # The index of each element of each window: [n, channels, *result_sizes, *kernel_sizes].
    indices = samples.new_zeros([1] * (2 + 2 * dims), dtype=torch.int64)
    for dim in range(dims):
        # Samples of images are in the order width, height; those of volumes are in the order of the dims.
        sample = samples[..., dims - 1 - dim if dims == 2 else dim]
        positions = _window_positions(sample, sizes[dim], kernel_sizes[dim], result_sizes[dim])
        shape = [*positions.shape[:2], *[1] * (2 * dims)]
        shape[2 + dim], shape[2 + dims + dim] = result_sizes[dim], kernel_sizes[dim]
        indices = indices * sizes[dim] + positions.reshape(shape)
    windows = indices.expand(*planes.shape[:2], *result_sizes, *kernel_sizes).flatten(2 + dims)
    values = planes.gather(2, windows.flatten(2)).reshape(windows.shape)
    last_nan = torch.where(values.isnan(), torch.arange(values.size(-1), device=x.device), -1).amax(-1)
    chosen = torch.where(last_nan >= 0, last_nan, values.argmax(-1)).unsqueeze(-1)
    shape = [*x.shape[:-dims], *result_sizes]
    return values.gather(-1, chosen).reshape(shape), windows.gather(-1, chosen).reshape(shape)


def _window_positions(sample: torch.Tensor, size: int, width: int, count: int) -> torch.Tensor:
    """Returns the positions [n, channels, count, width] of the elements of `count` windows along a dim of `size`.

    The last window ends with the dim; the starts of the others are equally spaced, rounded down, and moved by `sample`
    [n, channels].
    """
    last = torch.full([*sample.shape, 1], size - width, dtype=torch.int64, device=sample.device)
    starts = last
    if count > 1:
        spacing = (size - width) / (count - 1)
        if sample.dtype == torch.float32:  # eager divides in the type of the samples
            spacing = float(np.float32(size - width) / np.float32(count - 1))
        steps = torch.arange(count - 1, device=sample.device, dtype=sample.dtype)
        moved = ((steps + sample.unsqueeze(-1)) * spacing).to(torch.int64)
        starts = torch.cat([moved - (sample.unsqueeze(-1) * spacing).to(torch.int64), last], -1)
    return starts.unsqueeze(-1) + torch.arange(width, device=sample.device)


def fractional_max_pool_backward(
    gradient: torch.Tensor, x: torch.Tensor, kernel_sizes: Sequence[int], result_sizes: Sequence[int],
    indices: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradient of `x`: each element gets the gradients of the windows whose maximum it is.

    A call in half precision stays unchanged, and runs in eager.
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented
    first = x.dim() - len(kernel_sizes)
    zeros = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(first)
    return zeros.scatter_add(-1, indices.flatten(first), gradient.flatten(first)).reshape(x.shape)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fractional_max_pool2d.default: fractional_max_pool,
    aten.fractional_max_pool3d.default: fractional_max_pool,
    aten.fractional_max_pool2d_backward.default: fractional_max_pool_backward,
    aten.fractional_max_pool3d_backward.default: fractional_max_pool_backward,
}
