"""Elementary functions of complex numbers, on their two parts.

Branch cuts, the signs of zeros there, and the results for infinities and NaN are those of ISO C99, annex G, which eager
follows too. Formulas other than the definition are from W. Kahan, "Branch cuts for complex elementary functions", 1987.
To add 1 leaves the imaginary part unchanged: if this part is 0, its sign selects the side of a cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from buddy.compiler.frontend.complex_numbers.pair import ComplexPair, rule

aten = torch.ops.aten

Function = Callable[[ComplexPair], ComplexPair]


def _register(op: Callable[..., object], function: Function) -> None:
    """Registers a function of one complex number as the rule of `op`."""
    rule(op)(lambda out, x: function(x))


def modulus(x: ComplexPair) -> torch.Tensor:
    """Returns |x|, without overflow of the squares."""
    return torch.hypot(x.re, x.im)


def argument(x: ComplexPair) -> torch.Tensor:
    """Returns the angle of x, from -pi to pi."""
    return torch.atan2(x.im, x.re)


def _is_infinite(x: ComplexPair) -> torch.Tensor:
    """True where a part is infinite, even if the other one is NaN, as in C99."""
    return x.re.isinf() | x.im.isinf()


def _infinite_like(part: torch.Tensor) -> torch.Tensor:
    """Returns infinity with the sign of `part`."""
    return torch.copysign(torch.full_like(part, math.inf), part)


def _split_exponent(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns two tensors whose sum is |x|; `exp` of the first one does not overflow.

    Callers multiply by the exponential of the first, then by a sine or cosine, then by the exponential of the second:
    a small sine may keep the product finite although exp(|x|) would overflow.
    """
    # `exp` overflows above 709.7 in float64, and above 88.7 in float32.
    limit = 700.0 if x.dtype == torch.float64 else 80.0
    return x.abs().clamp_max(limit), (x.abs() - limit).clamp_min(0.0)


def exp(x: ComplexPair) -> ComplexPair:
    bounded, excess = _split_exponent(x.re)
    scale, rest_scale = torch.where(x.re < 0, x.re, bounded).exp(), torch.where(x.re < 0, 0.0, excess).exp()
    is_re_infinite, is_im_nonfinite = x.re.isinf(), ~x.im.isfinite()
    re = torch.where(is_re_infinite & is_im_nonfinite, x.re.exp(), scale * x.im.cos() * rest_scale)
    im = torch.where(
        is_im_nonfinite & (x.re == -math.inf), torch.copysign(x.re.exp(), x.im), scale * x.im.sin() * rest_scale
    )
    return ComplexPair(re, torch.where(x.im == 0, x.im, im))


def expm1(x: ComplexPair) -> ComplexPair:
    """Computes exp(a) cos(b) - 1 as expm1(a) cos(b) - 2 sin(b/2)^2, which is accurate for small numbers."""
    half = (x.im * 0.5).sin()
    return ComplexPair(x.re.expm1() * x.im.cos() - 2.0 * half * half, x.re.exp() * x.im.sin())


def log(x: ComplexPair) -> ComplexPair:
    return ComplexPair(_log_modulus(x), argument(x))


def _log_modulus(x: ComplexPair) -> torch.Tensor:
    """Returns log|x|, near the unit circle by |x|^2 - 1 = (|a| - 1)(|a| + 1) + b^2, where a is the larger part."""
    a, b = torch.maximum(x.re.abs(), x.im.abs()), torch.minimum(x.re.abs(), x.im.abs())
    near = ((a - 1.0) * (a + 1.0) + b * b).log1p() * 0.5
    length = modulus(x)
    return torch.where((length > 0.5) & (length < 2.0), near, length.log())


def log1p(x: ComplexPair) -> ComplexPair:
    """Returns log(1 + x), for a small x = a + ib by |1 + x|^2 - 1 = a (2 + a) + b^2.

    Eager multiplies log(1 + x) by x / ((1 + x) - 1) unless (1 + x) - 1 equals x, so that the result is NaN for some
    numbers with an infinite part.
    """
    small = (x.re * (x.re + 2.0) + x.im * x.im).log1p() * 0.5
    shifted = x.shifted(1.0)
    is_small = (x.re.abs() < 0.5) & (x.im.abs() < 0.5)
    re = torch.where(is_small, small, _log_modulus(shifted))
    re = torch.where((shifted.re == 1) & (x.im == 0), x.re, re)
    is_nan_in_eager = _is_infinite(x) & ((shifted.re - 1.0 != x.re) | x.im.isnan())
    return ComplexPair(re, argument(shifted)).map(lambda part: torch.where(is_nan_in_eager, math.nan, part))


def square_root(x: ComplexPair) -> ComplexPair:
    """Computes the principal square root of x = a + ib.

    The larger part is sqrt((|x| + |a|) / 2), the smaller part is b / 2 divided by the larger. The root of 0 is 0.
    """
    half = x.scaled(0.5)
    larger = (modulus(half) + half.re.abs()).sqrt()
    smaller = torch.where(larger == 0, 0.0, half.im.abs() / larger)
    is_right_half, is_im_infinite = x.re >= 0, x.im.isinf()
    re = torch.where(is_im_infinite, x.im.abs(), torch.where(is_right_half, larger, smaller))
    return ComplexPair(
        re, torch.where(is_im_infinite, x.im, torch.copysign(torch.where(is_right_half, smaller, larger), x.im))
    )


def product(x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """Returns the product like C99, annex G.

    If an operand or a partial product is infinite, the result is an infinity where both parts would be NaN.
    """
    naive = x * y
    is_lost = naive.re.isnan() & naive.im.isnan()
    is_x_infinite, is_y_infinite = _is_infinite(x), _is_infinite(y)
    overflows = (x.re * y.re).isinf() | (x.im * y.im).isinf() | (x.re * y.im).isinf() | (x.im * y.re).isinf()

    def box(z: ComplexPair, is_infinite: torch.Tensor) -> ComplexPair:
        """Maps `z` to finite numbers with the same signs, as C99 does before it multiplies by infinity.

        Of an infinite `z`, infinite parts become 1 and finite ones 0. Of other numbers, NaN becomes 0.
        """
        return z.map(
            lambda part: torch.copysign(
                torch.where(is_infinite, part.isinf() * 1.0, torch.where(part.isnan(), 0.0, part.abs())), part
            )
        )

    boxed = box(x, is_x_infinite) * box(y, is_y_infinite)
    is_lost = is_lost & (is_x_infinite | is_y_infinite | overflows)
    return ComplexPair(
        torch.where(is_lost, boxed.re * math.inf, naive.re), torch.where(is_lost, boxed.im * math.inf, naive.im)
    )


def power(x: ComplexPair, n: ComplexPair) -> ComplexPair:
    """Returns exp(n log(x)), also for 0, whose logarithm is -inf; parts may be numbers if one operand is a number."""
    dtype = next(part.dtype for part in (x.re, n.re) if isinstance(part, torch.Tensor))
    base, exponent = (
        z.map(lambda part: part if isinstance(part, torch.Tensor) else torch.full((), part, dtype=dtype))
        for z in (x, n)
    )
    return exp(product(exponent, log(base)))


def cos(x: ComplexPair) -> ComplexPair:
    return cosh(x.times_i())


def _hyperbolic(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns factors s, c and r such that sinh(x) = s r and cosh(x) = c r, where s, c and r do not overflow early."""
    bounded, excess = _split_exponent(x)
    return torch.copysign(bounded.sinh(), x), bounded.cosh(), excess.exp()


def sinh(x: ComplexPair) -> ComplexPair:
    s, c, rest_scale = _hyperbolic(x.re)
    re = torch.where(x.re.isinf() & ~x.im.isfinite(), math.inf, s * x.im.cos() * rest_scale)
    re = torch.where((x.re == 0) & ~x.im.isfinite(), x.re, re)
    return ComplexPair(re, torch.where(x.im == 0, x.im, c * x.im.sin() * rest_scale))


def cosh(x: ComplexPair) -> ComplexPair:
    s, c, rest_scale = _hyperbolic(x.re)
    re = torch.where(x.re.isinf() & ~x.im.isfinite(), math.inf, c * x.im.cos() * rest_scale)
    im = torch.where((x.re == 0) & ~x.im.isfinite(), 0.0, s * x.im.sin() * rest_scale)
    is_left_half = x.re.signbit() & ~x.re.isnan()
    return ComplexPair(re, torch.where(x.im == 0, torch.where(is_left_half, -x.im, x.im), im))


def tanh(x: ComplexPair) -> ComplexPair:
    """Returns (sinh(a) cosh(a) + i sin(b) cos(b)) / (sinh(a)^2 + cos(b)^2), or its limit for |a| > 20.

    For |a| > 20, tanh(|a|) is 1 in float64 too; the squares overflow only for much larger |a|.
    """
    a = x.re.clamp(-20.0, 20.0)
    s, c, cos_b = a.sinh(), a.cosh(), x.im.cos()
    norm = s * s + cos_b * cos_b
    is_far, is_re_infinite = x.re.abs() > 20, x.re.isinf()
    sin_cos = x.im.sin() * cos_b
    limit = 4.0 * sin_cos * (x.re.abs() * -2.0).exp()
    re = torch.where(is_far, x.re.sign() + torch.where(is_re_infinite, 0.0, sin_cos * 0.0), s * c / norm)
    im = torch.where(is_far, limit, sin_cos / norm)
    im = torch.where(is_re_infinite & ~x.im.isfinite(), torch.copysign(torch.zeros_like(x.im), x.im), im)
    return ComplexPair(torch.where(x.re == 0, x.re, re), torch.where(x.im == 0, x.im, im))


def asin(x: ComplexPair) -> ComplexPair:
    """Computes the arc sine by Kahan's CASIN, which avoids cancellation of large numbers."""
    left, right = square_root(ComplexPair(1.0 - x.re, -x.im)), square_root(x.shifted(1.0))
    re = torch.atan2(x.re, left.re * right.re - left.im * right.im)
    im = (left.re * right.im - left.im * right.re).asinh()
    is_infinite = _is_infinite(x)
    re = torch.where(is_infinite, torch.atan2(x.re, x.im.abs()), re)
    return ComplexPair(torch.where(x.re == 0, x.re, re), torch.where(is_infinite, _infinite_like(x.im), im))


def acos(x: ComplexPair) -> ComplexPair:
    left, right = square_root(ComplexPair(1.0 - x.re, -x.im)), square_root(x.shifted(1.0))
    re, im = torch.atan2(left.re, right.re) * 2.0, (right.re * left.im - right.im * left.re).asinh()
    is_infinite = _is_infinite(x)
    re = torch.where(is_infinite, math.pi / 2 - torch.atan2(x.re, x.im.abs()), re)
    return ComplexPair(torch.where(x.re == 0, math.pi / 2, re), torch.where(is_infinite, -_infinite_like(x.im), im))


def acosh(x: ComplexPair) -> ComplexPair:
    left, right = square_root(x.shifted(-1.0)), square_root(x.shifted(1.0))
    re, im = (left.re * right.re + left.im * right.im).asinh(), torch.atan2(left.im, right.re) * 2.0
    is_infinite = _is_infinite(x)
    im = torch.where((x.re == 0) & x.im.isnan(), math.pi / 2, torch.where(is_infinite, argument(x), im))
    return ComplexPair(torch.where(is_infinite, math.inf, re), im)


def atanh(x: ComplexPair) -> ComplexPair:
    """Computes the inverse hyperbolic tangent of x = a + ib.

    The real part is log(1 + q^2) / 4 for q^2 = 4 |a| / ((1 - |a|)^2 + b^2), or log(q) / 2 where q^2 would overflow. It
    is computed for |a| and gets the sign of a: for a negative a, the logarithm would have an argument close to 0. The
    logarithm of a large q is a difference, since q overflows next to the poles 1 and -1.
    """
    abs_re = x.re.abs()
    root, distance = abs_re.sqrt() * 2.0, torch.hypot(1.0 - abs_re, x.im)
    q = root / distance
    re = torch.where(q < 1e10, (q * q).log1p() * 0.25, (root.log() - distance.log()) * 0.5)
    im = torch.atan2(x.im * 2.0, (1.0 - x.re) * (1.0 + x.re) - x.im * x.im) * 0.5
    is_infinite = _is_infinite(x)
    re = torch.where(is_infinite | (x.re == 0), 0.0, re)
    im = torch.where(is_infinite, torch.copysign(torch.where(x.im.isnan(), x.im, math.pi / 2), x.im), im)
    return ComplexPair(torch.copysign(re, x.re), im)


def _swap_parts(function: Function) -> Function:
    """Turns sinh into sin, asin into asinh, and so on.

    The result is -i f(i x), which for these functions is swap(f(swap(x))).
    """
    return lambda x: function(x.swapped()).swapped()


def sigmoid(x: ComplexPair) -> ComplexPair:
    return ComplexPair(1.0, 0.0) / (exp(-x) + 1.0)


def silu(x: ComplexPair) -> ComplexPair:
    return x / (exp(-x) + 1.0)


_FUNCTIONS: dict[Callable[..., object], Function] = {
    aten.exp.default: exp,
    aten.exp2.default: lambda x: exp(x.scaled(math.log(2))),
    aten.expm1.default: expm1,
    aten.log.default: log,
    aten.log2.default: lambda x: log(x).scaled(1 / math.log(2)),
    aten.log10.default: lambda x: log(x).scaled(1 / math.log(10)),
    aten.log1p.default: log1p,
    aten.sqrt.default: square_root,
    aten.rsqrt.default: lambda x: ComplexPair(1.0, 0.0) / square_root(x),
    aten.sin.default: _swap_parts(sinh),
    aten.cos.default: cos,
    aten.tan.default: _swap_parts(tanh),
    aten.sinh.default: sinh,
    aten.cosh.default: cosh,
    aten.tanh.default: tanh,
    aten.asin.default: asin,
    aten.acos.default: acos,
    aten.atan.default: _swap_parts(atanh),
    aten.asinh.default: _swap_parts(asin),
    aten.acosh.default: acosh,
    aten.atanh.default: atanh,
    aten.sigmoid.default: sigmoid,
    aten.silu.default: silu,
}
for _op, _function in _FUNCTIONS.items():
    _register(_op, _function)
