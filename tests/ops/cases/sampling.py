"""What lies at given places of images and volumes, inside and outside, on halves as rounded by eager at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, aten, normal

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

GROUPS: dict[str, Group] = {
    "places in images": Group((normal(2, 2, 3, 5, 20), normal(2, 4, 3, 3)), SAMPLES),
}
