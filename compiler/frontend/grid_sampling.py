"""Decomposes `grid_sample` and its gradients to the steps of eager's kernels, in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add, mul
from typing import Any

import torch

aten = torch.ops.aten

# Maps a position along a dim of the given size to the position that is read for it, inside of the dim.
PadPosition = Callable[[torch.Tensor, int], torch.Tensor]

# Values of the arguments `interpolation` and `padding` of the ops.
_NEAREST, _CUBIC = 1, 2
_PAD_WITH_ZEROS, _PAD_BY_REFLECTION = 0, 2
# The parameter of the cubic kernel of Keys (1981), as in eager.
_CUBIC_PARAMETER = -0.75


def grid_sample(
    x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool
) -> torch.Tensor:
    """Returns `x` [n, channels, *sizes] at the positions `grid` [n, *out, dims], as [n, channels, *out].

    The last coordinate of a position is for the first dim of `sizes`; -1 and 1 are the ends of a dim: the centres of
    its outermost elements with `align_corners`, otherwise their outer edges. `interpolation` is 0 for linear, 1 for
    nearest, 2 for cubic (two dims only). `padding` is 0 for zeros outside, 1 for the nearest edge, 2 for reflection.
    """
    sizes = x.shape[2:]
    to_elements = _to_elements if len(sizes) == 2 else _to_volume_elements
    positions = [to_elements(grid[..., -1 - dim], size, align_corners) for dim, size in enumerate(sizes)]

    def pad(position: torch.Tensor, size: int) -> torch.Tensor:
        return _pad_position(position, size, padding, align_corners)

    if interpolation == _CUBIC:
        return _sample_cubic(x, positions, pad)
    positions = [pad(position, size) for position, size in zip(positions, sizes, strict=True)]
    if interpolation == _NEAREST:
        return _gather_elements(x, [position.round() for position in positions])
    return _sample_linear(x, positions)


def _to_elements(position: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Maps a coordinate in [-1, 1] to a position in elements.

    Eager multiplies by half the size. Halving the other factor rounds the same, and avoids a float that depends on a
    symbolic size, which cannot be passed from a forward to a backward graph.
    """
    return (position + 1) / 2 * (size - 1) if align_corners else (position + 1) / 2 * size - 0.5


def _to_volume_elements(position: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Like `_to_elements`, in the order of operations of eager's kernel for volumes."""
    return (position + 1) / 2 * (size - 1) if align_corners else ((position + 1) * size - 1) / 2


def _pad_position(position: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Returns the positions inside of a dim that are read for `position`; for padding with zeros, it is unchanged."""
    if padding == _PAD_WITH_ZEROS:
        return position
    if padding == _PAD_BY_REFLECTION:
        position = _reflect(position, *_reflection_range(size, align_corners))
    # Written so that NaN becomes 0.
    return torch.where(position > 0, position, 0).clamp_max(size - 1)


def _reflection_range(size: int, align_corners: bool) -> tuple[float, int]:
    """Returns the lower end of a dim at which positions are reflected, and the period of the reflected positions."""
    return (0, 2 * (size - 1)) if align_corners else (-0.5, 2 * size)


def _reflect(position: torch.Tensor, low: float, period: int) -> torch.Tensor:
    """Reflects positions at `low` and at `low + period / 2`, until they lie between these."""
    if period == 0:
        return torch.zeros_like(position)
    distance = (position - low).abs() if low else position.abs()
    remainder = distance - (distance / period).trunc() * period
    remainder = torch.minimum(remainder, period - remainder)
    return remainder + low if low else remainder


def _gather_elements(x: torch.Tensor, positions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the elements of `x` at integer `positions`, one tensor per dim; 0 for positions outside."""
    indices = [position.to(torch.int64).unsqueeze(1) for position in positions]
    sizes = x.shape[2:]
    inside = reduce(
        torch.logical_and, [(index >= 0) & (index < size) for index, size in zip(indices, sizes, strict=True)]
    )
    outer_indices = [torch.arange(x.size(dim)).view([-1 if d == dim else 1 for d in range(x.dim())]) for dim in (0, 1)]
    return torch.where(inside, x[(*outer_indices, *(torch.where(inside, index, 0) for index in indices))], 0)


def _sample_linear(x: torch.Tensor, positions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns `x` at `positions`, one tensor per dim, by interpolation between the 2 neighbours in each dim."""
    lows = [position.floor() for position in positions]
    fractions = [position - low for position, low in zip(positions, lows, strict=True)]
    weight_pairs = [(1 - fraction, fraction) for fraction in fractions]
    terms = []
    for corner in product((0, 1), repeat=len(positions)):
        # Eager multiplies the weights of the last dim first.
        weights = [pair[offset] for pair, offset in zip(weight_pairs, corner, strict=True)][::-1]
        element = [low + 1 if offset else low for low, offset in zip(lows, corner, strict=True)]
        terms.append(_gather_elements(x, element) * reduce(mul, weights).unsqueeze(1))
    return reduce(add, terms)


def _sample_cubic(x: torch.Tensor, positions: Sequence[torch.Tensor], pad: PadPosition) -> torch.Tensor:
    """Returns `x` [n, channels, height, width] at `positions`, by interpolation between 4 x 4 elements."""
    lows = [position.floor() for position in positions]
    weights = [_cubic_weights(position - low) for position, low in zip(positions, lows, strict=True)]
    rows, columns = (
        [pad(low + tap, size) for tap in (-1, 0, 1, 2)] for low, size in zip(lows, x.shape[2:], strict=True)
    )
    row_sums = [
        reduce(add, [w * _gather_elements(x, [row, c]) for w, c in zip(weights[1], columns, strict=True)])
        for row in rows
    ]
    return reduce(add, map(mul, weights[0], row_sums))


def _cubic_weights(fraction: torch.Tensor) -> list[torch.Tensor]:
    """Returns the weights of the elements at -1, 0, 1 and 2 for a sample at `fraction` (Keys 1981)."""
    fraction, a = fraction.unsqueeze(1), _CUBIC_PARAMETER

    def far(x: torch.Tensor) -> torch.Tensor:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x: torch.Tensor) -> torch.Tensor:
        return (x * (a + 2) - (a + 3)) * x * x + 1

    return [far(fraction + 1), near(fraction), near(1 - fraction), far(2 - fraction)]


# ---- gradients -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tap:
    """One tap of the interpolation kernel along one dim; all fields are [n, *out].

    `position` has the integer positions that samples read, `weight` the factors of the elements there, and `slope` the
    derivatives of the factors with respect to the position of the sample.
    """

    position: torch.Tensor
    weight: torch.Tensor
    slope: torch.Tensor


def grid_sample_backward(
    gradient: torch.Tensor, x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor]:  # fmt: skip
    """Returns the gradients of `x`, if `output_mask` wants it, and of `grid`, for a `gradient` [n, channels, *out].

    A call in half precision stays unchanged: eager rounds each term that it adds to the gradient of an element.
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return NotImplemented
    sizes = x.shape[2:]
    to_elements = _to_elements if len(sizes) == 2 else _to_volume_elements
    taps_of_dims, factors = [], []
    for dim, size in enumerate(sizes):
        position = to_elements(grid[..., -1 - dim], size, align_corners)
        factor = size - 1 if align_corners else size
        taps, slope = _taps(position, size, interpolation, padding, align_corners)
        taps_of_dims.append(taps)
        factors.append(slope / 2 * factor)
    # Each sample is one tap of each dim.
    samples = list(product(*taps_of_dims))
    x_gradient = _scatter_samples(gradient, x, samples) if output_mask[0] else None
    if interpolation == _NEAREST:
        return x_gradient, torch.zeros_like(grid, memory_format=torch.contiguous_format)
    projections = [(_gather_elements(x, [tap.position for tap in sample]) * gradient).sum(1) for sample in samples]
    slopes = []
    for dim, factor in enumerate(factors):
        terms = [
            projection * reduce(mul, [tap.slope if d == dim else tap.weight for d, tap in enumerate(sample)])
            for sample, projection in zip(samples, projections, strict=True)
        ]
        slopes.append(reduce(add, terms) * factor)
    return x_gradient, torch.stack(slopes[::-1], -1)


def _taps(
    position: torch.Tensor, size: int, interpolation: int, padding: int, align_corners: bool
) -> tuple[list[_Tap], torch.Tensor]:
    """Returns the taps of samples at `position` along a dim of `size`, and the derivatives of the padded positions."""
    one = torch.ones_like(position)
    if interpolation == _CUBIC:
        low = position.floor()
        weights = [weight.squeeze(1) for weight in _cubic_weights(position - low)]
        taps = [
            _Tap(_pad_position(low + offset, size, padding, align_corners), weight, slope)
            for offset, weight, slope in zip((-1, 0, 1, 2), weights, _cubic_slopes(position - low), strict=True)
        ]
        return taps, one
    padded = _pad_position(position, size, padding, align_corners)
    slope = _pad_slope(position, size, padding, align_corners)
    if interpolation == _NEAREST:
        return [_Tap(padded.round(), one, one)], slope
    low = padded.floor()
    fraction = padded - low
    return [_Tap(low, 1 - fraction, -one), _Tap(low + 1, fraction, one)], slope


def _pad_slope(position: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    """Returns the derivative of `_pad_position`: 0 outside, and -1 after an odd number of reflections."""
    sign = torch.ones_like(position)
    if padding == _PAD_WITH_ZEROS:
        return sign
    if padding == _PAD_BY_REFLECTION:
        low, period = _reflection_range(size, align_corners)
        if period == 0:
            return torch.zeros_like(position)
        distance = (position - low).abs()
        remainder = distance - (distance / period).trunc() * period
        is_reflected = (position < low) ^ (remainder > period - remainder)
        sign = torch.where(is_reflected, -sign, sign)
        position = _reflect(position, low, period)
    return torch.where((position > 0) & (position < size - 1), sign, 0)


def _cubic_slopes(fraction: torch.Tensor) -> list[torch.Tensor]:
    """Returns the derivatives of `_cubic_weights` with respect to `fraction`, without the dim of channels."""
    a = _CUBIC_PARAMETER

    def far(x: torch.Tensor) -> torch.Tensor:
        return (x * (3 * a) - 10 * a) * x + 8 * a

    def near(x: torch.Tensor) -> torch.Tensor:
        return (x * (3 * (a + 2)) - 2 * (a + 3)) * x

    return [far(fraction + 1), near(fraction), -near(1 - fraction), -far(2 - fraction)]


def _scatter_samples(gradient: torch.Tensor, x: torch.Tensor, samples: Sequence[Sequence[_Tap]]) -> torch.Tensor:
    """Returns the gradient of `x`: the sum of `gradient` over the samples that read an element, times their weights."""
    sizes, indices, values = x.shape[2:], [], []
    for sample in samples:
        positions = [tap.position.to(torch.int64) for tap in sample]
        inside = reduce(torch.logical_and, [(p >= 0) & (p < size) for p, size in zip(positions, sizes, strict=True)])
        flat = reduce(lambda index, pair: index * pair[1] + pair[0], zip(positions, sizes, strict=True), 0)
        weight = torch.where(inside, reduce(mul, [tap.weight for tap in sample][::-1]), 0)
        indices.append(torch.where(inside, flat, 0).flatten(1))
        values.append(torch.where(inside.unsqueeze(1), gradient * weight.unsqueeze(1), 0).flatten(2))
    index = torch.cat(indices, 1).unsqueeze(1).expand(-1, x.size(1), -1)
    zeros = x.new_zeros([*x.shape[:2], math.prod(sizes)])
    return zeros.scatter_add(2, index, torch.cat(values, 2)).reshape(x.shape)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.grid_sampler_2d.default: grid_sample,
    aten.grid_sampler_3d.default: grid_sample,
    aten.grid_sampler_2d_backward.default: grid_sample_backward,
    aten.grid_sampler_3d_backward.default: grid_sample_backward,
}
