"""Exponentials, logarithms, tanh and erf in single precision, and the arithmetic that all functions are made of.

The polynomials are minimax fits of the relative error, made for this file (Lawson's reweighted least squares on 2,000
Chebyshev nodes against 40-digit references), rounded to single precision. Errors are given in ULP of the result; they
were measured over dense ranges against double precision. Every function handles ±inf, NaN, zeros and denormals.
"""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.mlir.bindings import arith, ir, math
from buddy.compiler.passes.kernels.emit import element_type, with_element_type

# ---- arithmetic on floats and their bits -----------------------------------------------------------------------------


# The bits of the fraction of a float, and the bias of its exponent, by its width in bits.
_FORMATS = {32: (23, 127), 64: (52, 1023)}
_INFINITY, _NAN = float("inf"), float("nan")


class Arithmetic:
    """Emits operations on values of `type_`, which is f32, f64 or a vector of these, at the insertion point."""

    def __init__(self, type_: ir.Type) -> None:
        self.type, self.element = type_, element_type(type_)
        self._integer = ir.IntegerType.get_signless(self.element.width)
        self.integers = with_element_type(type_, self._integer)
        self._mantissa_bits, self._exponent_bias = _FORMATS[self.element.width]

    def number(self, value: float) -> ir.Value:
        """Emits a constant of the type."""
        return self._constant(self.type, ir.FloatAttr.get(self.element, value))

    def integer(self, value: int) -> ir.Value:
        """Emits a constant of the type of `bits`."""
        return self._constant(self.integers, ir.IntegerAttr.get(self._integer, value))

    def _constant(self, type_: ir.Type, scalar: ir.Attribute) -> ir.Value:
        is_vector = isinstance(type_, ir.VectorType)
        return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, scalar) if is_vector else scalar)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns `a * b + c`, rounded once."""
        return math.fma(a, b, c)

    def horner(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Evaluates `coefficients[0] + coefficients[1] x + …`."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.number(coefficient))
        return result

    def where(self, predicate: str, x: ir.Value, bound: float, then: ir.Value, otherwise: ir.Value) -> ir.Value:
        """Returns `then` if `x predicate bound`, for a predicate of `arith.cmpf`, else `otherwise`; lane by lane."""
        return arith.select(self.compare(predicate, x, bound), then, otherwise)

    def compare(self, predicate: str, x: ir.Value, bound: float) -> ir.Value:
        """Returns `x predicate bound`, for a predicate of `arith.cmpf`."""
        return arith.cmpf(arith.CmpFPredicate[predicate.upper()], x, self.number(bound))

    def clamped(self, x: ir.Value, lower: float | None, upper: float | None) -> ir.Value:
        """Returns `x` limited to `lower` and `upper` (`None`: no limit); NaN stays NaN."""
        if upper is not None:
            x = self.where("ogt", x, upper, self.number(upper), x)
        if lower is not None:
            x = self.where("olt", x, lower, self.number(lower), x)
        return x

    def bits(self, x: ir.Value) -> ir.Value:
        """Returns the bits of `x` as integers."""
        return arith.bitcast(self.integers, x)

    def from_bits(self, bits: ir.Value) -> ir.Value:
        """Returns the floats with the given bits."""
        return arith.bitcast(self.type, bits)

    def power_of_two(self, exponent: ir.Value) -> ir.Value:
        """Returns 2 to the power of an integer, if that is a normal number."""
        biased = arith.addi(exponent, self.integer(self._exponent_bias))
        return self.from_bits(arith.shli(biased, self.integer(self._mantissa_bits)))

    def scaled(self, mantissa: ir.Value, exponent: ir.Value) -> ir.Value:
        """Returns `mantissa * 2**exponent`, as two products, since `2**exponent` may be denormal or infinite."""
        half = arith.shrsi(exponent, self.integer(1))
        product = arith.mulf(mantissa, self.power_of_two(half))
        return arith.mulf(product, self.power_of_two(arith.subi(exponent, half)))

    def logarithm(self, x: ir.Value, finite: ir.Value) -> ir.Value:
        """Returns the logarithm of any `x`: `finite` if `x` is finite and above zero, -inf at zero, NaN below."""
        result = self.where("oeq", x, _INFINITY, x, finite)
        result = self.where("oeq", x, 0.0, self.number(-_INFINITY), result)
        return self.where("ult", x, 0.0, self.number(_NAN), result)


# ---- functions in single precision -----------------------------------------------------------------------------------


# exp(r) = 1 + r + r² P(r) for |r| <= ln(2)/2, relative error 3e-9.
_EXP = (0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.008368780836462975, 0.0013814467238262296)
# log(1 + f) = f - f²/2 + f³ P(f) for 1 + f between sqrt(1/2) and sqrt(2), relative error 8e-10.
_LOG = (
    0.3333331346511841, -0.25000008940696716, 0.20002123713493347, -0.16668005287647247, 0.14219452440738678,
    -0.12405340373516083, 0.11888696998357773, -0.11677515506744385, 0.06747730821371078,
)  # fmt: skip
# tanh(x) = x + x³ P(x²) for |x| <= 0.63, relative error 5e-9.
_TANH = (-0.33333277702331543, 0.13331331312656403, -0.05373000726103783, 0.020606176927685738, -0.005666977260261774)
# erf(x) = x + x P(x²) for |x| <= 0.93, relative error 5e-10.
_ERF_NEAR = (
    0.12837916612625122, -0.37612631916999817, 0.11283687502145767, -0.026858942583203316, 0.005199907813221216,
    -0.0008130021160468459, 8.316804451169446e-05,
)  # fmt: skip
# -log(1 - erf(t)) = t + t P(t) for 0.92 <= t <= 4; relative error in erf 7e-10.
_ERF_FAR = (
    0.12864848971366882, 0.6351513266563416, 0.10623687505722046, -0.023762060329318047, 0.003642457537353039,
    -0.00032280347659252584, 1.1231266398681328e-05,
)  # fmt: skip

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # ln(2) = high + low; products of high with exponents are exact
_LN2, _LOG10_2, _LOG10_E = 0.6931471805599453, 0.3010299956639812, 0.4342944819032518
ROUND = 12582912.0  # 1.5 * 2²³: adding it rounds to an integer in the low bits
_ROUND_BITS = 0x4B400000
_SQRT_HALF_BITS = 0x3F3504F3
_MANTISSA_BITS = 23
_SMALLEST_NORMAL = 1.1754943508222875e-38
_TWO_23 = 8388608.0


def exp(x: ir.Value) -> ir.Value:
    """Computes e to the power of x with an error of at most 1.0 ULP."""
    s = Arithmetic(x.type)
    # Below -104 the result is 0, above 89 it is infinite.
    tail, exponent = _exp_parts(s, s.clamped(x, -104.0, 89.0))
    return s.scaled(arith.addf(tail, s.number(1.0)), exponent)


def exp2(x: ir.Value) -> ir.Value:
    """Computes 2 to the power of x with an error of at most 1.1 ULP."""
    s = Arithmetic(x.type)
    x = s.clamped(x, -151.0, 129.0)
    rounded = arith.addf(x, s.number(ROUND))
    r = arith.mulf(arith.subf(x, arith.subf(rounded, s.number(ROUND))), s.number(_LN2))
    mantissa = arith.addf(_exp_tail(s, r), s.number(1.0))
    return s.scaled(mantissa, arith.subi(s.bits(rounded), s.integer(_ROUND_BITS)))


def expm1(x: ir.Value) -> ir.Value:
    """Computes e to the power of x, minus 1, with an error of at most 1.5 ULP."""
    s = Arithmetic(x.type)
    tail, exponent = _exp_parts(s, s.clamped(x, -18.0, 89.0))
    # (tail + 1) * 2**n - 1 = tail * 2**n + (2**n - 1), computed as twice the half of it, since 2**n may be infinite.
    power = s.power_of_two(arith.subi(exponent, s.integer(1)))
    half = s.fma(tail, power, arith.subf(power, s.number(0.5)))
    doubled = arith.addf(half, half)
    return s.where("olt", math.absf(x), 5e-8, x, doubled)


def _exp_tail(s: Arithmetic, r: ir.Value) -> ir.Value:
    """Computes exp(r) - 1 for |r| <= ln(2)/2."""
    return s.fma(arith.mulf(r, r), s.horner(r, _EXP), r)


def _exp_parts(s: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns `(t, n)` with exp(x) = (1 + t) * 2**n, t between -0.3 and 0.42, for |x| up to about 100."""
    rounded = s.fma(x, s.number(_LOG2_E), s.number(ROUND))
    n = arith.subf(rounded, s.number(ROUND))
    r = s.fma(n, s.number(-_LN2_HIGH), x)
    r = s.fma(n, s.number(-_LN2_LOW), r)
    return _exp_tail(s, r), arith.subi(s.bits(rounded), s.integer(_ROUND_BITS))


def exp_or_infinity(s: Arithmetic, x: ir.Value) -> ir.Value:
    """Returns exp(x), but about the smallest normal number instead of a denormal result or zero."""
    tail, exponent = _exp_parts(s, s.clamped(x, -87.0, 89.0))
    half = arith.mulf(arith.addf(tail, s.number(1.0)), s.power_of_two(arith.subi(exponent, s.integer(1))))
    return arith.addf(half, half)


def _exp_in_range(s: Arithmetic, x: ir.Value) -> ir.Value:
    """Returns exp(x) for arguments whose result is a normal number."""
    tail, exponent = _exp_parts(s, x)
    return arith.mulf(arith.addf(tail, s.number(1.0)), s.power_of_two(exponent))


def log(x: ir.Value) -> ir.Value:
    """Computes the natural logarithm with an error of at most 0.9 ULP; NaN if x is below zero, -inf at zero."""
    s = Arithmetic(x.type)
    return s.logarithm(x, _log_of_positive(s, x))


def log2(x: ir.Value) -> ir.Value:
    """Computes the logarithm to base 2 with an error of at most 1.8 ULP; exact for powers of two."""
    s = Arithmetic(x.type)
    n, f, tail = _log_parts(s, x)
    return s.logarithm(x, s.fma(arith.addf(f, tail), s.number(_LOG2_E), n))


def log10(x: ir.Value) -> ir.Value:
    """Computes the logarithm to base 10 with an error of at most 2.1 ULP."""
    s = Arithmetic(x.type)
    n, f, tail = _log_parts(s, x)
    return s.logarithm(x, s.fma(n, s.number(_LOG10_2), arith.mulf(arith.addf(f, tail), s.number(_LOG10_E))))


def log1p(x: ir.Value) -> ir.Value:
    """Computes log(1 + x) with an error of at most 1.5 ULP.

    The rounding error of 1 + x is added to the logarithm as a first-order term.
    """
    s = Arithmetic(x.type)
    u = arith.addf(x, s.number(1.0))
    rounding_error = arith.subf(x, arith.subf(u, s.number(1.0)))
    result = arith.addf(_log_of_positive(s, u), arith.divf(rounding_error, u))
    result = s.where("oeq", x, 0.0, x, result)
    result = s.where("oeq", x, _INFINITY, x, result)
    result = s.where("oeq", x, -1.0, s.number(-_INFINITY), result)
    return s.where("ult", x, -1.0, s.number(_NAN), result)


def _log_parts(s: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Returns `(n, f, t)` with log(x) = n * ln(2) + f + t for finite x above zero; t is small compared with f."""
    normal = s.where("olt", x, _SMALLEST_NORMAL, arith.mulf(x, s.number(_TWO_23)), x)
    shift = s.where("olt", x, _SMALLEST_NORMAL, s.number(-float(_MANTISSA_BITS)), s.number(0.0))
    bits = s.bits(normal)
    exponent = arith.shrsi(arith.subi(bits, s.integer(_SQRT_HALF_BITS)), s.integer(_MANTISSA_BITS))
    mantissa = s.from_bits(arith.subi(bits, arith.shli(exponent, s.integer(_MANTISSA_BITS))))
    n = arith.addf(arith.sitofp(s.type, exponent), shift)
    f = arith.subf(mantissa, s.number(1.0))
    square = arith.mulf(f, f)
    cubed = arith.mulf(arith.mulf(f, square), s.horner(f, _LOG))
    return n, f, s.fma(square, s.number(-0.5), cubed)


def _log_of_positive(s: Arithmetic, x: ir.Value) -> ir.Value:
    """Returns the natural logarithm of finite x above zero."""
    n, f, tail = _log_parts(s, x)
    tail = s.fma(n, s.number(_LN2_LOW), tail)
    return s.fma(n, s.number(_LN2_HIGH), arith.addf(f, tail))


def tanh(x: ir.Value) -> ir.Value:
    """Computes the hyperbolic tangent with an error of at most 1.4 ULP."""
    s = Arithmetic(x.type)
    magnitude = math.absf(x)
    square = arith.mulf(x, x)
    near = s.fma(arith.mulf(magnitude, square), s.horner(square, _TANH), magnitude)
    power = _exp_in_range(s, arith.mulf(s.clamped(magnitude, None, 10.0), s.number(2.0)))
    quotient = arith.divf(s.number(2.0), arith.addf(power, s.number(1.0)))
    far = arith.subf(s.number(1.0), quotient)
    return math.copysign(s.where("olt", magnitude, 0.625, near, far), x)


def erf(x: ir.Value) -> ir.Value:
    """Computes the error function with an error of at most 1.2 ULP."""
    s = Arithmetic(x.type)
    magnitude = math.absf(x)
    square = arith.mulf(x, x)
    near = s.fma(s.horner(square, _ERF_NEAR), x, x)
    t = s.clamped(magnitude, None, 4.0)
    exponent = arith.negf(s.fma(s.horner(t, _ERF_FAR), t, t))
    far = math.copysign(arith.subf(s.number(1.0), _exp_in_range(s, exponent)), x)
    return s.where("ogt", magnitude, 0.925, far, near)
