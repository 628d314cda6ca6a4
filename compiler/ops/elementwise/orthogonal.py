"""Orthogonal polynomials of a degree that is a tensor's element too: by recurrence, as eager has them.

Chebyshev's of a high degree are trigonometric functions between -1 and 1, where the recurrence loses digits.
"""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import elementwise
from buddy.compiler.ops.scalar import Operand, Scalar, cast

# Eager counts in integers of 64 bits.
DEGREE = TensorDType.Int64
# The next polynomial from the one before the last, the last, the argument and the last one's degree.
Step = Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]


# Values that are known without the recurrence, of an argument and a degree: where, and what they are.
Known = Callable[[Scalar, Scalar], tuple[Scalar, Scalar]]


def _whole(x: Scalar, degree: Operand) -> Scalar:
    """A degree as an integer; one that is none, or too large for one, is negative, as eager's casts have it."""
    found = x.like(degree)
    return cast(s.select(s.absolute(found) < 2.0**63, found, -1), DEGREE)


def _polynomial(x: Scalar, n: Scalar, first: Scalar, step: Step, *known: Known) -> Scalar:
    """1, `first`, and from there on by `step`, unless it is `known`; 0 for a negative degree. NaN ends the recurrence.

    Steps are counted in integers, and only where they are needed: a degree may be anything.
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


def _plain(name: str, first: Callable[[Scalar], Scalar], step: Step, known: Known) -> None:
    @elementwise(name)
    def polynomial(x: Scalar, degree: Operand) -> Scalar:
        return _polynomial(x, _whole(x, degree), first(x), step, known)


def _beyond(x: Scalar, n: Scalar) -> tuple[Scalar, Scalar]:
    """NaN beyond eager's bound on the degree of Hermite's, where nearly all values are infinite."""
    return n > (512 if x.dtype is TensorDType.Float64 else 128), x.like(float("nan"))


def _legendre_ends(x: Scalar, n: Scalar) -> tuple[Scalar, Scalar]:
    return s.absolute(x).compare("eq", 1), s.select(_is_odd(n), x, x.like(1))


_plain("HermiteHOp", lambda x: x + x, lambda p, q, x, k: (x + x) * q - (k + k) * p, _beyond)
_plain("HermiteHeOp", lambda x: x, lambda p, q, x, k: x * q - k * p, _beyond)
_plain(
    "LaguerreLOp", lambda x: 1 - x, lambda p, q, x, k: ((k + k + (1 - x)) * q - k * p) / (k + 1),
    lambda x, _n: (x.compare("eq", 0), x.like(1)),
)  # fmt: skip
_plain("LegendrePOp", lambda x: x, lambda p, q, x, k: ((k + k + 1) * x * q - k * p) / (k + 1), _legendre_ends)


def _chebyshev(
    kind: str, first: Callable[[Scalar], Scalar], at_one: tuple[str, str], closed: Callable[[Scalar, Scalar], Scalar],
    degree_of_closed: int,
) -> None:  # fmt: skip
    """A kind of Chebyshev's polynomials, and the same shifted to [0, 1].

    `at_one` says what magnitudes the values at 1 and -1 have: "1", "n + 1" or "2 n + 1"; the sign at -1 alternates.
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
