"""What eager does at the edges of an op's meaning: defaults, rounding, degrees of any size, unheeded scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal

# A number that no half type holds: eager rounds it to the type of the tensor before it compares or divides.
ROUNDED_NUMBERS: dict[str, Callable[..., Any]] = {
    "eq": lambda x: x == 0.1,
    "ne": lambda x: x != 0.1,
    "lt": lambda x: x < 0.1,
    "ge": lambda x: x >= 0.1,
    "eq a scalar tensor": lambda x: x == torch.tensor(0.1),
    "less than more than there is": lambda x: x < 1e6,
    "remainder": lambda x: x % 0.1,
    "remainder of a number": lambda x: torch.remainder(0.7, x),
    "remainder by a scalar tensor": lambda x: x % torch.tensor(0.1),
    "fmod": lambda x: torch.fmod(x, 0.1),
}
_DEGREES = (float("nan"), float("inf"), float("-inf"), -1.0, 2.0**25, 2.0**62)
_AT_ENDS = ("chebyshev_polynomial_t", "legendre_polynomial_p", "hermite_polynomial_h")

# Of [1, 2, 10, 20].
SCALES: dict[str, Callable[..., Any]] = {
    "hardtanh between its defaults": lambda x, d: F.hardtanh(x, -1, 1),
    "nothing written by a mask": lambda x, d: x.index_put((x > 99,), x.new_empty(0)),
    "nearest": lambda x, d: aten.upsample_nearest2d_backward(x, [10, 20], [1, 2, 10, 10], 1.05, 2.05),
    "nearest of float64": lambda x, d: aten.upsample_nearest2d_backward(d, [10, 20], [1, 2, 7, 7], None, 1 / 0.35),
    "nearest-exact": lambda x, d: aten._upsample_nearest_exact2d_backward(x, [10, 20], [1, 2, 10, 10], 1.05, 2.05),
    "nearest-exact of float64": lambda x, d: aten._upsample_nearest_exact2d_backward(
        d, [10, 20], [1, 2, 7, 7], None, 1 / 0.35
    ),
    "bilinear": lambda x, d: aten.upsample_bilinear2d_backward(x, [10, 20], [1, 2, 10, 10], False, 1.05, 2.05),
    "bicubic": lambda x, d: aten.upsample_bicubic2d_backward(x, [10, 20], [1, 2, 10, 20], False, 1.05, 1.05),
    "bicubic in one dim": lambda x, d: aten.upsample_bicubic2d_backward(x, [10, 20], [1, 2, 10, 10], False, 1.05, 1.9),
}
_FLOATS = normal(1, 2, 10, 20)

GROUPS: dict[str, Group] = {
    "rounded numbers of float16": Group((torch.tensor([0.1, 0.2, 3, 5.5, -7, 100]).half(),), ROUNDED_NUMBERS),
    "rounded numbers of bfloat16": Group((torch.tensor([0.1, 0.2, 3, 5.5, -7, 100]).bfloat16(),), ROUNDED_NUMBERS),
    "degrees of any size": Group(
        (torch.tensor([1.0, -1.0] * len(_DEGREES)), torch.tensor(_DEGREES).repeat_interleave(2)),
        {name: getattr(torch.special, name) for name in _AT_ENDS}
        | {
            "inside": lambda x, n: torch.special.chebyshev_polynomial_t(x / 2, n.clamp(max=2.0**25)),
            "laguerre": lambda x, n: torch.special.laguerre_polynomial_l(x.clamp(max=0) * 0, n),
        },
    ),
    "scales that are not heeded": Group((_FLOATS, _FLOATS.double()), SCALES),
}
