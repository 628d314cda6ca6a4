"""Division with a rounding, remainders and divisors."""

from __future__ import annotations

from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import elementwise, rounded_operands
from buddy.compiler.ops.scalar import Operand, Scalar, cast


@elementwise("DivTensorModeOp", narrow=True)
def div(x: Scalar, y: Operand, rounding_mode: str | None = "floor") -> Scalar:
    """`floor_divide` gives no mode, and means `floor`. Eager rounds a quotient of halves before it cuts it off."""
    wide, divisor = rounded_operands(x, y)
    if not x.dtype.is_float:
        return (integers.floor_divided if rounding_mode == "floor" else integers.divided)(wide, divisor)[0]
    if rounding_mode == "floor":
        return _floor_divided(wide, divisor)
    quotient = wide / divisor
    return s.trunc(cast(cast(quotient, x.dtype), wide.dtype)) if rounding_mode == "trunc" else quotient


def _floor_divided(x: Scalar, y: Scalar) -> Scalar:
    """Through the remainder, as Python does it: the floor of a rounded quotient may be one too high."""
    rest = s.fmod(x, y)
    quotient = (x - rest) / y
    quotient = s.select(rest.compare("ne", 0) & ((y < 0) ^ (rest < 0)), quotient - 1, quotient)
    floor = s.floor(quotient)
    floor = s.select(quotient - floor > 0.5, floor + 1, floor)
    floor = s.select(quotient.compare("eq", 0), s.copysign(x.like(0), x / y), floor)
    return s.select(y.compare("eq", 0), x / y, floor)


def _remainder(x: Scalar, y: Scalar) -> Scalar:
    rest = s.fmod(x, y)
    return s.select(rest.compare("ne", 0) & ((y < 0) ^ (rest < 0)), rest + y, rest)


@elementwise("RemainderOp", narrow=True)
def remainder(x: Scalar, y: Operand) -> Scalar:
    """With the divisor's sign. Eager rounds a divisor of halves to their type."""
    return _remainder(*rounded_operands(x, y)) if x.dtype.is_float else integers.floor_divided(x, y)[1]


@elementwise("FmodOp", narrow=True)
def fmod(x: Scalar, y: Operand) -> Scalar:
    """With the dividend's sign. Eager rounds a divisor of halves to their type."""
    return s.fmod(*rounded_operands(x, y)) if x.dtype.is_float else integers.divided(x, y)[1]


@elementwise("GcdOp")
def gcd(x: Scalar, y: Operand) -> Scalar:
    return integers.greatest_divisor(x, y)


@elementwise("LcmOp")
def lcm(x: Scalar, y: Operand) -> Scalar:
    return integers.least_multiple(x, y)
