"""Division with a rounding, remainders, divisors, shifts, powers of integers, and what is read off bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, aten, normal, whole

DIVISION: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda x, y: x // y,
    "floor_divide by a number": lambda x, y: x // 3,
    "div, down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div, to zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "remainder of a number": lambda x, y: 7 % y,
    "fmod": torch.fmod,
    "fmod by a number": lambda x, y: torch.fmod(x, 3),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "sign": lambda x, y: torch.sign(x),
    "clamp between tensors": lambda x, y: torch.clamp(x, y, y + 2),
}
INTEGERS: dict[str, Callable[..., Any]] = {
    **DIVISION,
    "gcd": torch.gcd,
    "lcm": lambda x, y: torch.lcm(x % 100, y),
    "power of tensors": lambda x, y: x**y,
    "seventh power": lambda x, y: x**7,
    "shift left": lambda x, y: x << y,
    "shift right": lambda x, y: x >> y,
    "a number shifted": lambda x, y: aten.bitwise_right_shift.Scalar_Tensor(100, y),
    "and of a number": lambda x, y: aten.bitwise_and.Scalar_Tensor(6, y),
    "isinf": lambda x, y: torch.isinf(x),
}
FLOATS: dict[str, Callable[..., Any]] = {
    **DIVISION,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "hypot": torch.hypot,
    "atan2": torch.atan2,
    "ldexp": lambda x, y: torch.ldexp(x, y.int()),
    "signbit": lambda x, y: torch.signbit(x),
    "isinf": lambda x, y: torch.isinf(x),
    "angle": lambda x, y: torch.angle(x),
    "mantissa": lambda x, y: torch.frexp(x)[0],
    "exponent": lambda x, y: torch.frexp(x)[1],
    "two decimals": lambda x, y: torch.round(x, decimals=2),
    "hundreds": lambda x, y: torch.round(x * 100, decimals=-2),
}
# torch has neither for halves.
FLOATS_OF_HALVES = {name: f for name, f in FLOATS.items() if name not in ("nextafter", "hypot")}
SIGNS = torch.tensor([1, -1, 1, 1, -1])
DIVISORS = (whole(1, 9, 5) * SIGNS).repeat(6)
# No two with a quotient beyond f32: of these, eager's vector function of the remainder makes NaN.
_SPECIAL = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5, -2.5, 1e30, 1e-3])
X, Y = (grid.ravel() for grid in torch.meshgrid(_SPECIAL, _SPECIAL, indexing="ij"))


def _bounds(dtype: torch.dtype) -> torch.Tensor:
    """Integers of both signs, the least and the greatest among them."""
    info = torch.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max, 0, max(info.min, -1)]
    return torch.cat([whole(max(info.min, -120), 120, 25), torch.tensor(ends)]).to(dtype)


# Whether eager rounds a number to the type of halves beside it differs from op to op.
BESIDE_HALVES: dict[str, Callable[..., Any]] = {
    "floor division": lambda x, y: x // 0.1,
    "floor division by a tensor without dims": lambda x, y: x // torch.tensor(0.1),
    "floor of a negative": lambda x, y: x // -0.7,
    "truncated": lambda x, y: torch.div(x, -0.7, rounding_mode="trunc"),
    "truncated quotient of a tensor": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % 0.7,
    "fmod": lambda x, y: torch.fmod(x, 0.7),
    "logit": lambda x, y: torch.logit(y, 0.3),
    "logit near 1": lambda x, y: torch.logit(torch.ones_like(y), 1e-3),
    "xlogy": lambda x, y: torch.xlogy(x, 0.1),
    "large integers": lambda x, y: x + torch.arange(60) * 4099,
    "multiples of integers": lambda x, y: x * (torch.arange(60) * 37),
    # Differences that cancel show how the number was rounded; the quotient is as exact as the halves are.
    "a difference": lambda x, y: (x - 3.3 - (x - 3.0)) * 8,
    "a third power": lambda x, y: (-x[:30]) ** 3,
}

GROUPS: dict[str, Group] = {
    "division of whole numbers": Group((_bounds(torch.int64), DIVISORS), INTEGERS),
    "division of int32": Group((_bounds(torch.int32), DIVISORS.int()), INTEGERS),
    "division of int16": Group((_bounds(torch.int16), DIVISORS.short()), INTEGERS),
    "division of int8": Group((_bounds(torch.int8), DIVISORS.to(torch.int8)), INTEGERS),
    "division of bytes": Group((_bounds(torch.uint8), DIVISORS.abs().byte()), INTEGERS),
    "shifts by too much": Group(
        (whole(-99, 99, 5), torch.tensor([-1, 63, 64, 70, -(2**40)])),
        {"left": lambda x, y: x << y, "right": lambda x, y: x >> y, "power": lambda x, y: x**y},
    ),
    "parts of numbers": Group((normal(30) * 9, normal(30)), FLOATS),
    "parts of float64": Group((normal(30, dtype=torch.float64) * 9, normal(30, dtype=torch.float64)), FLOATS),
    "parts of bfloat16": Group((normal(30).bfloat16() * 9, normal(30).bfloat16()), FLOATS_OF_HALVES),
    "parts of float16": Group((normal(30).half() * 9, normal(30).half()), FLOATS_OF_HALVES),
    **{
        f"numbers beside {str(dtype).removeprefix('torch.')}": Group(
            (torch.arange(1, 61).to(dtype), torch.rand(60).to(dtype)), BESIDE_HALVES
        )
        for dtype in (torch.float16, torch.bfloat16)
    },
    "parts of special values": Group((X, Y), FLOATS),
    "casts of large floats": Group(
        (torch.tensor([3000000007.0, -3000000007.0, 1e10, 1e20, float("nan"), float("inf"), 300.0, -1.9, 255.9]),),
        {
            str(dtype).removeprefix("torch."): lambda x, dtype=dtype: x.to(dtype)
            for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16)
        },
    ),
}
