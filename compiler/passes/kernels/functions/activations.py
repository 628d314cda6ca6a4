"""Finds exponentials, tanh and erf in activations, and emits code for the whole activation, which is cheaper.

The results are at least as exact as those of eager PyTorch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, math
from buddy.compiler.mlir.walk import constant_of
from buddy.compiler.passes.kernels.functions.arithmetic import Arithmetic
from buddy.compiler.passes.kernels.functions.polynomials import ROUND, exp_or_infinity

# -log2(2 Φ(-t)) = t P(t), where Φ is the cumulative distribution function of the normal distribution, for t up to
# _TAIL_END, where 2 Φ(-t) is 2^-124. The relative error of Φ is 2e-8 up to t = 3; from there on, the error is 2e-8 of
# Φ(-3). `polynomials.py` says how the polynomials were fitted.
_TAIL = (
    1.1511049270629883, 0.4592152237892151, 0.052453748881816864, -0.006955599877983332, -3.1435752134711947e-06,
    0.0002872188633773476, -8.071239426499233e-05, 1.2102211258024909e-05, -1.006948878057301e-06,
    3.642601598130568e-08,
)  # fmt: skip
_TAIL_END = 10.75
# 2^(f - 1) = (1 + f P(f)) / 2 for |f| <= 1/2, relative error 2e-9.
_HALF_EXP2 = (
    0.5, 0.34657359123229980, 0.12011323869228363, 0.027751661837100983, 0.004809218458831310, 0.00066994375083595515,
    7.6766802521888167e-05,
)  # fmt: skip
_MANTISSA_BITS = 23
_SQRT_HALF = 0.7071067811865476


def gelu(x: ir.Value) -> ir.Value:
    """Returns x Φ(x), as max(x, 0) - |x| Φ(-|x|); at most 2e-7 |x| from the exact value, 1.5 ULP for positive x.

    For negative x it is more exact than eager's `x / 2 * (1 + erf(x / √2))`, which suffers from cancellation.
    """
    s = Arithmetic(x.type)
    t = s.clamped(math.absf(x), None, _TAIL_END)
    p = s.horner(t, _TAIL)
    minus_t = arith.negf(t)
    rounded = s.fma(minus_t, p, s.number(ROUND))
    fraction = s.fma(minus_t, p, arith.subf(s.number(ROUND), rounded))
    power = s.horner(fraction, _HALF_EXP2)
    tail = s.from_bits(arith.addi(s.bits(power), arith.shli(s.bits(rounded), s.integer(_MANTISSA_BITS))))
    # Not max(x, 0): -∞ has to result in NaN, as in eager.
    positive = arith.subf(x, s.where("olt", x, 0.0, x, s.number(0.0)))
    return s.fma(minus_t, tail, positive)


def one_plus_tanh(x: ir.Value) -> ir.Value:
    """Returns 1 + tanh(x), as 2 / (1 + exp(-2 x)), with an error of at most 3 ULP.

    The plain sum loses all digits for large negative x.
    """
    s = Arithmetic(x.type)
    return arith.divf(s.number(2.0), one_plus_exp(arith.mulf(x, s.number(-2.0))))


def one_plus_exp(x: ir.Value) -> ir.Value:
    """Returns 1 + exp(x) with an error of at most 1 ULP."""
    s = Arithmetic(x.type)
    return arith.addf(exp_or_infinity(s, x), s.number(1.0))


@dataclass(frozen=True)
class Activation:
    """An activation: `emit(argument)` emits code that computes the result of the op `replaced` in less time.

    `dead` has the ops that may be unused once `replaced` is erased.
    """

    name: str
    argument: Any
    replaced: Any
    dead: tuple[Any, ...]
    emit: Callable[[Any], Any]


def activation_around(op: ir.Operation) -> Activation | None:
    """Returns the activation that the single-precision function `op` is part of, or `None`."""
    total = only_user(op, "arith.addf")
    if total is None or not _adds_constant(total, op.results[0], 1.0):
        return None
    argument = op.operands[0]
    if op.name == "math.erf":
        return _gelu(op, total)
    if op.name == "math.tanh":
        return Activation("1 + tanh", argument, total, (op,), one_plus_tanh)
    if op.name == "math.exp":
        return Activation("1 + exp", argument, total, (op,), one_plus_exp)
    return None


def _gelu(erf: ir.Operation, total: ir.Operation) -> Activation | None:
    """Matches x * 0.5 * (1 + erf(x * √½)), with the products in any order."""
    product = only_user(total, "arith.mulf")
    x = _scaled(erf.operands[0], _SQRT_HALF)
    if product is None or x is None:
        return None
    left, right = product.operands
    half = left if right == total.results[0] else right
    scaled = _scaled(half, 0.5)
    if scaled is None or scaled != x:
        return None
    return Activation("GELU", x, product, (total, erf, half.owner.operation, erf.operands[0].owner.operation), gelu)


def only_user(op: ir.Operation, name: str) -> ir.Operation | None:
    """Returns the only user of the result of `op`, if it is an op called `name`."""
    users = [use.owner.operation for use in op.results[0].uses]
    return users[0] if len(users) == 1 and users[0].name == name else None


def _adds_constant(op: ir.Operation, value: ir.Value, number: float) -> bool:
    """True if the operands of `op` are `value` and the constant `number`."""
    left, right = op.operands
    return _is_constant(left if right == value else right, number)


def _scaled(value: ir.Value, factor: float) -> ir.Value | None:
    """Returns x if `value` is x * `factor`."""
    if not isinstance(value, ir.OpResult) or value.owner.name != "arith.mulf":
        return None
    left, right = value.owner.operands
    if _is_constant(right, factor):
        return left
    return right if _is_constant(left, factor) else None


def _is_constant(value: ir.Value, number: float) -> bool:
    """True if `value` is the constant `number`, as f32."""
    constant = constant_of(value)
    return isinstance(constant, ir.FloatAttr) and _single(constant.value) == _single(number)


def _single(number: float) -> float:
    """Returns `number` rounded to single precision."""
    return float(struct.unpack("f", struct.pack("f", number))[0])
