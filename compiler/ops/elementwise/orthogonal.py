"""Orthogonal polynomials whose degree is a tensor element, by the same recurrences as in eager.

Chebyshev polynomials of high degree use trigonometric functions between -1 and 1, where the recurrence loses digits.
"""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import elementwise
from buddy.compiler.ops.scalar import Operand, Scalar, cast

# Eager uses 64-bit integers for the degree.
DEGREE = TensorDType.Int64
# (p[k-1], p[k], x, k) -> p[k+1]: one step of the recurrence.
Step = Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]


# (x, degree) -> (condition, value): closed forms that replace the recurrence where the condition holds.
Known = Callable[[Scalar, Scalar], tuple[Scalar, Scalar]]


def _whole(x: Scalar, degree: Operand) -> Scalar:
    """Returns the degree as an integer; -1 for a degree that is NaN or out of range, as in eager's casts."""
    found = x.like(degree)
    return cast(s.select(s.absolute(found) < 2.0**63, found, -1), DEGREE)


def _polynomial(x: Scalar, n: Scalar, first: Scalar, step: Step, *known: Known) -> Scalar:
    """Evaluates the recurrence `step` from 1 and `first` up to degree `n`, unless a `known` value applies.

    Returns 0 for a negative degree. Since degrees may be very large, the loop ends at NaN and is skipped for `known`
    values.
    """
    shortcuts = [values(x, n) for values in known]
    steps, one = n, x.like(1)
    for where, _ in shortcuts:
        steps = s.select(where, 0, steps)
    _, found, _, _, _ = s.repeat(
        (one, first, x, n.like(1), steps),
        lambda _p, q, _x, k, n: (k < n) & q.compare("eq", q),
        lambda p, q, x, k, n: (q, step(p, q, x, cast(k, x.dtype)), x, k + 1, n),
    )
    found = s.select(n.compare("eq", 0), 1, found)
    for where, value in shortcuts:
        found = s.select(where, value, found)
    return s.select(n < 0, 0, found)


def _is_odd(n: Scalar) -> Scalar:
    return cast(n & 1, TensorDType.Bool)


def _register(name: str, first: Callable[[Scalar], Scalar], step: Step, known: Known) -> None:
    @elementwise(name)
    def polynomial(x: Scalar, degree: Operand) -> Scalar:
        return _polynomial(x, _whole(x, degree), first(x), step, known)


def _overflow_bound(x: Scalar, n: Scalar) -> tuple[Scalar, Scalar]:
    """Returns NaN above eager's bound on the degree of Hermite polynomials, where nearly all values are infinite."""
    return n > (512 if x.dtype is TensorDType.Float64 else 128), x.like(float("nan"))


def _legendre_ends(x: Scalar, n: Scalar) -> tuple[Scalar, Scalar]:
    return s.absolute(x).compare("eq", 1), s.select(_is_odd(n), x, x.like(1))


_register("HermiteHOp", lambda x: x + x, lambda p, q, x, k: (x + x) * q - (k + k) * p, _overflow_bound)
_register("HermiteHeOp", lambda x: x, lambda p, q, x, k: x * q - k * p, _overflow_bound)
_register(
    "LaguerreLOp", lambda x: 1 - x, lambda p, q, x, k: ((k + k + (1 - x)) * q - k * p) / (k + 1),
    lambda x, _n: (x.compare("eq", 0), x.like(1)),
)  # fmt: skip
_register("LegendrePOp", lambda x: x, lambda p, q, x, k: ((k + k + 1) * x * q - k * p) / (k + 1), _legendre_ends)


def _chebyshev(
    kind: str, first: Callable[[Scalar], Scalar], at_one: tuple[str, str], closed: Callable[[Scalar, Scalar], Scalar],
    degree_of_closed: int,
) -> None:  # fmt: skip
    """Registers a kind of Chebyshev polynomials, on [-1, 1] and shifted to [0, 1].

    `at_one` gives the magnitudes of the values at 1 and -1: "1", "n + 1" or "2 n + 1"; the sign at -1 alternates.
    """

    def ends(x: Scalar, n: Scalar) -> tuple[Scalar, Scalar]:
        magnitudes = {"1": n.like(1), "n + 1": n + 1, "2 n + 1": n + n + 1}
        right, left = (cast(magnitudes[name], x.dtype) for name in at_one)
        return s.absolute(x).compare("eq", 1), s.select(x > 0, right, s.select(_is_odd(n), -left, left))

    def inside(x: Scalar, n: Scalar) -> tuple[Scalar, Scalar]:
        angle = s.acos(s.minimum(s.maximum(x, -1), 1))
        return (n > degree_of_closed) & (s.absolute(x) < 1), closed(cast(n, x.dtype), angle)

    def value(x: Scalar, degree: Operand) -> Scalar:
        return _polynomial(x, _whole(x, degree), first(x), lambda p, q, x, _k: (x + x) * q - p, inside, ends)

    elementwise(f"Chebyshev{kind}Op")(lambda x, degree: value(x, degree))
    elementwise(f"ShiftedChebyshev{kind}Op")(lambda x, degree: value(x + x - 1, degree))


_chebyshev("T", lambda x: x, ("1", "1"), lambda n, angle: s.cos(n * angle), 6)
_chebyshev("U", lambda x: x + x, ("n + 1", "n + 1"), lambda n, angle: s.sin((n + 1) * angle) / s.sin(angle), 8)
_chebyshev("V", lambda x: x + x - 1, ("1", "2 n + 1"), lambda n, angle: s.cos((n + 0.5) * angle) / s.cos(angle / 2), 8)
_chebyshev("W", lambda x: x + x + 1, ("2 n + 1", "1"), lambda n, angle: s.sin((n + 0.5) * angle) / s.sin(angle / 2), 8)
