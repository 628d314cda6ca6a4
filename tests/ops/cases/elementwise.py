"""Arithmetic, comparison, choice, functions and casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal, whole

SPECIAL = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5, -2.5, 1e38, 1e-40])
HALVES = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997])
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "add a multiple": lambda x, y: torch.add(x, y, alpha=3),
    "add a number": lambda x, y: x + 2,
    "sub": lambda x, y: x - y,
    "sub a multiple": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub": lambda x, y: aten.rsub(x, 3, 2),
    "mul": lambda x, y: x * y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda x, y: torch.clamp(x, 1, 4),
    "clamp_min": lambda x, y: aten.clamp_min(x, 2),
    "clamp_max": lambda x, y: aten.clamp_max(x, 2),
    "square": lambda x, y: aten.square(x),
    "cube": lambda x, y: x**3,
}
SIGNED: dict[str, Callable[..., Any]] = {"neg": lambda x, y: -x, "abs": lambda x, y: x.abs()}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "gt a number": lambda x, y: x > 2,
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(x > y, 7),
}
BITS: dict[str, Callable[..., Any]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x, y: ~x,
}
DIVISION: dict[str, Callable[..., Any]] = {
    "div": lambda x, y: x / y,
    "div by 8": lambda x, y: x / 8,
    "div by 3": lambda x, y: x / 3,
    "reciprocal": lambda x, y: 1 / y,
    "power -2": lambda x, y: y**-2,
    "root": lambda x, y: y.abs() ** 0.5,
    "power 1.7": lambda x, y: y.abs() ** 1.7,
    "power of tensors": lambda x, y: y.abs() ** x,
    "exponents": lambda x, y: 2.0**x,
}
ROUNDING: dict[str, Callable[..., Any]] = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
}
TRANSCENDENTAL: dict[str, Callable[..., Any]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "asin": lambda x: torch.asin(x / 16),
    "acos": lambda x: torch.acos(x / 16),
    "atanh": lambda x: torch.atanh(x / 16),
    "acosh": lambda x: torch.acosh(x.abs() + 1),
    "tan": torch.tan,
}
OF_POSITIVES: dict[str, Callable[..., Any]] = {
    "log": lambda x: torch.log(x.abs()),
    "log2": lambda x: torch.log2(x.abs()),
    "log10": lambda x: torch.log10(x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
}
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "mish": F.mish,
    "softplus": F.softplus,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 7.0),
    "logsigmoid": F.logsigmoid,
}
FLOATS = {**TRANSCENDENTAL, **OF_POSITIVES, **ACTIVATIONS, **ROUNDING}
PAIRS = {**ARITHMETIC, **SIGNED, **COMPARISONS}
# Eager rounds a half-type multiple before it adds it; compiled code rounds once, at the end.
PAIRS_OF_HALVES = {name: function for name, function in PAIRS.items() if "multiple" not in name}
# PyTorch's vector erf makes NaN of gelu(inf), which is inf.
DEFINED_EVERYWHERE = {name: function for name, function in FLOATS.items() if name != "gelu"}
CASTS: dict[str, Callable[..., Any]] = {
    str(dtype).removeprefix("torch."): lambda x, dtype=dtype: x.to(dtype)
    for dtype in (torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.bfloat16, torch.float16)
}

GROUPS: dict[str, Group] = {
    "arithmetic": Group((whole(-5, 9, 3, 4).float(), whole(1, 9, 3, 4).float()), PAIRS),
    "broadcast": Group((normal(3, 1, 5), normal(4, 1)), PAIRS),
    "rank 0": Group((normal(), normal()), {**PAIRS, **DIVISION}),
    "a scalar tensor among others": Group((normal(3, 4), torch.tensor(2.0)), PAIRS),
    "two float types": Group((normal(3, 4), normal(4, dtype=torch.float64)), {**PAIRS, **DIVISION}),
    "an integer and a float": Group((whole(-5, 9, 4), normal(4)), PAIRS),
    "int64": Group((whole(-(2**40), 2**40, 3, 4), whole(1, 9, 3, 4)), {**PAIRS, **BITS}),
    "int32": Group((whole(-99, 99, 9).int(), whole(1, 9, 9).int()), {**PAIRS, **BITS}),
    "uint8": Group((whole(0, 256, 40).byte(), whole(0, 256, 40).byte()), {**ARITHMETIC, **COMPARISONS, **BITS}),
    "bfloat16": Group((normal(9).bfloat16(), normal(9).bfloat16()), {**PAIRS_OF_HALVES, **DIVISION}),
    "float16": Group((normal(9).half(), normal(9).half()), {**PAIRS_OF_HALVES, **DIVISION}),
    "division": Group((normal(3, 4), normal(3, 4)), DIVISION),
    "division of integers": Group((whole(-9, 9, 6), whole(1, 9, 6)), {"div": DIVISION["div"]}),
    "empty": Group((normal(0, 4), normal(4)), {**PAIRS, **DIVISION}),
    "bools": Group(
        (normal(30) > 0, normal(30) > 0),
        {
            **BITS,
            "logical_and": torch.logical_and,
            "logical_or": torch.logical_or,
            "logical_xor": torch.logical_xor,
            "logical_not": lambda x, y: torch.logical_not(x),
            "sum": lambda x, y: x + y,
            "product": lambda x, y: x * y,
            "eq": lambda x, y: x == y,
            "where": lambda x, y: torch.where(x, y, ~y),
        },
    ),
    "functions": Group((normal(3, 33) * 3,), FLOATS),
    "functions of float64": Group((normal(33, dtype=torch.float64) * 3,), FLOATS),
    "functions of bfloat16": Group((normal(33).bfloat16(),), FLOATS),
    "functions of float16": Group((normal(33).half(),), FLOATS),
    "functions of a scalar": Group((normal(),), FLOATS),
    "rounding halves": Group((HALVES,), ROUNDING),
    "special values": Group((SPECIAL,), {**DEFINED_EVERYWHERE, "isnan": torch.isnan, "reciprocal": lambda x: 1 / x}),
    "pairs of special values": Group((SPECIAL, SPECIAL.flip(0)), {**PAIRS, "div": DIVISION["div"]}),
    "casts of floats": Group((normal(3, 9) * 5,), CASTS),
    "casts of doubles": Group((normal(3, 9, dtype=torch.float64) * 5,), CASTS),
    "casts of integers": Group((whole(-300, 300, 9),), {**CASTS, "float32": lambda x: x.float()}),
    "casts of numbers": Group(
        (whole(-9, 9, 3, 4).int(),),
        {
            "an integer": lambda x: torch.vmap(lambda row: row * 2)(x),
            "a float": lambda x: torch.vmap(lambda row: row + 0.1)(x.double()),
            "a float to halves": lambda x: torch.vmap(lambda row: row * 0.1)(x.half()),
        },
    ),
    "casts of bools": Group((normal(9) > 0,), {**CASTS, "float32": lambda x: x.float()}),
    "casts of bytes": Group((whole(0, 256, 9).byte(),), {**CASTS, "float32": lambda x: x.float()}),
}
