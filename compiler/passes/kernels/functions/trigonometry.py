"""Trigonometric and hyperbolic functions and their inverses, in single precision.

An argument is reduced in double precision with a two-part π/2 and FMA (after Cody and Waite); the first step is exact
for |x| < 2^46. A larger argument is y * 2^K, where y < 2^46 is an integer with 24 significant bits. Modulo 2π, this is
y * (2^K modulo 2π), where the second factor is given in three parts of 29, 29 and 53 bits, so that the first two
products are exact. This is the method of Payne and Hanek, with four values of K instead of a table.

`polynomials.py` describes how the polynomials were fitted and the errors measured.
"""

from __future__ import annotations

from buddy.compiler.mlir.bindings import arith, ir, math
from buddy.compiler.passes.kernels.functions.double_functions import ROUND, DoubleArithmetic
from buddy.compiler.passes.kernels.functions.polynomials import Arithmetic

# ---- hyperbolic functions and powers ---------------------------------------------------------------------------------

# The first terms of the series of sinh(x) / x in x²: relative error 3e-11 for |x| <= 1/2.
_SINH = (1.0, 1 / 6, 1 / 120, 1 / 5040, 1 / 362880)
_INFINITY, _NAN = float("inf"), float("nan")


def sinh(x: ir.Value) -> ir.Value:
    """Computes the hyperbolic sine with an error of at most 0.6 ULP."""
    d = DoubleArithmetic(x.type)
    wide = d.extend(x)
    power = d.exp(wide)
    far = arith.mulf(arith.subf(power, arith.divf(d.number(1.0), power)), d.number(0.5))
    near = arith.mulf(wide, d.horner(arith.mulf(wide, wide), _SINH))
    return arith.truncf(x.type, d.where("olt", math.absf(wide), 0.5, near, far))


def cosh(x: ir.Value) -> ir.Value:
    """Computes the hyperbolic cosine with an error of at most 0.6 ULP."""
    d = DoubleArithmetic(x.type)
    power = d.exp(d.extend(x))
    return arith.truncf(x.type, arith.mulf(arith.addf(power, arith.divf(d.number(1.0), power)), d.number(0.5)))


def asinh(x: ir.Value) -> ir.Value:
    """Computes the inverse hyperbolic sine as log(1 + (|x| + x² / (1 + sqrt(1 + x²)))).

    The error is at most 0.7 ULP.
    """
    d = DoubleArithmetic(x.type)
    one, wide = d.number(1.0), math.absf(d.extend(x))
    square = arith.mulf(wide, wide)
    correction = arith.divf(square, arith.addf(one, math.sqrt(arith.addf(one, square))))
    result = d.log(arith.addf(one, arith.addf(wide, correction)))
    result = d.where("oeq", wide, _INFINITY, wide, d.where("olt", wide, 1e-4, wide, result))
    return math.copysign(arith.truncf(x.type, result), x)


def acosh(x: ir.Value) -> ir.Value:
    """Computes the inverse hyperbolic cosine as log(x + sqrt(x² - 1)).

    The error is at most 0.7 ULP; the result is NaN if x is below 1.
    """
    d = DoubleArithmetic(x.type)
    wide = d.extend(x)
    root = math.sqrt(arith.subf(arith.mulf(wide, wide), d.number(1.0)))
    return arith.truncf(x.type, d.where("olt", wide, 1.0, d.number(_NAN), d.log(arith.addf(wide, root))))


def atanh(x: ir.Value) -> ir.Value:
    """Computes the inverse hyperbolic tangent as log((1 + x) / (1 - x)) / 2.

    The error is at most 0.7 ULP; the result is NaN if x is outside [-1, 1].
    """
    d = DoubleArithmetic(x.type)
    one, wide = d.number(1.0), d.extend(x)
    result = arith.mulf(d.log(arith.divf(arith.addf(one, wide), arith.subf(one, wide))), d.number(0.5))
    return arith.truncf(x.type, d.where("olt", math.absf(wide), 1e-4, wide, result))


def powf(x: ir.Value, y: ir.Value) -> ir.Value:
    """Computes x to the power of y with an error of at most 0.6 ULP; special cases are those of C's `powf`."""
    s, d = Arithmetic(x.type), DoubleArithmetic(x.type)
    magnitude, exponent = math.absf(d.extend(x)), d.extend(y)
    t = arith.mulf(exponent, d.log2(magnitude))
    # 1 to any power, and anything to the power of 0, is 1; the product may be 0 * inf.
    t = d.where("oeq", magnitude, 1.0, arith.select(_is_nan(y), exponent, d.number(0.0)), t)
    result = arith.truncf(x.type, d.exp2(t))
    half = arith.mulf(y, s.number(0.5))
    is_integer = arith.cmpf(arith.CmpFPredicate.OEQ, math.floor(y), y)
    is_odd = arith.andi(is_integer, arith.cmpf(arith.CmpFPredicate.UNE, math.floor(half), half))
    has_sign = arith.cmpi(arith.CmpIPredicate.slt, s.bits(x), s.integer(0))
    result = arith.select(arith.andi(has_sign, is_odd), arith.negf(result), result)
    is_finite_negative = arith.andi(s.compare("ogt", x, -_INFINITY), s.compare("olt", x, 0.0))
    is_negative_to_finite = arith.andi(is_finite_negative, s.compare("olt", math.absf(y), _INFINITY))
    is_domain_error = arith.andi(is_negative_to_finite, arith.cmpf(arith.CmpFPredicate.ONE, math.floor(y), y))
    result = arith.select(is_domain_error, s.number(_NAN), result)
    result = s.where("oeq", y, 0.0, s.number(1.0), result)
    return s.where("oeq", x, 1.0, s.number(1.0), result)


def _is_nan(x: ir.Value) -> ir.Value:
    return arith.cmpf(arith.CmpFPredicate.UNO, x, x)


# ---- trigonometric functions -----------------------------------------------------------------------------------------

# sin(r) = r + r³ P(r²), cos(r) = 1 - r²/2 + r⁴ Q(r²) for |r| <= π/4; relative errors 4e-9 (sin) and 1e-10 (cos).
_SIN = (-0.16666653752326965, 0.008332118391990662, -0.0001950906153069809)
_COS = (0.04166664555668831, -0.0013887288514524698, 2.442921140755061e-05)
_PI_2_HIGH, _PI_2_LOW, _TWO_OVER_PI = 1.5707963267948966, 6.123233995736766e-17, 0.6366197723675814
_CODY_WAITE_LIMIT = 2.0**46
# K, and 2^K modulo 2π in three parts.
_POWERS = (
    (23, 2.694608211517334, 8.732360778918036e-09, 9.44837252153192e-18),
    (46, 1.6032615005970001, 1.4369788137180706e-09, 2.7403333351970514e-17),
    (69, 5.527962878346443, 4.9000923596498325e-09, 1.0285422257691216e-17),
    (92, 1.7630066126585007, 2.90888238496656e-09, 2.5468458011098637e-17),
)


def sin(x: ir.Value) -> ir.Value:
    """Computes the sine with an error of at most 1.5 ULP for every argument."""
    s = Arithmetic(x.type)
    r, quadrant = _reduce_argument(s, x)
    result = _of_quadrant(s, quadrant, _sin(s, r), _cos(s, r))
    return s.where("oeq", x, 0.0, x, result)  # keeps the sign of zero


def cos(x: ir.Value) -> ir.Value:
    """Computes the cosine with an error of at most 1.5 ULP for every argument."""
    s = Arithmetic(x.type)
    r, quadrant = _reduce_argument(s, x)
    return _of_quadrant(s, arith.addi(quadrant, s.integer(1)), _sin(s, r), _cos(s, r))


def tan(x: ir.Value) -> ir.Value:
    """Computes the tangent with an error of at most 3.5 ULP for every argument."""
    s = Arithmetic(x.type)
    r, quadrant = _reduce_argument(s, x)
    sine, cosine = _sin(s, r), _cos(s, r)
    odd = _has_bit(s, quadrant, 1)
    result = arith.divf(arith.select(odd, arith.negf(cosine), sine), arith.select(odd, sine, cosine))
    return s.where("oeq", x, 0.0, x, result)


def atan(x: ir.Value) -> ir.Value:
    """Computes the arc tangent with an error of at most 0.6 ULP."""
    d = DoubleArithmetic(x.type)
    return arith.truncf(x.type, d.atan(d.extend(x)))


def asin(x: ir.Value) -> ir.Value:
    """Computes the arc sine as atan(x / sqrt(1 - x²)).

    The error is at most 0.6 ULP; the result is NaN if x is outside [-1, 1].
    """
    d = DoubleArithmetic(x.type)
    wide, one = d.extend(x), d.number(1.0)
    root = math.sqrt(arith.mulf(arith.subf(one, wide), arith.addf(one, wide)))
    return arith.truncf(x.type, d.atan(arith.divf(wide, root)))


def acos(x: ir.Value) -> ir.Value:
    """Computes the arc cosine as 2 atan(sqrt((1 - x) / (1 + x))).

    The error is at most 0.6 ULP; the result is NaN if x is outside [-1, 1].
    """
    d = DoubleArithmetic(x.type)
    wide, one = d.extend(x), d.number(1.0)
    half = d.atan(math.sqrt(arith.divf(arith.subf(one, wide), arith.addf(one, wide))))
    return arith.truncf(x.type, arith.addf(half, half))


def atan2(y: ir.Value, x: ir.Value) -> ir.Value:
    """Computes the angle of the point (x, y).

    The error is at most 0.6 ULP; special cases are those of C's `atan2f`.
    """
    d = DoubleArithmetic(x.type)
    wide_x, wide_y = math.absf(d.extend(x)), math.absf(d.extend(y))
    steep = arith.cmpf(arith.CmpFPredicate.OGT, wide_y, wide_x)
    numerator, denominator = arith.select(steep, wide_x, wide_y), arith.select(steep, wide_y, wide_x)
    quotient = d.where("oeq", denominator, 0.0, d.number(0.0), arith.divf(numerator, denominator))
    are_equal = arith.cmpf(arith.CmpFPredicate.OEQ, numerator, denominator)
    quotient = arith.select(are_equal, _equal_quotient(d, denominator), quotient)
    angle = d.atan(quotient)
    angle = arith.select(steep, arith.subf(d.number(_PI_2_HIGH), angle), angle)
    s = Arithmetic(x.type)
    has_sign = arith.cmpi(arith.CmpIPredicate.slt, s.bits(x), s.integer(0))
    angle = arith.select(has_sign, arith.subf(d.number(2 * _PI_2_HIGH), angle), angle)
    result = math.copysign(arith.truncf(x.type, angle), y)
    any_nan = arith.cmpf(arith.CmpFPredicate.UNO, x, y)
    return arith.select(any_nan, arith.addf(x, y), result)


def _equal_quotient(d: DoubleArithmetic, x: ir.Value) -> ir.Value:
    """Returns x / x, with 0 / 0 = 0 and inf / inf = 1 as `atan2` requires."""
    return d.where("oeq", x, 0.0, d.number(0.0), d.number(1.0))


def _sin(s: Arithmetic, r: ir.Value) -> ir.Value:
    """Returns the sine for |r| <= π/4."""
    square = arith.mulf(r, r)
    return s.fma(arith.mulf(r, square), s.horner(square, _SIN), r)


def _cos(s: Arithmetic, r: ir.Value) -> ir.Value:
    """Returns the cosine for |r| <= π/4."""
    square = arith.mulf(r, r)
    tail = s.fma(arith.mulf(square, square), s.horner(square, _COS), arith.mulf(square, s.number(-0.5)))
    return arith.addf(tail, s.number(1.0))


def _of_quadrant(s: Arithmetic, quadrant: ir.Value, sine: ir.Value, cosine: ir.Value) -> ir.Value:
    """Returns the sine of an angle from the sine and cosine of its remainder after `quadrant` right angles."""
    value = arith.select(_has_bit(s, quadrant, 1), cosine, sine)
    return arith.select(_has_bit(s, quadrant, 2), arith.negf(value), value)


def _has_bit(s: Arithmetic, number: ir.Value, bit: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.ne, arith.andi(number, s.integer(bit)), s.integer(0))


def _reduce_argument(s: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns `x` minus a number of right angles, within ±π/4, and a quadrant number that is correct modulo 4.

    The remainder is NaN if `x` is infinite.
    """
    d = DoubleArithmetic(x.type)
    wide = d.extend(x)
    is_large = d.compare("oge", math.absf(wide), _CODY_WAITE_LIMIT)
    y, parts = _scale(d, wide)
    high = arith.select(is_large, arith.mulf(y, parts[0]), wide)
    middle, low = (arith.select(is_large, arith.mulf(y, part), d.number(0.0)) for part in parts[1:])
    high_remainder, n_high = _subtract_quadrants(d, high)
    middle_remainder, n_middle = _subtract_quadrants(d, middle)
    remainder, n_last = _subtract_quadrants(d, arith.addf(high_remainder, arith.addf(middle_remainder, low)))
    quadrant = arith.trunci(s.integers, arith.addi(n_high, arith.addi(n_middle, n_last)))
    return arith.truncf(s.type, remainder), quadrant


def _scale(d: DoubleArithmetic, x: ir.Value) -> tuple[ir.Value, list[ir.Value]]:
    """Returns x / 2^K for the largest K in `_POWERS` for which this is an integer, and the parts of 2^K modulo 2π.

    For smaller `x`, K is the first one.
    """
    (k, *first_parts), *other_powers = _POWERS
    scale, parts = d.number(2.0**-k), [d.number(part) for part in first_parts]
    magnitude = math.absf(x)
    for k, *power_parts in other_powers:
        is_integer = d.compare("oge", magnitude, 2.0 ** (k + 23))
        scale = arith.select(is_integer, d.number(2.0**-k), scale)
        parts = [arith.select(is_integer, d.number(new), old) for new, old in zip(power_parts, parts, strict=True)]
    return arith.mulf(x, scale), parts


def _subtract_quadrants(d: DoubleArithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns `x` minus the nearest multiple of π/2, and an integer whose low bits are those of the multiple."""
    rounded = math.fma(x, d.number(_TWO_OVER_PI), d.number(ROUND))
    n = arith.negf(arith.subf(rounded, d.number(ROUND)))
    remainder = math.fma(n, d.number(_PI_2_HIGH), x)
    return math.fma(n, d.number(_PI_2_LOW), remainder), d.bits(rounded)
