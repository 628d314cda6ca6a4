"""Exponentials, logarithms, tanh and erf in double precision, and double-precision arithmetic for functions of f32.

Polynomials are interpolated at Chebyshev nodes with 60 digits and rounded to double precision. The methods are those of
fdlibm (Sun Microsystems): exp is a power of two times a polynomial of the remainder, log a polynomial of
(x - 1) / (x + 1). Errors are given in ULP of the result; they were measured over dense ranges against 80-bit numbers.
"""

from __future__ import annotations

from buddy.compiler.mlir.bindings import arith, ir, math
from buddy.compiler.passes.kernels.emit import with_element_type
from buddy.compiler.passes.kernels.functions.polynomials import Arithmetic

ROUND = 6755399441055744.0  # 1.5 * 2⁵²: adding it rounds to an integer in the low bits
_ROUND_BITS = 0x4338000000000000
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_MANTISSA_BITS = 52
_LOG2_E, _LN2 = 1.4426950408889634, 0.6931471805599453

# ---- arithmetic for functions of f32 ---------------------------------------------------------------------------------

# Polynomials for `DoubleArithmetic`, whose results are rounded to f32.
# 2^f for |f| <= 1/2, relative error 4e-11.
_EXP2 = (
    0.999999999961683, 0.6931471807284588, 0.2402265119815567, 0.05550410353410901, 0.00961802725390671,
    0.0013333922593808108, 0.00015469291081177312, 1.5201914657428043e-05,
)  # fmt: skip
# log2((1 + s) / (1 - s)) = s P(s²) for arguments between sqrt(1/2) and sqrt(2), relative error 4e-12.
_LOG2 = (2.885390081790772, 0.9617966724311632, 0.5770837671842383, 0.41166133289121876, 0.34094842315438995)
# atan(t) = t + t³ P(t²) for |t| <= tan(π/8), relative error 2e-11.
_ATAN = (
    -0.33333332513677566, 0.19999905098998833, -0.14282039420552994, 0.11045058969349336, -0.0847820380991401,
    0.04747838186352781,
)  # fmt: skip
_PI_2, _PI_4 = 1.5707963267948966, 0.7853981633974483
_TAN_PI_8, _TAN_3PI_8 = 0.41421356237309503, 2.414213562373095


class DoubleArithmetic(Arithmetic):
    """Emits arithmetic on f64, or on vectors of f64 if `type_` is a vector type; `type_` may have other elements.

    Functions of this class have results that are exact enough to be rounded to f32.
    """

    def __init__(self, type_: ir.Type) -> None:
        super().__init__(with_element_type(type_, ir.F64Type.get()))

    def extend(self, single: ir.Value) -> ir.Value:
        """Converts f32 to f64."""
        return arith.extf(self.type, single)

    def exp2(self, x: ir.Value) -> ir.Value:
        """Returns 2 to the power of x, relative error 1e-10.

        If the result is outside of the range of f32, it is any number outside of this range.
        """
        x = self.where("ogt", x, 200.0, self.number(200.0), x)
        x = self.where("olt", x, -200.0, self.number(-200.0), x)
        rounded = arith.addf(x, self.number(ROUND))
        fraction = arith.subf(x, arith.subf(rounded, self.number(ROUND)))
        exponent = arith.shli(self.bits(rounded), self.integer(_MANTISSA_BITS))
        return self.from_bits(arith.addi(self.bits(self.horner(fraction, _EXP2)), exponent))

    def exp(self, x: ir.Value) -> ir.Value:
        """Returns e to the power of x, as exactly as `exp2`."""
        return self.exp2(arith.mulf(x, self.number(_LOG2_E)))

    def log2(self, x: ir.Value) -> ir.Value:
        """Returns the logarithm to base 2 of a normal number, 0 or inf, relative error 1e-11; NaN below zero."""
        bits = self.bits(x)
        exponent = arith.shrsi(arith.subi(bits, self.integer(_SQRT_HALF_BITS)), self.integer(_MANTISSA_BITS))
        m = self.from_bits(arith.subi(bits, arith.shli(exponent, self.integer(_MANTISSA_BITS))))
        s = arith.divf(arith.subf(m, self.number(1.0)), arith.addf(m, self.number(1.0)))
        # An exponent in the low bits of `ROUND` becomes a number by subtraction: cheaper than converting 64-bit
        # integers.
        n = arith.subf(self.from_bits(arith.addi(exponent, self.integer(_ROUND_BITS))), self.number(ROUND))
        result = math.fma(s, self.horner(arith.mulf(s, s), _LOG2), n)
        result = self.where("oeq", x, 0.0, self.number(-float("inf")), result)
        result = self.where("oeq", x, float("inf"), x, result)
        return self.where("ult", x, 0.0, self.number(float("nan")), result)

    def log(self, x: ir.Value) -> ir.Value:
        """Returns the natural logarithm, as exactly as `log2`."""
        return arith.mulf(self.log2(x), self.number(_LN2))

    def atan(self, x: ir.Value) -> ir.Value:
        """Returns the arc tangent, relative error 2e-11."""
        magnitude = math.absf(x)
        middle, far = self.compare("ogt", magnitude, _TAN_PI_8), self.compare("ogt", magnitude, _TAN_3PI_8)
        one = self.number(1.0)
        # atan(x) is π/2 + atan(-1 / x) for large x, and π/4 + atan((x - 1) / (x + 1)) for x near 1.
        numerator = arith.select(far, self.number(-1.0), arith.select(middle, arith.subf(magnitude, one), magnitude))
        denominator = arith.select(far, magnitude, arith.select(middle, arith.addf(magnitude, one), one))
        start = arith.select(far, self.number(_PI_2), arith.select(middle, self.number(_PI_4), self.number(0.0)))
        t = arith.divf(numerator, denominator)
        square = arith.mulf(t, t)
        tail = arith.mulf(arith.mulf(t, square), self.horner(square, _ATAN))
        return math.copysign(arith.addf(start, arith.addf(t, tail)), x)


# ---- functions of f64 ------------------------------------------------------------------------------------------------

# exp(r) = 1 + r + r² P(r) for |r| <= ln(2)/2, relative error 2e-19.
_EXP = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326136, 0.0013888888888883748, 0.00019841269874820627,
    2.4801587325547743e-05, 2.7557255400206422e-06, 2.75572736431103e-07, 2.5105217004720745e-08,
    2.0914686968086876e-09,
)  # fmt: skip
# log(1 + f) = f - f²/2 + s (f²/2 + s² P(s²)) with s = f / (2 + f), 1 + f in [sqrt(1/2), sqrt(2)]; error 9e-18.
_LOG = (
    0.666666666666667, 0.3999999999989889, 0.28571428626253836, 0.22222211089379493, 0.18182892432537032,
    0.15331611722050653, 0.14617807153462828,
)  # fmt: skip
# erf(x) = x + x P(x²) for |x| <= 1, relative error 2e-20.
_ERF_NEAR = (
    0.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.026866170645129854, 0.005223977625423455,
    -0.0008548327021945428, 0.00012055332903350668, -1.4925647581008593e-05, 1.6462045711013026e-06,
    -1.6364645854816389e-07, 1.479243542696247e-08, -1.2164764337224506e-09, 8.709755232851789e-11,
    -4.2320376764874594e-12,
)  # fmt: skip
# -log(1 - erf(t)) = P(t - 1) for 1 <= t <= 6, relative error 2e-17.
_ERF_FAR = (
    1.8496055099332485, 2.6389675142347317, 0.8431072563607378, 0.041561098012686586, -0.010033825165931003,
    0.0019779017239728194, -0.00023732055350307937, -2.627964879584139e-05, 2.7155965966539867e-05,
    -9.594531000388872e-06, 2.03268784566973e-06, -1.0991938513694119e-07, -1.2607526026323276e-07,
    7.025372198001231e-08, -2.361402007645737e-08, 5.983126444613545e-09, -1.202738225277064e-09,
    1.9374482600389227e-10, -2.4808518315907905e-11, 2.472240230886733e-12, -1.848816108540365e-13,
    9.757837375408713e-15, -3.238973325138877e-16, 5.082222823642349e-18,
)  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # products of high with exponents are exact
_LOG10_2_HIGH, _LOG10_2_LOW = 0.3010299955494702, 1.1451100898021838e-10
_LOG10_E = 0.4342944819032518
_SMALLEST_NORMAL = 2.2250738585072014e-308
_INFINITY, _NAN = float("inf"), float("nan")


def exp(x: ir.Value) -> ir.Value:
    """Computes e to the power of x with an error of at most 1 ULP."""
    d = DoubleArithmetic(x.type)
    # Below -746 the result is 0, above 710 it is infinite.
    tail, n = _exp_parts(d, d.clamped(x, -746.0, 710.0))
    return d.scaled(arith.addf(tail, d.number(1.0)), n)


def exp2(x: ir.Value) -> ir.Value:
    """Computes 2 to the power of x with an error of at most 1.1 ULP; exact for integers."""
    d = DoubleArithmetic(x.type)
    x = d.clamped(x, -1080.0, 1025.0)
    rounded = arith.addf(x, d.number(ROUND))
    r = arith.mulf(arith.subf(x, arith.subf(rounded, d.number(ROUND))), d.number(_LN2))
    tail = math.fma(arith.mulf(r, r), d.horner(r, _EXP), r)
    return d.scaled(arith.addf(tail, d.number(1.0)), _rounded_integer(d, rounded))


def expm1(x: ir.Value) -> ir.Value:
    """Computes e to the power of x, minus 1, with an error of at most 1.8 ULP."""
    d = DoubleArithmetic(x.type)
    tail, n = _exp_parts(d, d.clamped(x, -40.0, 710.0))
    # (tail + 1) * 2**n - 1 = tail * 2**n + (2**n - 1), computed as twice the half of it, since 2**n may be infinite.
    power = d.power_of_two(arith.subi(n, d.integer(1)))
    half = math.fma(tail, power, arith.subf(power, d.number(0.5)))
    return d.where("olt", math.absf(x), 1e-16, x, arith.addf(half, half))


def tanh(x: ir.Value) -> ir.Value:
    """Computes the hyperbolic tangent, t / (t + 2) with t = exp(2 |x|) - 1, with an error of at most 2.6 ULP."""
    d = DoubleArithmetic(x.type)
    magnitude = math.absf(x)
    t = expm1(arith.mulf(d.clamped(magnitude, None, 22.0), d.number(2.0)))
    return math.copysign(arith.divf(t, arith.addf(t, d.number(2.0))), x)


def erf(x: ir.Value) -> ir.Value:
    """Computes the error function with an error of at most 1.5 ULP."""
    d = DoubleArithmetic(x.type)
    magnitude = math.absf(x)
    near = math.fma(d.horner(arith.mulf(x, x), _ERF_NEAR), x, x)
    t = d.clamped(magnitude, 1.0, 6.0)
    exponent = d.horner(arith.subf(t, d.number(1.0)), _ERF_FAR)
    far = math.copysign(arith.subf(d.number(1.0), exp(arith.negf(exponent))), x)
    return d.where("ogt", magnitude, 1.0, far, near)


def log(x: ir.Value) -> ir.Value:
    """Computes the natural logarithm with an error of at most 1 ULP; NaN if x is below zero, -inf at zero."""
    d = DoubleArithmetic(x.type)
    return d.logarithm(x, _log_of_positive(d, x))


def log2(x: ir.Value) -> ir.Value:
    """Computes the logarithm to base 2 with an error of at most 2.5 ULP; exact for powers of two."""
    d = DoubleArithmetic(x.type)
    n, f, tail = _log_parts(d, x)
    return d.logarithm(x, math.fma(arith.subf(f, tail), d.number(_LOG2_E), n))


def log10(x: ir.Value) -> ir.Value:
    """Computes the logarithm to base 10 with an error of at most 2.5 ULP."""
    d = DoubleArithmetic(x.type)
    n, f, tail = _log_parts(d, x)
    low = math.fma(arith.subf(f, tail), d.number(_LOG10_E), arith.mulf(n, d.number(_LOG10_2_LOW)))
    return d.logarithm(x, math.fma(n, d.number(_LOG10_2_HIGH), low))


def log1p(x: ir.Value) -> ir.Value:
    """Computes log(1 + x) with an error of at most 1.6 ULP.

    The rounding error of 1 + x is added to the logarithm as a first-order term.
    """
    d = DoubleArithmetic(x.type)
    u = arith.addf(x, d.number(1.0))
    rounding_error = arith.subf(x, arith.subf(u, d.number(1.0)))
    result = arith.addf(_log_of_positive(d, u), arith.divf(rounding_error, u))
    result = d.where("oeq", x, 0.0, x, d.where("oeq", x, _INFINITY, x, result))
    result = d.where("oeq", x, -1.0, d.number(-_INFINITY), result)
    return d.where("ult", x, -1.0, d.number(_NAN), result)


def _rounded_integer(d: DoubleArithmetic, rounded: ir.Value) -> ir.Value:
    """Returns n as an integer, for `rounded`, the sum of `ROUND` and n."""
    return arith.subi(d.bits(rounded), d.integer(_ROUND_BITS))


def _exp_parts(d: DoubleArithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns `(t, n)` with exp(x) = (1 + t) * 2**n, t between -0.3 and 0.42."""
    rounded = math.fma(x, d.number(_LOG2_E), d.number(ROUND))
    n = arith.subf(rounded, d.number(ROUND))
    r = math.fma(n, d.number(-_LN2_HIGH), x)
    r = math.fma(n, d.number(-_LN2_LOW), r)
    return math.fma(arith.mulf(r, r), d.horner(r, _EXP), r), _rounded_integer(d, rounded)


def _log_parts(d: DoubleArithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Returns `(n, f, t)` with log(x) = n * ln(2) + f - t for finite x above zero; t is small compared with f."""
    normal = d.where("olt", x, _SMALLEST_NORMAL, arith.mulf(x, d.number(2.0**_MANTISSA_BITS)), x)
    shift = d.where("olt", x, _SMALLEST_NORMAL, d.number(-float(_MANTISSA_BITS)), d.number(0.0))
    bits = d.bits(normal)
    exponent = arith.shrsi(arith.subi(bits, d.integer(_SQRT_HALF_BITS)), d.integer(_MANTISSA_BITS))
    m = d.from_bits(arith.subi(bits, arith.shli(exponent, d.integer(_MANTISSA_BITS))))
    n = arith.subf(d.from_bits(arith.addi(exponent, d.integer(_ROUND_BITS))), d.number(ROUND))
    f = arith.subf(m, d.number(1.0))
    s = arith.divf(f, arith.addf(f, d.number(2.0)))
    square = arith.mulf(s, s)
    half = arith.mulf(arith.mulf(f, f), d.number(0.5))
    correction = arith.mulf(s, math.fma(square, d.horner(square, _LOG), half))
    return arith.addf(n, shift), f, arith.subf(half, correction)


def _log_of_positive(d: DoubleArithmetic, x: ir.Value) -> ir.Value:
    """Returns the natural logarithm of finite x above zero."""
    n, f, tail = _log_parts(d, x)
    tail = math.fma(n, d.number(-_LN2_LOW), tail)
    return math.fma(n, d.number(_LN2_HIGH), arith.subf(f, tail))
