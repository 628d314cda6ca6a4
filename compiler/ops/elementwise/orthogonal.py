"""Orthogonal polynomials of a degree that is a tensor's element too: by recurrence, as eager has them.

Chebyshev's of a high degree are trigonometric functions between -1 and 1, where the recurrence loses digits.
"""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import elementwise
from buddy.compiler.ops.scalar import Operand, Scalar

# The next polynomial from the one before the last, the last, the argument and the last one's degree.
Step = Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]


def _polynomial(x: Scalar, degree: Scalar, first: Scalar, step: Step) -> Scalar:
    """1, `first`, and from there on by `step`; 0 for a negative degree. Ends when it has become NaN."""
    one = x.like(1)
    _, found, _, _, _ = s.repeat(
        (one, first, x, one, degree),
        lambda _p, q, _x, k, n: (k < n) & q.compare("eq", q),
        lambda p, q, x, k, n: (q, step(p, q, x, k), x, k + 1, n),
    )
    return s.select(degree < 0, 0, s.select(degree.compare("eq", 0), 1, found))


def _plain(name: str, first: Callable[[Scalar], Scalar], step: Step, hermite: bool = False) -> None:
    @elementwise(name)
    def polynomial(x: Scalar, degree: Operand) -> Scalar:
        n = s.trunc(x.like(degree))
        found = _polynomial(x, n, first(x), step)
        # Eager's bound on the degree, beyond which nearly all values are infinite.
        limit = 512 if x.dtype is TensorDType.Float64 else 128
        return s.select(n > limit, float("nan"), found) if hermite else found


_plain("HermiteHOp", lambda x: x + x, lambda p, q, x, k: (x + x) * q - (k + k) * p, hermite=True)
_plain("HermiteHeOp", lambda x: x, lambda p, q, x, k: x * q - k * p, hermite=True)
_plain("LaguerreLOp", lambda x: 1 - x, lambda p, q, x, k: ((k + k + (1 - x)) * q - k * p) / (k + 1))
_plain("LegendrePOp", lambda x: x, lambda p, q, x, k: ((k + k + 1) * x * q - k * p) / (k + 1))


def _chebyshev(
    kind: str, first: Callable[[Scalar], Scalar], at_one: tuple[str, str], closed: Callable[[Scalar, Scalar], Scalar],
    degree_of_closed: int,
) -> None:  # fmt: skip
    """A kind of Chebyshev's polynomials, and the same shifted to [0, 1].

    `at_one` says what magnitudes the values at 1 and -1 have: "1", "n + 1" or "2 n + 1"; the sign at -1 alternates.
    """

    def value(x: Scalar, degree: Operand) -> Scalar:
        n = s.trunc(x.like(degree))
        magnitudes = {"1": n.like(1), "n + 1": n + 1, "2 n + 1": n + n + 1}
        right, left = (magnitudes[name] for name in at_one)
        odd = s.fmod(n, 2).compare("ne", 0)
        end = s.select(x > 0, right, s.select(odd, -left, left))
        found = _polynomial(x, n, first(x), lambda p, q, x, _k: (x + x) * q - p)
        inside = (n > degree_of_closed) & (s.absolute(x) < 1)
        found = s.select(inside, closed(n, s.acos(s.minimum(s.maximum(x, -1), 1))), found)
        found = s.select(s.absolute(x).compare("eq", 1), end, found)
        return s.select(n < 0, 0, found)

    elementwise(f"Chebyshev{kind}Op")(lambda x, degree: value(x, degree))
    elementwise(f"ShiftedChebyshev{kind}Op")(lambda x, degree: value(x + x - 1, degree))


_chebyshev("T", lambda x: x, ("1", "1"), lambda n, angle: s.cos(n * angle), 6)
_chebyshev("U", lambda x: x + x, ("n + 1", "n + 1"), lambda n, angle: s.sin((n + 1) * angle) / s.sin(angle), 8)
_chebyshev("V", lambda x: x + x - 1, ("1", "2 n + 1"), lambda n, angle: s.cos((n + 0.5) * angle) / s.cos(angle / 2), 8)
_chebyshev("W", lambda x: x + x + 1, ("2 n + 1", "1"), lambda n, angle: s.sin((n + 0.5) * angle) / s.sin(angle / 2), 8)
