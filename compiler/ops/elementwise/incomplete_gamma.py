"""The regularised incomplete gamma functions, computed in double precision and rounded once."""

from __future__ import annotations

import math

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import elementwise
from buddy.compiler.ops.elementwise.special import lgamma
from buddy.compiler.ops.scalar import Operand, Scalar

_EPSILON, _TINY = 2.0**-53, 1e-300
# The maximum number of terms; the algorithms need about six times the square root of the first argument.
_TERMS = 1e5


def _series(a: Scalar, x: Scalar) -> Scalar:
    """Returns Γ(a + 1) x^-a exp(x) P(a, x), as the sum of x^k / (a + 1)…(a + k) (DLMF 8.7.1)."""
    start = (a.like(1), a.like(1), a, x)
    return s.repeat(
        start,
        lambda total, term, r, x: (term > total * _EPSILON) & (term < math.inf),
        lambda total, term, r, x: (total + term * (x / (r + 1.0)), term * (x / (r + 1.0)), r + 1.0, x),
    )[0]


def _fraction(a: Scalar, x: Scalar) -> Scalar:
    """Returns Γ(a) x^-a exp(x) Q(a, x), as a continued fraction (DLMF 8.9.2), by Lentz's method in Thompson's form."""
    b = x + 1.0 - a
    d = 1.0 / b
    start = (d, b, b.like(1 / _TINY), d, a.like(1), a, a.like(2))

    def not_converged(_h: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, i: Scalar, _a: Scalar, change: Scalar) -> Scalar:
        return (s.absolute(change - 1.0) > _EPSILON * 2) & (i < _TERMS)

    def step(h: Scalar, b: Scalar, c: Scalar, d: Scalar, i: Scalar, a: Scalar, _change: Scalar) -> list[Scalar]:
        factor, b = -i * (i - a), b + 2.0
        d, c = _not_zero(factor * d + b), _not_zero(b + factor / c)
        d = 1.0 / d
        return [h * (d * c), b, c, d, i + 1.0, a, d * c]

    return s.repeat(start, not_converged, step)[0]


def _not_zero(x: Scalar) -> Scalar:
    return s.select(s.absolute(x) < _TINY, _TINY, x)


def _regularised(a: Scalar, x: Scalar) -> tuple[Scalar, Scalar]:
    """Returns P(a, x) and Q(a, x), which sum to 1; NaN if an argument is negative or the limit does not exist."""
    near = (x <= 1.0) | (x <= a)
    ordinary = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    # An expansion whose result is not used gets arguments for which it ends immediately.
    scale = s.exp(a * s.log(x) - x - lgamma(a + 1.0))
    lower = scale * _series(s.select(ordinary & near, a, 1.0), s.select(ordinary & near, x, 0.0))
    far = ordinary & (near ^ True)
    upper = scale * a * _fraction(s.select(far, a, 1.0), s.select(far, x, 2.0))
    lower, upper = s.select(near, lower, 1.0 - upper), s.select(near, 1.0 - lower, upper)
    # Limits at 0 and infinity: P is 0 or 1; other combinations are NaN.
    valid = ((a < 0) | (x < 0)) ^ True
    zero, infinite = (tuple(v.compare("eq", end) for v in (a, x)) for end in (0, math.inf))
    below = valid & (((zero[0] ^ True) & zero[1]) | (infinite[0] & (infinite[1] ^ True)))
    above = valid & ((zero[0] & (x > 0)) | (infinite[1] & (infinite[0] ^ True)))
    known = ordinary | below | above
    lower = s.select(known, s.select(below, 0.0, s.select(above, 1.0, lower)), math.nan)
    return lower, s.select(known, s.select(below, 1.0, s.select(above, 0.0, upper)), math.nan)


@elementwise("IgammaOp", within=TensorDType.Float64)
def igamma(a: Scalar, x: Operand) -> Scalar:
    return _regularised(a, a.like(x))[0]


@elementwise("IgammacOp", within=TensorDType.Float64)
def igammac(a: Scalar, x: Operand) -> Scalar:
    return _regularised(a, a.like(x))[1]
