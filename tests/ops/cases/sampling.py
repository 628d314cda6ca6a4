"""What lies at given places of images and volumes, halves rounded as by eager at every step; and images resampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal, whole

# Interpolation, padding, aligned corners.
_WAYS = {
    "linear": (0, 0, False), "linear, aligned, at the edge": (0, 1, True), "nearest, mirrored": (1, 2, False),
    "cubic, mirrored, aligned": (2, 2, True), "cubic": (2, 0, False),
}  # fmt: skip


def _sampled(way: tuple[int, int, bool], dtype: torch.dtype) -> dict[str, Callable[..., Any]]:
    def image(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return aten.grid_sampler_2d(x[:, :, 0].to(dtype), at[..., :2].to(dtype), *way)

    def volume(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return aten.grid_sampler_3d(x.to(dtype), at[:, None].to(dtype), *way)

    return {"image": image} if way[0] == 2 else {"image": image, "volume": volume}


SAMPLES: dict[str, Callable[..., Any]] = {
    f"{name}, {what} of {str(dtype).removeprefix('torch.')}": function
    for dtype in (torch.float32, torch.bfloat16)
    for name, way in _WAYS.items()
    for what, function in _sampled(way, dtype).items()
}

# Of bytes [2, 3, 7, 9] in fixed point, and of floats by the same weights; every size has other digits.
RESAMPLED: dict[str, Callable[..., Any]] = {
    f"{mode}{', antialiased' * antialias} to {size}": lambda x, mode=mode, size=size, antialias=antialias: (
        F.interpolate(x, size, mode=mode, antialias=antialias)
    )
    for mode in ("bilinear", "bicubic")
    for antialias in (False, True)
    for size in ((3, 9), (13, 4))
}
OF_BYTES: dict[str, Callable[..., Any]] = {
    **RESAMPLED,
    "aligned": lambda x: F.interpolate(x, (4, 5), mode="bilinear", align_corners=True),
    "by a scale": lambda x: F.interpolate(x, scale_factor=(0.6, 1.7), mode="bicubic"),
    "channels last": lambda x: F.interpolate(x.to(memory_format=torch.channels_last), (4, 5), mode="bilinear"),
    "by another overload": lambda x: aten.upsample_bilinear2d(x, [5, 4], False, 0.7, None),
}

GROUPS: dict[str, Group] = {
    "places in images": Group((normal(2, 2, 3, 5, 20), normal(2, 4, 3, 3)), SAMPLES),
    "bytes resampled": Group((whole(0, 256, 2, 3, 7, 9, dtype=torch.uint8),), OF_BYTES),
    "floats resampled": Group((normal(2, 3, 7, 9),), RESAMPLED),
}
