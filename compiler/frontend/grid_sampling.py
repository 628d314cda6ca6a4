"""Decomposes sampling of an image or a volume at given positions.

Torch's own decomposition computes in f32; eager's kernels round every step to the dtype of the grid, which for half
precision moves a position by up to an eighth of a pixel. Every step here is one of theirs, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from operator import add, mul
from typing import Any

import torch

aten = torch.ops.aten

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
        return _cubic(x, places, padded)
    places = [padded(place, size) for place, size in zip(places, sizes, strict=True)]
    if interpolation == 1:
        return _taken(x, [place.round() for place in places])
    return _linear(x, places)


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


def _linear(x: torch.Tensor, places: Sequence[torch.Tensor]) -> torch.Tensor:
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


def _cubic(x: torch.Tensor, places: Sequence[torch.Tensor], padded: Places) -> torch.Tensor:
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


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.grid_sampler_2d.default: grid_sample,
    aten.grid_sampler_3d.default: grid_sample,
}
