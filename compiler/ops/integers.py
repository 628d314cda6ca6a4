"""Integer division, shifts, powers and divisors with PyTorch's semantics, without instructions that trap."""

from __future__ import annotations

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops.scalar import Operand, Scalar, absolute, cast, repeat, select


def _width(x: Scalar) -> int:
    return int(x.value.type.width)


def divided(x: Scalar, y: Operand) -> tuple[Scalar, Scalar]:
    """Returns the quotient, rounded towards zero, and the remainder.

    Both are 0 for a divisor of 0; for a divisor of -1 the quotient wraps.
    """
    y = x.like(y)
    # The divisors for which the instruction may trap.
    special = y.compare("eq", 0) if x.is_unsigned else y.compare("eq", 0) | y.compare("eq", -1)
    divisor = select(special, y.like(1), y)
    divide, modulo = (arith.divui, arith.remui) if x.is_unsigned else (arith.divsi, arith.remsi)
    quotient = Scalar(divide(x.value, divisor.value), x.dtype)
    remainder = Scalar(modulo(x.value, divisor.value), x.dtype)
    # For both special divisors the quotient is `x * y`, and the remainder is 0.
    return select(special, x * y, quotient), select(special, remainder.like(0), remainder)


def floor_divided(x: Scalar, y: Operand) -> tuple[Scalar, Scalar]:
    """Returns the quotient, rounded down, and the remainder with the divisor's sign."""
    y = x.like(y)
    quotient, remainder = divided(x, y)
    if x.is_unsigned:
        return quotient, remainder
    lower = remainder.compare("ne", 0) & (remainder ^ y).compare("lt", 0)
    return select(lower, quotient - 1, quotient), select(lower, remainder + y, remainder)


def shifted_left(x: Scalar, by: Operand) -> Scalar:
    """Shifts left; 0 if `by` is negative or not less than the width."""
    by = x.like(by)
    outside = _outside(by)
    moved = Scalar(arith.shli(x.value, select(outside, by.like(0), by).value), x.dtype)
    return select(outside, x.like(0), moved)


def shifted_right(x: Scalar, by: Operand) -> Scalar:
    """Shifts right; all sign bits if `by` is negative or not less than the width."""
    by = x.like(by)
    outside = _outside(by)
    if x.is_unsigned:
        moved = Scalar(arith.shrui(x.value, select(outside, by.like(0), by).value), x.dtype)
        return select(outside, x.like(0), moved)
    return Scalar(arith.shrsi(x.value, select(outside, by.like(_width(x) - 1), by).value), x.dtype)


def _outside(by: Scalar) -> Scalar:
    """True if `by` is negative or not less than the width; as an unsigned number a negative one is large."""
    limit = by.like(_width(by)).value
    return Scalar(arith.cmpi(arith.CmpIPredicate.uge, by.value, limit), TensorDType.Bool)


def power(x: Scalar, exponent: Operand) -> Scalar:
    """Returns `x ** exponent`, wrapped, by squaring; for a negative exponent 0, unless `x` is 1 or -1."""
    exponent = x.like(exponent)
    # For negative exponents too, a power of -1 depends on the parity of the exponent.
    negative = exponent.compare("lt", 0)
    count = select(negative, exponent & 1, exponent)
    result = repeat(
        (x.like(1), x, count),
        lambda _result, _square, left: left.compare("ne", 0),
        lambda result, square, left: (
            select((left & 1).compare("ne", 0), result * square, result),
            square * square,
            shifted_right(left, 1),
        ),
    )[0]
    unit = x.compare("eq", 1) if x.is_unsigned else x.compare("eq", 1) | x.compare("eq", -1)
    return select(negative & (unit ^ True), x.like(0), result)


def greatest_divisor(x: Scalar, y: Operand) -> Scalar:
    """Returns the greatest common divisor by Euclid's algorithm, without a sign; 0 for two zeros."""
    return repeat(
        (absolute(x), absolute(x.like(y))),
        lambda _a, b: b.compare("ne", 0),
        lambda a, b: (b, divided(a, b)[1]),
    )[0]


def least_multiple(x: Scalar, y: Operand) -> Scalar:
    """Returns the least common multiple, without a sign; 0 if one argument is 0. Uses at least 32 bits, as in C."""
    y = x.like(y)
    quotient = divided(x, greatest_divisor(x, y))[0]
    wide = x.dtype if _width(x) > 32 else TensorDType.Int32
    return cast(absolute(cast(quotient, wide) * cast(y, wide)), x.dtype)
