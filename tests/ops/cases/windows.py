"""Convolutions of all kinds, pools, resampling, and the gradients of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal, whole

# Of [2, 4, 7, 6] by [4, 2, 3, 2].
CONVOLUTIONS: dict[str, Callable[..., Any]] = {
    "two groups": lambda x, w: F.conv2d(x, w, stride=(1, 2), padding=(2, 0), groups=2),
    "1d, dilated": lambda x, w: F.conv1d(x[:, :, 0], w.flatten(0, 1)[:, None, :, 0], dilation=2, groups=4),
    "3d": lambda x, w: F.conv3d(x[:, :, None], w[:, :, :, None].repeat(1, 2, 1, 1, 1), padding="same", dilation=2),
    "transposed": lambda x, w: F.conv_transpose2d(x, w),
    "transposed, strided": lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), padding=1, output_padding=(1, 0)),
    "transposed, padded beyond the kernel": lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=(3, 2)),
    "transposed in groups": lambda x, w: F.conv_transpose2d(x, w, torch.ones(4), groups=2, dilation=(1, 2)),
    "transposed 1d": lambda x, w: F.conv_transpose1d(x[:, :, 0], w[..., 0], stride=2),
    "transposed 3d": lambda x, w: F.conv_transpose3d(x[:1, :, None], w[:, :, None], stride=2),
}


def _gradients(transposed: bool, groups: int, stride: list[int], padding: list[int], dilation: list[int]) -> Any:
    """All three gradients of a convolution; its result stands in for what is passed back."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        places = (stride, padding, dilation, transposed, [0, 0], groups)
        passed = aten.convolution(x, w, None, *places) * 0.1
        found = aten.convolution_backward(passed, x, w, [passed.shape[1]], *places, [True, True, True])
        return torch.cat([gradient.flatten() for gradient in found])

    return function


CONVOLUTION_GRADIENTS: dict[str, Callable[..., Any]] = {
    "gradients": lambda x, w: _gradients(False, 2, [1, 1], [0, 0], [1, 1])(x, w),
    "gradients, strided": lambda x, w: _gradients(False, 2, [2, 3], [1, 1], [1, 2])(x, w),
    "gradients without groups": lambda x, w: _gradients(False, 1, [2, 1], [0, 1], [1, 1])(x, w.repeat(1, 2, 1, 1)),
    "gradients of a depthwise one": lambda x, w: _gradients(False, 4, [2, 1], [1, 1], [1, 2])(x, w[:, :1]),
    "gradients of a depthwise transposed one": lambda x, w: _gradients(True, 4, [2, 1], [1, 0], [1, 1])(x, w[:, :1]),
    "gradients of a depthwise one between others": lambda x, w: _gradients(False, 4, [1, 1], [1, 0], [1, 1])(
        F.conv2d(x, w.repeat(1, 2, 1, 1), padding=1), w[:, :1]
    ),
    "gradients of a transposed one": lambda x, w: _gradients(True, 1, [2, 1], [1, 0], [1, 2])(x, w),
    "gradients of transposed groups": lambda x, w: _gradients(True, 2, [2, 2], [0, 0], [1, 1])(x, w),
    "gradient of the kernel alone": lambda x, w: aten.convolution_backward(
        x[:, :, 2:, 1:], x, w.repeat(1, 2, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1],
}

# Of [2, 3, 7, 6].
POOLS: dict[str, Callable[..., Any]] = {
    "max 1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "max 2d, dilated": lambda x: F.max_pool2d(x, 2, stride=1, dilation=(3, 2)),
    "max 2d with a ceiling": lambda x: F.max_pool2d(x, 3, 2, padding=1, ceil_mode=True),
    "where the maxima are": lambda x: F.max_pool2d(x, 3, 2, padding=1, ceil_mode=True, return_indices=True)[1],
    "max 3d": lambda x: F.max_pool3d(x, 2, 1, padding=1),
    "where in 3d": lambda x: F.max_pool3d(x, 2, 1, padding=1, return_indices=True)[1],
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "where the adaptive maxima are": lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)[1],
    "adaptive max 3d": lambda x: F.adaptive_max_pool3d(x, (2, 3, 6)),
    "avg 1d": lambda x: F.avg_pool1d(x[0], 2),
    "avg with a ceiling": lambda x: F.avg_pool2d(x, 3, 2, padding=1, ceil_mode=True),
    "avg without pads": lambda x: F.avg_pool2d(x, 3, 2, padding=1, ceil_mode=True, count_include_pad=False),
    "avg by a divisor": lambda x: F.avg_pool2d(x, (2, 3), ceil_mode=True, divisor_override=5),
    "avg 3d": lambda x: F.avg_pool3d(x, 2, 1, padding=1, count_include_pad=False),
    "adaptive avg": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive avg 1d": lambda x: F.adaptive_avg_pool1d(x[0], 4),
    "adaptive avg 3d": lambda x: F.adaptive_avg_pool3d(x, (2, 7, 4)),
}


def _max_gradient(x: torch.Tensor) -> torch.Tensor:
    values, indices = aten.max_pool2d_with_indices(x, [3, 3], [1, 1], [1, 1])
    return aten.max_pool2d_with_indices_backward(values, x, [3, 3], [1, 1], [1, 1], [1, 1], False, indices)


POOL_GRADIENTS: dict[str, Callable[..., Any]] = {
    "gradient of max": _max_gradient,
    "gradient of adaptive max": lambda x: aten.adaptive_max_pool2d_backward(
        x[:, :, :3, :4], x, aten.adaptive_max_pool2d(x, [3, 4])[1]
    ),
    "gradient of avg": lambda x: aten.avg_pool2d_backward(
        x[:, :, :4, :4], x, [3, 3], [2, 2], [1, 1], True, False, None
    ),
    "gradient of avg, pads counted": lambda x: aten.avg_pool2d_backward(
        x[:, :, :3, :3], x, [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "gradient of avg 3d": lambda x: aten.avg_pool3d_backward(x[:, :2], x, [2, 1, 1], [1] * 3, [0] * 3, False, True, 3),
    "gradient of adaptive avg": lambda x: aten._adaptive_avg_pool2d_backward(x[:, :, :4, :5], x),
}
PAD_GRADIENTS: dict[str, Callable[..., Any]] = {
    "gradient of replicated pads": lambda x: aten.replication_pad2d_backward(x, x[:, :, :3, :4], [2, 0, 1, 3]),
    "gradient of cut edges": lambda x: aten.replication_pad1d_backward(x[0], F.pad(x[0], (0, 1)), [1, -2]),
}
_SIZES = ([7, 6], [2, 3, 4, 9])
RESAMPLING: dict[str, Callable[..., Any]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=1.7),
    "nearest-exact": lambda x: F.interpolate(x, (5, 9), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, (5, 9), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, (5, 9), mode="bicubic", align_corners=True),
    "nearest by a scale that keeps one size": lambda x: F.interpolate(x, scale_factor=(1.1, 1.7)),
    "nearest by a scale that doubles one size": lambda x: F.interpolate(x, scale_factor=(2.05, 1.7)),
    "nearest of lines by a scale that keeps the size": lambda x: F.interpolate(x[0], scale_factor=1.1),
    "linear by a scale that keeps the size": lambda x: F.interpolate(x[0], scale_factor=1.1, mode="linear"),
    "bilinear by scales of which one keeps its size": lambda x: F.interpolate(
        x, scale_factor=(1.1, 1.7), mode="bilinear", align_corners=False
    ),
    "gradient of nearest": lambda x: aten.upsample_nearest2d_backward(x, *_SIZES),
    "gradient of nearest by a scale": lambda x: aten.upsample_nearest2d_backward(x, *_SIZES, 1.8, 0.7),
    "gradient of nearest-exact": lambda x: aten._upsample_nearest_exact2d_backward(x, *_SIZES),
    "gradient of linear": lambda x: aten.upsample_linear1d_backward(x[0], [6], [3, 7, 4], False),
    "gradient of bilinear": lambda x: aten.upsample_bilinear2d_backward(x, *_SIZES, False),
    "gradient of bilinear, aligned": lambda x: aten.upsample_bilinear2d_backward(x, *_SIZES, True),
    "gradient of trilinear": lambda x: aten.upsample_trilinear3d_backward(x[None], [3, 7, 6], [1, 2, 2, 4, 5], False),
    "gradient of bicubic": lambda x: aten.upsample_bicubic2d_backward(x, *_SIZES, False),
}


# On CPU eager has no kernel for the first, and sums the second in halves; compiled code sums in f32 and rounds once.
POOLS_OF_HALVES = {name: function for name, function in POOLS.items() if name not in ("avg 3d", "adaptive avg 3d")}

GROUPS: dict[str, Group] = {
    "gradients of convolutions": Group((normal(2, 4, 7, 6), normal(4, 2, 3, 2)), CONVOLUTION_GRADIENTS),
    "convolutions": Group((normal(2, 4, 7, 6), normal(4, 2, 3, 2)), CONVOLUTIONS),
    "convolutions of integers": Group(
        (whole(-9, 9, 2, 4, 7, 6), whole(-9, 9, 4, 2, 3, 2)),
        {
            name: function
            for name, function in CONVOLUTIONS.items()
            if "3d" not in name and name != "transposed in groups"
        },
    ),
    "convolutions of bfloat16": Group(
        (normal(2, 4, 7, 6, dtype=torch.bfloat16), normal(4, 2, 3, 2, dtype=torch.bfloat16)),
        # Eager's transposed ones round every partial sum on processors without AVX512-BF16: see `test_transposed`.
        {name: function for name, function in CONVOLUTIONS.items() if not name.startswith("transposed")},
    ),
    "pools": Group((normal(2, 3, 7, 6),), {**POOLS, **POOL_GRADIENTS}),
    "pools of float64": Group((normal(2, 3, 7, 6, dtype=torch.float64),), {**POOLS, **POOL_GRADIENTS}),
    "pools of bfloat16": Group((normal(2, 3, 7, 6, dtype=torch.bfloat16),), POOLS_OF_HALVES),
    "resampling": Group((normal(2, 3, 7, 6),), {**RESAMPLING, **PAD_GRADIENTS}),
}
