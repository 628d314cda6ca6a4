"""Decomposes resampling of images (`upsample_*`) to the steps of eager's kernels, in their order.

PyTorch's own decompositions compute in f32: they are off by one for bytes, which eager resamples in fixed point, and in
half precision by up to an eighth of a pixel. The Python dispatcher gives the decompositions of bilinear and bicubic
resampling priority over any table; `eager_dispatch.dispatch_like_eager` overrides them while a graph is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten
# The maximum number of fraction bits of weights in fixed point, as in eager.
_MAX_FRACTION_BITS = 22


@dataclass(frozen=True)
class ResamplingFilter:
    """An interpolation kernel that spans `taps` elements (before antialiasing widens it).

    Called with a distance in elements, it returns the weight of an element at that distance. Cubic kernels are those of
    Keys (1981); eager sets their parameter to -0.75, and to -0.5 for antialiasing.
    """

    taps: int
    antialias: bool

    def __call__(self, distance: float) -> float:
        x = abs(distance)
        if x >= self.taps / 2:
            return 0.0
        if self.taps == 2:
            return 1 - x
        a = -0.5 if self.antialias else -0.75
        return ((a + 2) * x - (a + 3)) * x * x + 1 if x < 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


@dataclass(frozen=True)
class ResamplingScale:
    """How one dim is resampled.

    `source` and `result` are its sizes in the operand and in the result. `step` is the distance of neighbouring
    elements of the result, in elements of the source.
    """

    source: int
    result: int
    step: float
    align_corners: bool


def resample_images(
    x: torch.Tensor, sizes: Sequence[int], align_corners: bool, scales: Sequence[float | None], kernel: ResamplingFilter
) -> torch.Tensor:
    """Resamples `x` [n, channels, height, width] to `sizes` of the last two dims; `_source_step` explains `scales`.

    The last dim is resampled first; bytes are rounded between the dims. For bytes, symbolic sizes are specialised to
    the sizes of this call, and Dynamo recompiles for other sizes. A call on another dtype with symbolic sizes stays
    unchanged, and so does a call in half precision, which eager rejects.
    """
    is_static = all(type(size) is int for size in (*x.shape[2:], *sizes))
    if x.dtype in (torch.float16, torch.bfloat16) or not (is_static or x.dtype == torch.uint8):
        return NotImplemented
    memory_format = suggest_memory_format(x)
    for dim in (3, 2):
        source, result, scale = int(x.size(dim)), int(sizes[dim - 2]), scales[dim - 2]
        step = _source_step(source, result, align_corners, scale)
        rows = _weight_rows(ResamplingScale(source, result, step, align_corners), kernel)
        x = _resample_bytes(x, dim, rows) if x.dtype == torch.uint8 else _weighted_sums(x, dim, rows, float)
    return x.contiguous(memory_format=memory_format)


def resample_gradient(
    gradient: torch.Tensor, sizes: Sequence[int], input_sizes: Sequence[int], align_corners: bool,
    scales: Sequence[float | None], kernel: ResamplingFilter,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradient of images of `input_sizes` [n, channels, height, width].

    `gradient` is the gradient of the resampled images, `sizes` are their height and width. Each element gets the
    gradients of the results that read it, times its weights. The result of linear resampling has the memory format of
    `gradient`, others are contiguous, as in eager. A call with symbolic sizes, or in half precision, stays unchanged
    and runs in eager.
    """
    if gradient.dtype in (torch.float16, torch.bfloat16) or not all(type(n) is int for n in (*input_sizes, *sizes)):
        return NotImplemented
    memory_format = suggest_memory_format(gradient) if kernel.taps == 2 else torch.contiguous_format
    for dim in (2, 3):
        source, result = input_sizes[dim], sizes[dim - 2]
        step = _source_step(source, result, align_corners, scales[dim - 2])
        # For each source element, the weights with which the elements of the result read it.
        transposed_rows: list[dict[int, float]] = [{} for _ in range(source)]
        for index, row in enumerate(_weight_rows(ResamplingScale(source, result, step, align_corners), kernel)):
            for position, weight in row.items():
                transposed_rows[position][index] = weight
        gradient = _weighted_sums(gradient, dim, transposed_rows, float)
    return gradient.contiguous(memory_format=memory_format)


def _source_step(source: int, result: int, align_corners: bool, scale: float | None) -> float:
    """Returns the `step` of a `ResamplingScale`; without `align_corners`, a given `scale` determines it."""
    if align_corners:
        return (source - 1) / (result - 1) if result > 1 else 0.0
    return 1 / scale if scale else source / result


def _weight_rows(scale: ResamplingScale, kernel: ResamplingFilter) -> list[dict[int, float]]:
    """Returns, for each element of the result, its weights by source position."""
    row = _antialiased_weight_row if kernel.antialias else _weight_row
    return [row(index, scale, kernel) for index in range(scale.result)]


def _weight_row(index: int, scale: ResamplingScale, kernel: ResamplingFilter) -> dict[int, float]:
    """Returns the weights of result element `index`; weights outside of the source are added to the nearest element."""
    position = scale.step * index if scale.align_corners else scale.step * (index + 0.5) - 0.5
    if kernel.taps == 2:
        position = max(position, 0.0)
    low = min(math.floor(np.float32(position)), scale.source - 1)  # eager rounds to f32 only here
    fraction = min(max(position - low, 0.0), 1.0)
    weights: dict[int, float] = {}
    for tap in range(1 - kernel.taps // 2, 1 + kernel.taps // 2):
        clamped = min(max(low + tap, 0), scale.source - 1)
        weights[clamped] = weights.get(clamped, 0.0) + kernel(tap - fraction)
    return weights


def _antialiased_weight_row(index: int, scale: ResamplingScale, kernel: ResamplingFilter) -> dict[int, float]:
    """Returns the weights of result element `index`, for a kernel stretched by the step, normalized to the sum 1."""
    width = max(scale.step, 1.0)
    centre, support = scale.step * (index + 0.5), kernel.taps * 0.5 * width
    first, end = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), scale.source)
    weights = {position: kernel((position - centre + 0.5) / width) for position in range(first, end)}
    total = sum(weights.values())
    return {position: weight / total for position, weight in weights.items()} if total else weights


def _resample_bytes(x: torch.Tensor, dim: int, rows: list[dict[int, float]]) -> torch.Tensor:
    """Resamples in fixed point: weights are 16-bit integers, and the largest weight determines their fraction bits.

    As in eager's kernel, there are at most `_MAX_FRACTION_BITS`, and as many as keep the weights below 2**15.
    """
    largest = max((weight for row in rows for weight in row.values()), default=0.0)
    fraction_bits = next(
        (n for n in range(_MAX_FRACTION_BITS) if int(0.5 + largest * (1 << (n + 1))) >= 1 << 15), _MAX_FRACTION_BITS
    )

    def to_fixed_point(weight: float) -> int:
        return int(weight * (1 << fraction_bits) + (0.5 if weight >= 0 else -0.5))

    total = _weighted_sums(x.to(torch.int32), dim, rows, to_fixed_point) + (1 << (fraction_bits - 1))
    return (total >> fraction_bits).clamp(0, 255).to(torch.uint8)


def _weighted_sums(
    x: torch.Tensor, dim: int, rows: list[dict[int, float]], convert: Callable[[float], float]
) -> torch.Tensor:
    """Returns the weighted sums along `dim`: element `i` of the result has the weights `rows[i]`, by source position.

    `convert` converts a weight to a number of the type of `x`. Sums are computed tap by tap, so shorter rows are padded
    with weights of 0.
    """
    taps = max((len(row) for row in rows), default=0)
    padded_rows = [[*row.items()] + [(0, 0.0)] * (taps - len(row)) for row in rows]
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    total = None
    for tap in range(taps):
        positions = _constant([row[tap][0] for row in padded_rows], torch.int64)
        weights = _constant([convert(row[tap][1]) for row in padded_rows], x.dtype).view(shape)
        term = x.index_select(dim, positions) * weights
        total = term if total is None else total + term
    assert total is not None
    return total


def _constant(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Returns a constant that is created outside of the trace, which rejects `torch.tensor` as an in-place op."""
    with _disable_current_modes():
        constant = torch.tensor(values, dtype=dtype)
    return aten.lift_fresh_copy(constant)


def _resampler(taps: int, antialias: bool) -> Callable[..., torch.Tensor]:
    """Returns a rule for an op that resamples images with a kernel of `taps` elements."""

    def resample(
        x: torch.Tensor, sizes: Sequence[int], align_corners: bool, scale_h: float | None = None,
        scale_w: float | None = None,
    ) -> torch.Tensor:  # fmt: skip
        return resample_images(x, sizes, align_corners, (scale_h, scale_w), ResamplingFilter(taps, antialias))

    return resample


def _resampler_gradient(taps: int, antialias: bool) -> Callable[..., torch.Tensor]:
    """Returns a rule for the gradient of an op of `_resampler`."""

    def resample_backward(
        gradient: torch.Tensor, sizes: Sequence[int], input_sizes: Sequence[int], align_corners: bool,
        scale_h: float | None = None, scale_w: float | None = None,
    ) -> torch.Tensor:  # fmt: skip
        kernel = ResamplingFilter(taps, antialias)
        return resample_gradient(gradient, sizes, input_sizes, align_corners, (scale_h, scale_w), kernel)

    return resample_backward


def _for_bytes_only(rule: Callable[..., object]) -> Callable[..., object]:
    """Returns `rule` for uint8; calls on other dtypes stay unchanged."""

    def for_bytes(x: torch.Tensor, *rest: object, **kwargs: object) -> object:
        return rule(x, *rest, **kwargs) if x.dtype == torch.uint8 else NotImplemented

    return for_bytes


def _drop_ignored_scales(overload: torch._ops.OpOverload, doubles: bool) -> Callable[..., object]:
    """Returns a rule for the overload `vec` that calls `overload` without the scales that eager ignores.

    `overload` takes one scale for each dim. Eager ignores the scale of a dim whose size does not change and, with
    `doubles`, of a dim whose size doubles.
    """

    def resample(x: torch.Tensor, sizes: Sequence[int] | None, *rest: object) -> object:
        *options, last = rest
        scales: Any = last
        if sizes is not None or scales is None or not all(type(size) is int for size in x.shape):
            return NotImplemented
        pairs = [(size, math.floor(size * scale)) for size, scale in zip(x.shape[2:], scales, strict=True)]
        is_ignored = [count == size or (doubles and count == 2 * size) for size, count in pairs]
        if not any(is_ignored):
            return NotImplemented
        remaining_scales = [None if ignored else scale for ignored, scale in zip(is_ignored, scales, strict=True)]
        return overload(x, [count for _, count in pairs], *options, *remaining_scales)

    return resample


def _accept_scale_list(resample: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns `resample` as a rule for the overload `vec`, whose list of scales determines missing sizes."""

    def from_list(
        x: torch.Tensor, sizes: Sequence[int] | None, align_corners: bool, scales: Sequence[float] | None = None
    ) -> torch.Tensor:
        if sizes is None:
            assert scales is not None
            sizes = [math.floor(size * scale) for size, scale in zip(x.shape[2:], scales, strict=True)]
        return resample(x, sizes, align_corners, *(scales or ()))

    return from_list


_linear, _cubic = _resampler(2, antialias=False), _resampler(4, antialias=False)
# For `eager_dispatch.dispatch_like_eager`.
DISPATCHER_RULES: dict[Any, Sequence[Callable[..., Any]]] = {
    aten.upsample_bilinear2d.default: [_for_bytes_only(_linear)],
    aten.upsample_bilinear2d.vec: [
        _for_bytes_only(_accept_scale_list(_linear)),
        _drop_ignored_scales(aten.upsample_bilinear2d.default, doubles=False),
    ],
    aten.upsample_bicubic2d.default: [_for_bytes_only(_cubic)],
    aten.upsample_bicubic2d.vec: [_for_bytes_only(_accept_scale_list(_cubic))],
    aten.upsample_linear1d.vec: [_drop_ignored_scales(aten.upsample_linear1d.default, doubles=False)],
    aten.upsample_trilinear3d.vec: [_drop_ignored_scales(aten.upsample_trilinear3d.default, doubles=False)],
    # Only eager's kernel for images ignores scales of nearest resampling; kernels for 1 and 3 dims always use them.
    aten.upsample_nearest2d.vec: [_drop_ignored_scales(aten.upsample_nearest2d.default, doubles=True)],
}
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._upsample_bilinear2d_aa.default: _resampler(2, antialias=True),
    aten._upsample_bicubic2d_aa.default: _resampler(4, antialias=True),
    aten._upsample_bilinear2d_aa_backward.default: _resampler_gradient(2, antialias=True),
    aten._upsample_bicubic2d_aa_backward.default: _resampler_gradient(4, antialias=True),
}
