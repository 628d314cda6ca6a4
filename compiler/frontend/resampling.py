"""Resamples images as eager does: with weights known at compile time, and at given positions (`grid_sample`).

PyTorch's own decompositions take priority over any table of decompositions and differ from eager: they resample bytes
in f32 instead of fixed point, and round positions in half precision only once. `resampled_as_in_eager` overrides them
while a graph is traced; the replacements take the steps of eager's kernels in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add, mul
from typing import Any

import numpy
import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.frontend import formulas

aten = torch.ops.aten
# The dispatch keys whose kernels decompose; those of others only compute shapes.
_DECOMPOSING = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


@dataclass(frozen=True)
class ResamplingFilter:
    """A kernel of `taps` elements without downscaling, and its weight at a distance (in elements).

    Cubic ones are Keys' (1981); eager sets the parameter to -0.75, and to -0.5 for antialiasing.
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
    """How one dim is resampled: the distance of two result elements in the source, and both sizes."""

    source: int
    result: int
    step: float
    align_corners: bool


def resampled(
    x: torch.Tensor, sizes: Sequence[int], align_corners: bool, scales: Sequence[float | None], kernel: ResamplingFilter
) -> torch.Tensor:
    """`x` [n, channels, height, width] with `sizes` for the last two dims; a scale that is not None sets the step.

    One dim after the other, the last first; bytes are rounded in between. For bytes, which have no other rule, symbolic
    sizes become those of this call, and Dynamo recompiles for others. Otherwise symbolic sizes are unchanged, and so is
    half precision, which eager rejects.
    """
    whole = all(type(size) is int for size in (*x.shape[2:], *sizes))
    if x.dtype in (torch.float16, torch.bfloat16) or not (whole or x.dtype == torch.uint8):
        return NotImplemented
    layout = suggest_memory_format(x)
    for dim in (3, 2):
        source, result, scale = int(x.size(dim)), int(sizes[dim - 2]), scales[dim - 2]
        step = _step(source, result, align_corners, scale)
        rows = _rows(ResamplingScale(source, result, step, align_corners), kernel)
        x = _bytes_along(x, dim, rows) if x.dtype == torch.uint8 else _summed(x, dim, rows, float)
    return x.contiguous(memory_format=layout)


def _step(source: int, result: int, align_corners: bool, scale: float | None) -> float:
    if align_corners:
        return (source - 1) / (result - 1) if result > 1 else 0.0
    return 1 / scale if scale else source / result


def _rows(scale: ResamplingScale, kernel: ResamplingFilter) -> list[dict[int, float]]:
    """For each element of the result its weights by source position."""
    row = _antialiased_row if kernel.antialias else _row
    return [row(at, scale, kernel) for at in range(scale.result)]


def _row(at: int, scale: ResamplingScale, kernel: ResamplingFilter) -> dict[int, float]:
    """Positions outside count for the nearest inside."""
    place = scale.step * at if scale.align_corners else scale.step * (at + 0.5) - 0.5
    if kernel.taps == 2:
        place = max(place, 0.0)
    low = min(math.floor(numpy.float32(place)), scale.source - 1)  # eager rounds to f32 only here
    part = min(max(place - low, 0.0), 1.0)
    weights: dict[int, float] = {}
    for tap in range(1 - kernel.taps // 2, 1 + kernel.taps // 2):
        inside = min(max(low + tap, 0), scale.source - 1)
        weights[inside] = weights.get(inside, 0.0) + kernel(tap - part)
    return weights


def _antialiased_row(at: int, scale: ResamplingScale, kernel: ResamplingFilter) -> dict[int, float]:
    """The kernel is as wide as a step; weights outside are left out, and the rest normalized to 1."""
    wide = max(scale.step, 1.0)
    centre, support = scale.step * (at + 0.5), kernel.taps * 0.5 * wide
    first, end = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), scale.source)
    weights = {place: kernel((place - centre + 0.5) / wide) for place in range(first, end)}
    total = sum(weights.values())
    return {place: weight / total for place, weight in weights.items()} if total else weights


def _bytes_along(x: torch.Tensor, dim: int, rows: list[dict[int, float]]) -> torch.Tensor:
    """In fixed point: weights are 16-bit integers, with as many fraction bits as the largest one permits."""
    largest = max((weight for row in rows for weight in row.values()), default=0.0)
    digits = next((n for n in range(22) if int(0.5 + largest * (1 << (n + 1))) >= 1 << 15), 22)

    def whole(weight: float) -> int:
        return int(weight * (1 << digits) + (0.5 if weight >= 0 else -0.5))

    total = _summed(x.to(torch.int32), dim, rows, whole) + (1 << (digits - 1))
    return (total >> digits).clamp(0, 255).to(torch.uint8)


def _summed(x: torch.Tensor, dim: int, rows: list[dict[int, float]], of: Callable[[float], float]) -> torch.Tensor:
    """The weighted sums along `dim`, tap by tap; rows with fewer taps end in weights of 0."""
    taps = max((len(row) for row in rows), default=0)
    listed = [[*row.items()] + [(0, 0.0)] * (taps - len(row)) for row in rows]
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    total = None
    for tap in range(taps):
        places = _constant([row[tap][0] for row in listed], torch.int64)
        weights = _constant([of(row[tap][1]) for row in listed], x.dtype).view(shape)
        term = x.index_select(dim, places) * weights
        total = term if total is None else total + term
    assert total is not None
    return total


def _constant(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Made outside the trace: `torch.tensor` would add an in-place op, which decompositions must not contain."""
    with _disable_current_modes():
        found = torch.tensor(values, dtype=dtype)
    return aten.lift_fresh_copy(found)


def _resampler(taps: int, antialias: bool) -> Callable[..., torch.Tensor]:
    def resample(
        x: torch.Tensor, sizes: Sequence[int], align_corners: bool, scale_h: float | None = None,
        scale_w: float | None = None,
    ) -> torch.Tensor:  # fmt: skip
        return resampled(x, sizes, align_corners, (scale_h, scale_w), ResamplingFilter(taps, antialias))

    return resample


@contextmanager
def resampled_as_in_eager() -> Iterator[None]:
    """While active, traced graphs use our rules in place of PyTorch's where those differ from eager."""
    before = [(overload, key, rule) for overload in _RULES for key, rule in overload.py_kernels.items()]
    try:
        for overload, key, rule in before:
            if key in _DECOMPOSING:
                _put(overload, key, _instead_of(rule, _RULES[overload]))
        yield
    finally:
        for overload, key, rule in before:
            _put(overload, key, rule)


def _put(overload: Any, key: Any, rule: Callable[..., Any]) -> None:
    overload.py_kernels[key] = rule
    overload._dispatch_cache.clear()


def _instead_of(rule: Callable[..., Any], ours: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """The first result of `ours` that is not `NotImplemented`, else `rule`."""

    def dispatched(x: torch.Tensor, *rest: Any, **further: Any) -> Any:
        answers = (candidate(x, *rest, **further) for candidate in ours)
        found = next((answer for answer in answers if answer is not NotImplemented), NotImplemented)
        return rule(x, *rest, **further) if found is NotImplemented else found

    return dispatched


def _of_bytes(rule: Callable[..., Any]) -> Callable[..., Any]:
    def for_bytes(x: torch.Tensor, *rest: Any, **further: Any) -> Any:
        return rule(x, *rest, **further) if x.dtype == torch.uint8 else NotImplemented

    return for_bytes


def _without_idle_scales(overload: Any, doubles: bool) -> Callable[..., Any]:
    """The overload `vec`, by `overload`, which takes a scale for each dim; scales that eager ignores are left out.

    Eager copies along a dim whose size is unchanged, whatever the scale, and, for nearest resampling, `doubles`
    elements if the size doubles.
    """

    def resample(x: torch.Tensor, sizes: Sequence[int] | None, *rest: Any) -> Any:
        *options, scales = rest
        if sizes is not None or scales is None or not all(type(size) is int for size in x.shape):
            return NotImplemented
        pairs = [(size, math.floor(size * scale)) for size, scale in zip(x.shape[2:], scales, strict=True)]
        idle = [count == size or (doubles and count == 2 * size) for size, count in pairs]
        if not any(idle):
            return NotImplemented
        kept = [None if is_idle else scale for is_idle, scale in zip(idle, scales, strict=True)]
        return overload(x, [count for _, count in pairs], *options, *kept)

    return resample


def _from_list(resample: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The overload `vec`: both scales in a list, which may determine the sizes."""

    def from_list(
        x: torch.Tensor, sizes: Sequence[int] | None, align_corners: bool, scales: Sequence[float] | None = None
    ) -> torch.Tensor:
        if sizes is None:
            assert scales is not None
            sizes = [math.floor(size * scale) for size, scale in zip(x.shape[2:], scales, strict=True)]
        return resample(x, sizes, align_corners, *(scales or ()))

    return from_list


_linear, _cubic = _resampler(2, antialias=False), _resampler(4, antialias=False)
# Rules with priority over PyTorch's own, by overload.
_RULES: dict[Any, list[Callable[..., Any]]] = {
    aten.upsample_bilinear2d.default: [_of_bytes(_linear)],
    aten.upsample_bilinear2d.vec: [
        _of_bytes(_from_list(_linear)), _without_idle_scales(aten.upsample_bilinear2d.default, doubles=False),
    ],
    aten.upsample_bicubic2d.default: [_of_bytes(_cubic)],
    aten.upsample_bicubic2d.vec: [_of_bytes(_from_list(_cubic))],
    aten.upsample_linear1d.vec: [_without_idle_scales(aten.upsample_linear1d.default, doubles=False)],
    aten.upsample_trilinear3d.vec: [_without_idle_scales(aten.upsample_trilinear3d.default, doubles=False)],
    # For nearest resampling, only eager's kernel for images does so; those for lines and volumes always use the scale.
    aten.upsample_nearest2d.vec: [_without_idle_scales(aten.upsample_nearest2d.default, doubles=True)],
    # Not resampling, but PyTorch's rule is applied in the same way.
    aten.multilabel_margin_loss_forward.default: [formulas.multilabel_margin_loss],
    aten.softshrink.default: [formulas.softshrink],
}  # fmt: skip
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._upsample_bilinear2d_aa.default: _resampler(2, antialias=True),
    aten._upsample_bicubic2d_aa.default: _resampler(4, antialias=True),
}


Places = Callable[[torch.Tensor, int], torch.Tensor]


def grid_sample(
    x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool
) -> torch.Tensor:
    """`x` [n, channels, *sizes] at the positions `grid` [n, *out, dims], as [n, channels, *out].

    The last coordinate of a position is for the first dim of `sizes`; -1 and 1 are the ends of a dim, the centres of
    its outermost elements with `align_corners`, else their far edges. Interpolation 0 is linear, 1 nearest, 2 cubic
    (two dims only); padding outside is 0 for zeros, 1 for the nearest edge, 2 for reflection.
    """
    sizes = x.shape[2:]
    scaled = _scaled if len(sizes) == 2 else _scaled_volume
    places = [scaled(grid[..., -1 - dim], size, align_corners) for dim, size in enumerate(sizes)]

    def padded(place: torch.Tensor, size: int) -> torch.Tensor:
        return _padded(place, size, padding, align_corners)

    if interpolation == 2:
        return _sample_cubic(x, places, padded)
    places = [padded(place, size) for place, size in zip(places, sizes, strict=True)]
    if interpolation == 1:
        return _taken(x, [place.round() for place in places])
    return _sample_linear(x, places)


def _scaled(place: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """Maps [-1, 1] to elements."""
    return (place + 1) * ((size - 1) / 2) if align_corners else (place + 1) * (size / 2) - 0.5


def _scaled_volume(place: torch.Tensor, size: int, align_corners: bool) -> torch.Tensor:
    """The same for volumes, where eager uses another order."""
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _padded(place: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    if padding == 0:
        return place
    if padding == 2:
        place = _mirrored(place, 0 if align_corners else -0.5, 2 * (size - 1 if align_corners else size))
    # In this form, NaN becomes 0.
    return torch.where(place > 0, place, 0).clamp_max(size - 1)


def _mirrored(place: torch.Tensor, low: float, period: int) -> torch.Tensor:
    if period == 0:
        return torch.zeros_like(place)
    away = (place - low).abs() if low else place.abs()
    rest = away - (away / period).trunc() * period
    rest = torch.minimum(rest, period - rest)
    return rest + low if low else rest


def _taken(x: torch.Tensor, places: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements at integer positions `places`, 0 outside."""
    whole = [place.to(torch.int64).unsqueeze(1) for place in places]
    sizes = x.shape[2:]
    inside = reduce(torch.logical_and, [(at >= 0) & (at < size) for at, size in zip(whole, sizes, strict=True)])
    outer = [torch.arange(x.size(dim)).view([-1 if d == dim else 1 for d in range(x.dim())]) for dim in (0, 1)]
    return torch.where(inside, x[(*outer, *(torch.where(inside, at, 0) for at in whole))], 0)


def _sample_linear(x: torch.Tensor, places: Sequence[torch.Tensor]) -> torch.Tensor:
    lows = [place.floor() for place in places]
    above = [place - low for place, low in zip(places, lows, strict=True)]
    shares = [(1 - share, share) for share in above]
    terms = []
    for corner in product((0, 1), repeat=len(places)):
        # The factor of the last dim comes first.
        weights = [share[side] for share, side in zip(shares, corner, strict=True)][::-1]
        at = [low + 1 if side else low for low, side in zip(lows, corner, strict=True)]
        terms.append(_taken(x, at) * reduce(mul, weights).unsqueeze(1))
    return reduce(add, terms)


def _sample_cubic(x: torch.Tensor, places: Sequence[torch.Tensor], padded: Places) -> torch.Tensor:
    lows = [place.floor() for place in places]
    weights = [_cubic_weights(place - low) for place, low in zip(places, lows, strict=True)]
    rows, columns = (
        [padded(low + tap, size) for tap in (-1, 0, 1, 2)] for low, size in zip(lows, x.shape[2:], strict=True)
    )
    along = [reduce(add, [w * _taken(x, [row, c]) for w, c in zip(weights[1], columns, strict=True)]) for row in rows]
    return reduce(add, map(mul, weights[0], along))


def _cubic_weights(part: torch.Tensor) -> list[torch.Tensor]:
    """The weights of the elements at -1, 0, 1 and 2, for a position `part` after 0 (Keys 1981, with a = -0.75)."""
    part, a = part.unsqueeze(1), -0.75

    def far(x: torch.Tensor) -> torch.Tensor:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x: torch.Tensor) -> torch.Tensor:
        return (x * (a + 2) - (a + 3)) * x * x + 1

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


DECOMPOSITIONS |= {
    aten.grid_sampler_2d.default: grid_sample,
    aten.grid_sampler_3d.default: grid_sample,
}
