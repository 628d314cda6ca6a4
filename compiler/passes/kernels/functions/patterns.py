"""Finds ops around functions, such as those of an activation, and emits code for all of them, which is cheaper.

Activations are exponentials, tanh and erf with the ops that use them; the results are at least as exact as those of
eager PyTorch. Roundings are numbers that are rounded, limited to a range and converted to 8 bits: a float that is added
to 1.5 * 2^23 is rounded to an integer, ties to even, which is in the low bits of the sum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, math
from buddy.compiler.mlir.walk import constant_of
from buddy.compiler.passes.kernels.functions.polynomials import ROUND, Arithmetic, exp_or_infinity

# ---- activations -----------------------------------------------------------------------------------------------------


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


# ---- roundings to 8 bits ---------------------------------------------------------------------------------------------


# The greatest magnitude of limits. With these, the sum is at least 2^23 and below 2^24, where floats are the integers.
_MAX_LIMIT = 1 << 20
_BYTE_VALUES = 256


@dataclass(frozen=True)
class ByteRounding:
    """Computes the result of `replaced`: `argument` rounded, plus `zero`, limited to `low` ... `high`, in 8 bits.

    `dead` has the ops that may be unused once `replaced` is erased, in reverse order.
    """

    argument: ir.Value
    zero: int
    low: int
    high: int
    replaced: ir.Operation
    dead: tuple[ir.Operation, ...]

    def emit(self, x: ir.Value) -> ir.Value:
        """Emits the computation for `x`: since limits are integers, they can be applied before the rounding.

        NaN becomes the byte 0, as by the conversion on x86.
        """
        s = Arithmetic(x.type)
        low, high = float(self.low - self.zero), float(self.high - self.zero)
        # Comparisons in this form are one instruction on x86, which returns the limit for NaN.
        limited = s.where("ogt", x, low, x, s.number(low))
        limited = s.where("olt", limited, high, limited, s.number(high))
        if self.low % _BYTE_VALUES:
            limited = arith.select(arith.cmpf(arith.CmpFPredicate.UNO, x, x), s.number(float(-self.zero)), limited)
        # An even number can be part of the addition: it changes no tie.
        added = self.zero if self.zero % 2 == 0 else 0
        bits = s.bits(arith.addf(limited, s.number(ROUND + added)))
        if added != self.zero:
            bits = arith.addi(bits, s.integer(self.zero))
        return arith.trunci(self.replaced.results[0].type, bits)


def byte_rounding_of(op: ir.Operation) -> ByteRounding | None:
    """Returns the rounding to 8 bits that contains `op`, a `math.roundeven` of f32, or `None`.

    That is `roundeven`, `addf` of an integer, `maximumf` and `minimumf` with integers, `fptosi` to 32 bits, and
    `trunci` to 8 bits, each with one use. If the argument is a scaled maximum with 0, which changes only numbers below
    the lower limit, the IR is changed: the product then reads the operand of the maximum.
    """
    if str(op.results[0].type) != "f32":
        return None
    chain: list[Any] = [op]
    constants: list[int] = []
    for name in ("arith.addf", "arith.maximumf", "arith.minimumf"):
        user = only_user(chain[-1], name)
        number = None if user is None else _integer_beside(user, chain[-1].results[0])
        if number is None:
            return None
        chain.append(user)
        constants.append(number)
    for name, width in (("arith.fptosi", 32), ("arith.trunci", 8)):
        user = only_user(chain[-1], name)
        if user is None or user.results[0].type != ir.IntegerType.get_signless(width):
            return None
        chain.append(user)
    zero, low, high = constants
    if not low <= high or max(abs(zero), abs(low), abs(high)) > _MAX_LIMIT:
        return None
    dead = list(reversed(chain[:-1]))
    x = op.operands[0]
    # max(y, 0) * c, where c is positive, is below the limit if and only if y * c is.
    if low >= zero and (scaled_maximum := _scaled_maximum(x)):
        product, number, maximum, y = scaled_maximum
        product.operands[number] = y
        dead.append(maximum)
    return ByteRounding(x, zero, low, high, chain[-1], tuple(dead))


def _integer_beside(op: ir.Operation, value: ir.Value) -> int | None:
    """Returns the constant with which `op` combines `value`, if it is an integer."""
    left, right = op.operands
    number = _constant(right if left == value else left)
    return int(number) if number is not None and number.is_integer() else None


def _constant(value: ir.Value) -> float | None:
    """Returns the number of a constant float, or `None`."""
    constant = constant_of(value)
    return float(constant.value) if isinstance(constant, ir.FloatAttr) else None


def _scaled_maximum(value: ir.Value) -> tuple[ir.Operation, int, ir.Operation, ir.Value] | None:
    """Returns the ops of `maximumf(y, 0) * c`, each with one use, for a positive finite c; or `None`.

    These are the product, the number of its operand that is the maximum, the maximum, and y.
    """
    product = _only_used(value, "arith.mulf")
    if product is None:
        return None
    for number in (0, 1):
        factor = _constant(product.operands[1 - number])
        maximum = _only_used(product.operands[number], "arith.maximumf")
        y = None if maximum is None else _beside_zero(maximum)
        if factor is not None and 0 < factor < float("inf") and maximum is not None and y is not None:
            return product, number, maximum, y
    return None


def _only_used(value: ir.Value, name: str) -> ir.Operation | None:
    """Returns the op with the result `value` if it is called `name` and has one use; else `None`."""
    is_result = isinstance(value, ir.OpResult) and value.owner.name == name
    return value.owner.operation if is_result and len(list(value.uses)) == 1 else None


def _beside_zero(maximum: ir.Operation) -> ir.Value | None:
    """Returns the operand of a maximum whose other operand is 0, or `None`."""
    left, right = maximum.operands
    if _constant(right) == 0:
        return left
    return right if _constant(left) == 0 else None
