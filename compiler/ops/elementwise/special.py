"""Lowers special functions: computes them in double precision, except `_trigamma`, for every element type.

Stated errors are relative, exclude the neighbourhood of the function's zeros, and were measured against 40-digit
references.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from fractions import Fraction

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise import series
from buddy.compiler.ops.elementwise.builder import elementwise
from buddy.compiler.ops.scalar import Operand, Scalar, cast

_INFINITY, _NAN = pymath.inf, pymath.nan
_2_PI = 2 / pymath.pi
# ζ(x) = ⅔ x^(3/2) at x = 2 and x = 4, where the expression of the Airy function changes.
_ZETA_2, _ZETA_4 = 4 / 3 * pymath.sqrt(2), 16 / 3
# For larger x, Cephes returns 0 for the Airy function.
_AIRY_MAX_X = 103.892
# Lanczos coefficients for g = 7 by Godfrey: Γ(x + 1) to 15 digits.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
# The Bernoulli numbers B2, B4, … B20.
_BERNOULLI = [Fraction(n, d) for n, d in (
    (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798), (-174611, 330),
)]  # fmt: skip


def chebyshev(t: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Evaluates a Chebyshev series by Clenshaw's recurrence."""
    # b[k] = c[k] + 2 t b[k+1] - b[k+2], from the last coefficient down.
    twice_t, b, b_after = t + t, t.like(coefficients[-1]), t.like(0)
    for coefficient in reversed(coefficients[1:-1]):
        b, b_after = s.fma(twice_t, b, coefficient - b_after), b
    return s.fma(t, b, coefficients[0] - b_after)


def _special(name: str) -> Callable[[Callable[..., Scalar]], Callable[..., Scalar]]:
    """Registers the decorated expression as the lowering of op class `name`, with operands converted to f64."""
    return elementwise(name, compute_type=TensorDType.Float64)


# ---- error functions -------------------------------------------------------------------------------------------------


def _scaled_erfc(x: Scalar) -> Scalar:
    """Returns exp(x²) erfc(x) for x >= 0; error 2e-15."""
    t = s.select(x.compare("eq", _INFINITY), 1.0, (x - 3.0) / (x + 3.0))
    return chebyshev(t, series.ERFCX) / (x + 3.0)


def _exp_of_square(x: Scalar, sign: int) -> Scalar:
    """Returns exp(sign x²), corrected by the rounding error of the square."""
    square = x * x
    error = s.fma(x, x, -square)
    return s.exp(square * sign) * (1.0 + s.select(s.absolute(x) < 30.0, error * sign, 0.0))


@_special("ErfcOp")
def erfc(x: Scalar) -> Scalar:
    """Returns 1 - erf(x); error at most 5e-15."""
    magnitude = s.absolute(x)
    tail = _exp_of_square(magnitude, -1) * _scaled_erfc(magnitude)
    return s.select(x < 0, 2.0 - tail, tail)


@_special("ErfcxOp")
def erfcx(x: Scalar) -> Scalar:
    """Returns exp(x²) erfc(x); error at most 5e-15."""
    magnitude = s.absolute(x)
    scaled = _scaled_erfc(magnitude)
    return s.select(x < 0, 2.0 * _exp_of_square(magnitude, 1) - scaled, scaled)


def _inverse_erf(w: Scalar) -> Scalar:
    """Returns erfinv(y) / y for w = -log(1 - y²) < 6.25, else |erfinv(y)|."""
    root = s.sqrt(w)
    near = chebyshev(s.minimum(w, 6.25) / 3.125 - 1.0, series.ERFINV_NEAR)
    far = root * chebyshev((1.0 / s.maximum(root, 2.5) - 0.218) / 0.182, series.ERFINV_FAR)
    return s.select(w < 6.25, near, far)


@_special("ErfinvOp")
def erfinv(x: Scalar) -> Scalar:
    """Returns the inverse of erf: infinite at 1 and -1, NaN outside; error at most 5e-15."""
    w = -s.log((1.0 - x) * (1.0 + x))
    inverse = _inverse_erf(w)
    result = s.select(w < 6.25, inverse * x, s.copysign(inverse, x))
    return s.select(w.compare("eq", _INFINITY), s.copysign(x.like(_INFINITY), x), result)


@_special("NdtriOp")
def ndtri(p: Scalar) -> Scalar:
    """Returns the quantile function of the normal distribution; infinite at 0 and 1, NaN outside."""
    w = -s.log(4.0 * p * (1.0 - p))
    inverse, x = _inverse_erf(w), 2.0 * p - 1.0
    result = pymath.sqrt(2) * s.select(w < 6.25, inverse * x, s.copysign(inverse, x))
    return s.select(w.compare("eq", _INFINITY), s.copysign(p.like(_INFINITY), x), result)


# ---- gamma and zeta --------------------------------------------------------------------------------------------------


def _log_gamma_from_half(x: Scalar) -> Scalar:
    """Returns log(Γ(x)) for x >= 1/2, by Lanczos' approximation."""
    total = x.like(_LANCZOS[0])
    for k, coefficient in enumerate(_LANCZOS[1:]):
        total = total + coefficient / (x + float(k))
    t = x + 6.5
    return 0.5 * pymath.log(2 * pymath.pi) + (s.log(t) * (x - 0.5) - t) + s.log(total)


@_special("LgammaOp")
def lgamma(x: Scalar) -> Scalar:
    """Returns log(|Γ(x)|), by reflection below 1/2; error 1e-14, which is the absolute error near the zeros."""
    is_reflected = x < 0.5
    result = _log_gamma_from_half(s.select(is_reflected, 1.0 - x, x))
    sine = s.absolute(s.sin((x - s.trunc(x)) * pymath.pi))
    result = s.select(is_reflected, pymath.log(pymath.pi) - s.log(sine) - result, result)
    pole = (x <= 0) & s.floor(x).compare("eq", x)
    return s.select(pole | x.compare("eq", _INFINITY), _INFINITY, result)


@_special("DigammaOp")
def digamma(x: Scalar) -> Scalar:
    """Returns Γ'/Γ; NaN at negative integers; error 1e-14.

    Uses reflection for negative x, the recurrence up to x = 10, and the asymptotic series.
    """
    is_reflected = x < 0
    y, total = s.select(is_reflected, 1.0 - x, x), x.like(0)
    for _ in range(10):
        is_small = y < 10.0
        total = s.select(is_small, total - 1.0 / y, total)
        y = s.select(is_small, y + 1.0, y)
    square = 1.0 / (y * y)
    tail = square * s.horner(square, [float(b / (2 * k)) for k, b in enumerate(_BERNOULLI[:8], 1)])
    result = total + s.log(y) - 0.5 / y - tail
    fraction = x - s.trunc(x)
    reflection = pymath.pi / s.tan(fraction * pymath.pi)
    result = s.select(is_reflected, result - s.select(fraction.compare("eq", 0), _NAN, reflection), result)
    return s.select(x.compare("eq", 0), s.copysign(x.like(_INFINITY), -x), result)


def _zeta(x: Scalar, q: Scalar) -> Scalar:
    """Returns the Hurwitz zeta function: at least ten terms of the sum of (q + k)^-x, then the Euler-Maclaurin formula.

    The algorithm, and the values where the function is undefined, are those of Cephes (Moshier), which eager uses.
    """
    start = (s.powf(q, -x), q, x, q.like(0))
    # `a` is q + k. If it is a negative integer, a + 1 may equal a: the loop then ends early, and its sum is not used.
    total, a, _, _ = s.while_loop(
        start,
        lambda _sum, a, _x, count: (count < 9.0) | ((a <= 9.0) & (s.floor(a).compare("eq", a) ^ True)),
        lambda sum_, a, x, count: (sum_ + s.powf(a + 1.0, -x), a + 1.0, x, count + 1.0),
    )
    last = s.powf(a, -x)
    total = total + last * a / (x - 1.0) - 0.5 * last
    factor, term = x, last / a
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        total = total + factor * term * float(bernoulli / pymath.factorial(2 * k))
        factor = factor * (x + float(2 * k - 1)) * (x + float(2 * k))
        term = term / (a * a)
    pole = s.select(s.floor(q).compare("eq", q), q.like(_INFINITY), _NAN)
    is_integer = s.floor(x).compare("eq", x)
    total = s.select(q > 0, total, s.select(s.floor(q).compare("eq", q) | (is_integer ^ True), pole, total))
    total = s.select(x < 1.0, _NAN, total)
    return s.select(x.compare("eq", 1.0), _INFINITY, total)


@_special("ZetaOp")
def zeta(x: Scalar, q: Operand) -> Scalar:
    """Returns the Hurwitz zeta function: the sum of (q + k)^-x over k >= 0."""
    return _zeta(x, x.like(q))


def _trigamma(x: Scalar) -> Scalar:
    """Returns the derivative of digamma, by eager's expression in the element type.

    Near the poles, eager's f32 result is inaccurate; a more accurate one would differ from it.
    """
    is_reflected = x < 0.5
    sine = s.sin(x * pymath.pi)
    y, total = s.select(is_reflected, 1.0 - x, x), x.like(0)
    for _ in range(6):
        total = total + 1.0 / (y * y)
        y = y + 1.0
    square = 1.0 / (y * y)
    total = total + (1.0 + 0.5 / y + square * s.horner(square, (1 / 6, -1 / 30, 1 / 42))) / y
    return s.select(is_reflected, pymath.pi**2 / (sine * sine) - total, total)


@elementwise("PolygammaOp", uncast=(0,))
def polygamma(order: int, x: Scalar) -> Scalar:
    """Returns the derivative of digamma of order n: (-1)^(n + 1) n! ζ(n + 1, x)."""
    if order == 1:
        return _trigamma(x)
    x = cast(x, TensorDType.Float64)
    sign = 1.0 if order % 2 else -1.0
    return sign * float(pymath.factorial(order)) * _zeta(x.like(order + 1), x) if order else digamma(x)


# ---- Bessel functions ------------------------------------------------------------------------------------------------


def _scaled_i(x: Scalar, near: Sequence[float], far: Sequence[float], odd: bool) -> Scalar:
    """Returns exp(-|x|) times a modified Bessel function of the first kind: I1(x) if `odd`, else I0(x); error 1e-15.

    `near` and `far` are the series for |x| up to 8 and beyond.
    """
    magnitude = s.absolute(x)
    small = s.minimum(magnitude, 8.0)
    near_value = chebyshev(small / 4.0 - 1.0, near) * (x if odd else 1.0)
    large = s.maximum(magnitude, 8.0)
    far_value = chebyshev(16.0 / large - 1.0, far) / s.sqrt(large)
    return s.select(magnitude > 8.0, s.copysign(far_value, x) if odd else far_value, near_value)


@_special("BesselI0eOp")
def i0e(x: Scalar) -> Scalar:
    return _scaled_i(x, series.I0_NEAR, series.I0_FAR, odd=False)


@_special("BesselI1eOp")
def i1e(x: Scalar) -> Scalar:
    return _scaled_i(x, series.I1_NEAR, series.I1_FAR, odd=True)


# Because of f64, the f32 results of `i0` and `i1` are finite up to x = 91; eager's exponential overflows above 88.73.
@_special("BesselI0Op")
def i0(x: Scalar) -> Scalar:
    return s.exp(s.absolute(x)) * i0e(x)


@_special("BesselI1Op")
def i1(x: Scalar) -> Scalar:
    return s.exp(s.absolute(x)) * i1e(x)


def _series_near(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Evaluates a series in x² for 0 <= x <= 8."""
    small = s.minimum(x, 8.0)
    return chebyshev(small * small / 32.0 - 1.0, coefficients)


def _asymptotic(x: Scalar, order: int, second_kind: bool) -> Scalar:
    """Returns the Bessel function Y of `order` if `second_kind`, else J, for x >= 8; NaN at infinity.

    Computes it from an amplitude and a phase.
    """
    large = s.maximum(x, 8.0)
    t = 128.0 / (large * large) - 1.0
    # P and Q as in the comments of these series.
    p = chebyshev(t, (series.P0_FAR, series.P1_FAR)[order])
    q = chebyshev(t, (series.Q0_FAR, series.Q1_FAR)[order]) / large
    phase = large - (2 * order + 1) * pymath.pi / 4
    sine, cosine = s.sin(phase), s.cos(phase)
    wave = p * sine + q * cosine if second_kind else p * cosine - q * sine
    return s.sqrt(_2_PI / large) * wave


def _j(x: Scalar, order: int) -> Scalar:
    """Returns the Bessel function of the first kind, for x >= 0."""
    near = _series_near(x, (series.J0_NEAR, series.J1_NEAR)[order]) * (x if order else 1.0)
    return s.select(x > 8.0, _asymptotic(x, order, second_kind=False), near)


def _y(x: Scalar, order: int) -> Scalar:
    """Returns the Bessel function of the second kind; -inf at 0, NaN for negative x."""
    near = _series_near(x, (series.Y0_NEAR, series.Y1_NEAR)[order]) * (x if order else 1.0)
    near = near + _2_PI * (s.log(x) * _j(x, order) - (1.0 / x if order else 0.0))
    result = s.select(x > 8.0, _asymptotic(x, order, second_kind=True), near)
    return s.select(x < 0, _NAN, s.select(x.compare("eq", 0), -_INFINITY, result))


@_special("BesselJ0Op")
def j0(x: Scalar) -> Scalar:
    """Returns J0(x); the error of J0, J1, Y0 and Y1 is at most 1e-15 of the amplitude."""
    return _j(s.absolute(x), 0)


@_special("BesselJ1Op")
def j1(x: Scalar) -> Scalar:
    result = _j(s.absolute(x), 1)
    return s.select(x < 0, -result, result)


@_special("BesselY0Op")
def y0(x: Scalar) -> Scalar:
    return _y(x, 0)


@_special("BesselY1Op")
def y1(x: Scalar) -> Scalar:
    return _y(x, 1)


def _k(x: Scalar, order: int, scaled: bool) -> Scalar:
    """Returns the modified Bessel function of the second kind, times exp(x) if `scaled`; inf at 0, NaN for x < 0."""
    small, large = s.minimum(x, 2.0), s.maximum(x, 2.0)
    near = chebyshev(small * small / 2.0 - 1.0, (series.K0_NEAR, series.K1_NEAR)[order])
    logarithm = s.log(small / 2.0)
    near = near / small + logarithm * i1(small) if order else near - logarithm * i0(small)
    far = chebyshev(4.0 / large - 1.0, (series.K0_FAR, series.K1_FAR)[order]) / s.sqrt(large)
    result = s.select(x > 2.0, far if scaled else far * s.exp(-large), near * s.exp(small) if scaled else near)
    return s.select(x < 0, _NAN, s.select(x.compare("eq", 0), _INFINITY, result))


def _register_k(name: str, order: int, scaled: bool) -> None:
    _special(name)(lambda x: _k(x, order, scaled))


_register_k("BesselK0Op", 0, scaled=False)
_register_k("BesselK1Op", 1, scaled=False)
_register_k("ScaledBesselK0Op", 0, scaled=True)
_register_k("ScaledBesselK1Op", 1, scaled=True)


@_special("SphericalBesselJ0Op")
def spherical_j0(x: Scalar) -> Scalar:
    """Returns sin(x) / x."""
    square = x * x
    near = s.horner(square, [(-1) ** k / pymath.factorial(2 * k + 1) for k in range(8)])
    result = s.select(s.absolute(x) < 0.5, near, s.sin(x) / x)
    return s.select(s.absolute(x).compare("eq", _INFINITY), 0.0, result)


# ---- Airy function ---------------------------------------------------------------------------------------------------


def _airy_waves(zeta: Scalar) -> Scalar:
    """Returns Ai(-x) times the fourth root of x, for x >= 4, from an amplitude and a phase (DLMF 9.7.9)."""
    inverse = 1.0 / s.maximum(zeta, _ZETA_4)
    t = 2.0 * _ZETA_4**2 * inverse * inverse - 1.0
    phase = zeta + pymath.pi / 4
    return chebyshev(t, series.AIRY_P) * s.sin(phase) - chebyshev(t, series.AIRY_Q) * inverse * s.cos(phase)


@_special("AiryAiOp")
def airy_ai(x: Scalar) -> Scalar:
    """Returns Ai(x).

    The error is at most 1e-15 from -4 to 2, and outside at most 3e-16 ζ of the amplitude, which is the rounding error
    of ζ = ⅔ |x|^(3/2). As in eager and in Cephes (Moshier), the result is 0 where it would be subnormal, and NaN at
    infinity.
    """
    near = chebyshev((s.minimum(s.maximum(x, -4.0), 2.0) + 1.0) / 3.0, series.AIRY_NEAR)
    large = s.maximum(s.absolute(x), 2.0)
    zeta, root = 2.0 * large * s.sqrt(large) / 3.0, s.sqrt(s.sqrt(large))
    decaying = chebyshev(2.0 * _ZETA_2 / zeta - 1.0, series.AIRY_FAR) * s.exp(-zeta) / root
    decaying = s.select(x > _AIRY_MAX_X, s.select(x.compare("eq", _INFINITY), x.like(_NAN), 0.0), decaying)
    return s.select(x > 2.0, decaying, s.select(x < -4.0, _airy_waves(zeta) / root, near))


# ---- incomplete gamma functions --------------------------------------------------------------------------------------

# The relative size at which a series ends, and the smallest denominator of a continued fraction.
_EPSILON, _TINY = 2.0**-53, 1e-300
# The algorithms need about 6 sqrt(a) terms.
_MAX_TERMS = 1e5


def _lower_series(a: Scalar, x: Scalar) -> Scalar:
    """Returns Γ(a + 1) x^-a exp(x) P(a, x), as the sum of x^k / (a + 1)…(a + k) (DLMF 8.7.1)."""
    start = (a.like(1), a.like(1), a, x)
    return s.while_loop(
        start,
        lambda total, term, r, x: (term > total * _EPSILON) & (term < pymath.inf),
        lambda total, term, r, x: (total + term * (x / (r + 1.0)), term * (x / (r + 1.0)), r + 1.0, x),
    )[0]


def _upper_fraction(a: Scalar, x: Scalar) -> Scalar:
    """Returns Γ(a) x^-a exp(x) Q(a, x), as a continued fraction (DLMF 8.9.2), by Lentz's method in Thompson's form."""
    b = x + 1.0 - a
    d = 1.0 / b
    start = (d, b, b.like(1 / _TINY), d, a.like(1), a, a.like(2))

    def not_converged(_h: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, i: Scalar, _a: Scalar, change: Scalar) -> Scalar:
        return (s.absolute(change - 1.0) > _EPSILON * 2) & (i < _MAX_TERMS)

    def step(h: Scalar, b: Scalar, c: Scalar, d: Scalar, i: Scalar, a: Scalar, _change: Scalar) -> list[Scalar]:
        factor, b = -i * (i - a), b + 2.0
        d, c = _not_zero(factor * d + b), _not_zero(b + factor / c)
        d = 1.0 / d
        return [h * (d * c), b, c, d, i + 1.0, a, d * c]

    return s.while_loop(start, not_converged, step)[0]


def _not_zero(x: Scalar) -> Scalar:
    """Returns `x`, or `_TINY` if `x` is about 0."""
    return s.select(s.absolute(x) < _TINY, _TINY, x)


def _incomplete_gammas(a: Scalar, x: Scalar) -> tuple[Scalar, Scalar]:
    """Returns the regularised functions P(a, x) and Q(a, x) = 1 - P(a, x).

    Both are NaN if an argument is negative, or if the limit at 0 or infinity does not exist.
    """
    uses_series = (x <= 1.0) | (x <= a)
    is_regular = (a > 0) & (x > 0) & (a < pymath.inf) & (x < pymath.inf)
    # The expansion whose result is not used gets arguments for which it ends immediately.
    scale = s.exp(a * s.log(x) - x - lgamma(a + 1.0))
    lower = scale * _lower_series(
        s.select(is_regular & uses_series, a, 1.0), s.select(is_regular & uses_series, x, 0.0)
    )
    uses_fraction = is_regular & (uses_series ^ True)
    upper = scale * a * _upper_fraction(s.select(uses_fraction, a, 1.0), s.select(uses_fraction, x, 2.0))
    lower, upper = s.select(uses_series, lower, 1.0 - upper), s.select(uses_series, 1.0 - lower, upper)
    # Limits at 0 and infinity: P is 0 or 1; other combinations are NaN.
    is_valid = ((a < 0) | (x < 0)) ^ True
    a_is_zero, x_is_zero = a.compare("eq", 0), x.compare("eq", 0)
    a_is_infinite, x_is_infinite = a.compare("eq", pymath.inf), x.compare("eq", pymath.inf)
    p_is_zero = is_valid & (((a_is_zero ^ True) & x_is_zero) | (a_is_infinite & (x_is_infinite ^ True)))
    p_is_one = is_valid & ((a_is_zero & (x > 0)) | (x_is_infinite & (a_is_infinite ^ True)))
    is_defined = is_regular | p_is_zero | p_is_one
    lower = s.select(is_defined, s.select(p_is_zero, 0.0, s.select(p_is_one, 1.0, lower)), pymath.nan)
    return lower, s.select(is_defined, s.select(p_is_zero, 1.0, s.select(p_is_one, 0.0, upper)), pymath.nan)


@_special("IgammaOp")
def igamma(a: Scalar, x: Operand) -> Scalar:
    return _incomplete_gammas(a, a.like(x))[0]


@_special("IgammacOp")
def igammac(a: Scalar, x: Operand) -> Scalar:
    return _incomplete_gammas(a, a.like(x))[1]
