"""Integer division, shifts, powers, gcd and lcm with PyTorch's semantics, and the bits of other types as integers.

No division traps. Division by 0 gives 0; callers that must raise check the divisor.
"""

from __future__ import annotations

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops.scalar import Operand, Scalar, absolute, cast, select, while_loop
from buddy.compiler.ops.utils import mlir_element_type_get

# The signed integer type of each bit width.
INTEGER_TYPES = {8: TensorDType.Int8, 16: TensorDType.Int16, 32: TensorDType.Int32, 64: TensorDType.Int64}


def stored_bit_width(dtype: TensorDType) -> int:
    """Returns the number of bits of an element in memory; a bool takes 8."""
    return 8 if dtype is TensorDType.Bool else int(mlir_element_type_get(dtype).width)


def bits_of(x: Scalar) -> Scalar:
    """Returns the bits of an element as a signed integer of the same width."""
    integer_type = INTEGER_TYPES[stored_bit_width(x.dtype)]
    if x.dtype.is_float:
        return Scalar(arith.bitcast(mlir_element_type_get(integer_type), x.value), integer_type)
    return cast(x, integer_type)


def from_bits(bits: Scalar, dtype: TensorDType) -> Scalar:
    """Returns the element of `dtype` that an integer of the same width has the bits of."""
    if dtype.is_float:
        return Scalar(arith.bitcast(mlir_element_type_get(dtype), bits.value), dtype)
    return cast(bits, dtype)


def _bit_width(x: Scalar) -> int:
    return int(x.value.type.width)


def divide(x: Scalar, y: Operand) -> tuple[Scalar, Scalar]:
    """Returns the quotient `x / y`, rounded towards zero, and the remainder.

    For a divisor of 0 both are 0. For a divisor of -1 the quotient of the smallest integer wraps to itself.
    """
    y = x.like(y)
    # The division instruction may trap for these divisors.
    may_trap = y.compare("eq", 0) if x.is_unsigned else y.compare("eq", 0) | y.compare("eq", -1)
    divisor = select(may_trap, y.like(1), y)
    quotient_op, remainder_op = (arith.divui, arith.remui) if x.is_unsigned else (arith.divsi, arith.remsi)
    quotient = Scalar(quotient_op(x.value, divisor.value), x.dtype)
    remainder = Scalar(remainder_op(x.value, divisor.value), x.dtype)
    # For both these divisors the quotient is `x * y`, and the remainder is 0.
    return select(may_trap, x * y, quotient), select(may_trap, remainder.like(0), remainder)


def floor_divide(x: Scalar, y: Operand) -> tuple[Scalar, Scalar]:
    """Returns the quotient `x / y`, rounded down, and the remainder, which has the divisor's sign."""
    y = x.like(y)
    quotient, remainder = divide(x, y)
    if x.is_unsigned:
        return quotient, remainder
    rounded_up = remainder.compare("ne", 0) & (remainder ^ y).compare("lt", 0)
    return select(rounded_up, quotient - 1, quotient), select(rounded_up, remainder + y, remainder)


def shift_left(x: Scalar, by: Operand) -> Scalar:
    """Returns `x << by`; 0 if `by` is negative or not less than the bit width."""
    by = x.like(by)
    is_oversized = _is_oversized_shift(by)
    shifted = Scalar(arith.shli(x.value, select(is_oversized, by.like(0), by).value), x.dtype)
    return select(is_oversized, x.like(0), shifted)


def shift_right(x: Scalar, by: Operand) -> Scalar:
    """Returns `x >> by`. If `by` is negative or not less than the bit width, returns 0, or -1 for a negative `x`."""
    by = x.like(by)
    is_oversized = _is_oversized_shift(by)
    if x.is_unsigned:
        shifted = Scalar(arith.shrui(x.value, select(is_oversized, by.like(0), by).value), x.dtype)
        return select(is_oversized, x.like(0), shifted)
    return Scalar(arith.shrsi(x.value, select(is_oversized, by.like(_bit_width(x) - 1), by).value), x.dtype)


def _is_oversized_shift(by: Scalar) -> Scalar:
    """True if `by` is negative or not less than the bit width. One unsigned comparison covers both."""
    limit = by.like(_bit_width(by)).value
    return Scalar(arith.cmpi(arith.CmpIPredicate.uge, by.value, limit), TensorDType.Bool)


def power(x: Scalar, exponent: Operand) -> Scalar:
    """Returns `x ** exponent`, wrapped, by repeated squaring; 0 for a negative exponent, unless `x` is 1 or -1."""
    exponent = x.like(exponent)
    # For a negative exponent, only the powers of 1 and -1 are not 0, and these depend only on the exponent's parity.
    is_negative = exponent.compare("lt", 0)
    effective_exponent = select(is_negative, exponent & 1, exponent)
    result = while_loop(
        (x.like(1), x, effective_exponent),
        lambda _result, _base, remaining: remaining.compare("ne", 0),
        lambda result, base, remaining: (
            select((remaining & 1).compare("ne", 0), result * base, result),
            base * base,
            shift_right(remaining, 1),
        ),
    )[0]
    is_unit = x.compare("eq", 1) if x.is_unsigned else x.compare("eq", 1) | x.compare("eq", -1)
    return select(is_negative & (is_unit ^ True), x.like(0), result)


def greatest_common_divisor(x: Scalar, y: Operand) -> Scalar:
    """Returns the greatest common divisor, by Euclid's algorithm; 0 for two zeros.

    It is negative only if the absolute value of the smallest integer wraps.
    """
    return while_loop(
        (absolute(x), absolute(x.like(y))),
        lambda _a, b: b.compare("ne", 0),
        lambda a, b: (b, divide(a, b)[1]),
    )[0]


def least_common_multiple(x: Scalar, y: Operand) -> Scalar:
    """Returns the least common multiple, wrapped to the type of `x`; 0 if one argument is 0.

    The product is computed after C's integer promotion, in at least 32 bits.
    """
    y = x.like(y)
    quotient = divide(x, greatest_common_divisor(x, y))[0]
    wide = x.dtype if _bit_width(x) > 32 else TensorDType.Int32
    return cast(absolute(cast(quotient, wide) * cast(y, wide)), x.dtype)
