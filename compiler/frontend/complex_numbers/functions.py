"""Elementary functions of complex numbers, on their two parts.

Branch cuts are those of ISO C99, annex G, which eager follows too. Where a formula is not the definition it is from
W. Kahan, "Branch cuts for complex elementary functions", 1987.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from buddy.compiler.frontend.complex_numbers.pair import Pair, rule

aten = torch.ops.aten

Function = Callable[[Pair], Pair]


def _register(op: object, function: Function) -> None:
    rule(op)(lambda out, x: function(x))


def modulus(x: Pair) -> torch.Tensor:
    return torch.hypot(x.re, x.im)


def argument(x: Pair) -> torch.Tensor:
    return torch.atan2(x.im, x.re)


def exp(x: Pair) -> Pair:
    length = x.re.exp()
    return Pair(length * x.im.cos(), length * x.im.sin())


def expm1(x: Pair) -> Pair:
    """exp(a) cos(b) - 1 as expm1(a) cos(b) - 2 sin(b/2)^2, which keeps small numbers."""
    half = (x.im * 0.5).sin()
    return Pair(x.re.expm1() * x.im.cos() - 2.0 * half * half, x.re.exp() * x.im.sin())


def log(x: Pair) -> Pair:
    return Pair(_log_modulus(x), argument(x))


def _log_modulus(x: Pair) -> torch.Tensor:
    """log|x|. Near the unit circle by |x|^2 - 1 = (|a| - 1)(|a| + 1) + b^2, a being the larger part."""
    a, b = torch.maximum(x.re.abs(), x.im.abs()), torch.minimum(x.re.abs(), x.im.abs())
    near = ((a - 1.0) * (a + 1.0) + b * b).log1p() * 0.5
    length = modulus(x)
    return torch.where((length > 0.5) & (length < 2.0), near, length.log())


def log1p(x: Pair) -> Pair:
    """By |1 + x|^2 - 1 = a (2 + a) + b^2 where that is small."""
    small = (x.re * (x.re + 2.0) + x.im * x.im).log1p() * 0.5
    shifted = x + 1.0
    is_small = (x.re.abs() < 0.5) & (x.im.abs() < 0.5)
    return Pair(torch.where(is_small, small, _log_modulus(shifted)), argument(shifted))


def square_root(x: Pair) -> Pair:
    """sqrt((|x| + |a|) / 2) is the larger part of the root, the other one b / 2 divided by it; 0 for 0."""
    larger = ((modulus(x) + x.re.abs()) * 0.5).sqrt()
    less = torch.where(larger == 0, 0.0, x.im.abs() / (larger * 2.0))
    right = x.re >= 0
    return Pair(torch.where(right, larger, less), torch.copysign(torch.where(right, less, larger), x.im))


def power(x: Pair, n: Pair) -> Pair:
    """|x|^c exp(-d arg(x)) at the angle d log|x| + c arg(x), for n = c + di; 0 to a power is 0, but 0^0 is 1.

    Where one operand is a number, its parts are.
    """
    if not isinstance(x.re, torch.Tensor):
        length, angle = abs(complex(x.re, x.im)), math.atan2(x.im, x.re)
        if not length:
            one = ((n.re == 0) & (n.im == 0)).to(n.re.dtype)
            return Pair(one, one * 0.0)
        logarithm = math.log(length)
        return exp(Pair(n.re * logarithm - n.im * angle, n.im * logarithm + n.re * angle))
    length_, angle_ = modulus(x), argument(x)
    is_zero = length_ == 0
    safe = torch.where(is_zero, 1.0, length_)
    found, turn = safe**n.re * (angle_ * n.im * -1.0).exp(), safe.log() * n.im + angle_ * n.re
    at_zero = ((n.re == 0) & (n.im == 0)) * 1.0
    return Pair(torch.where(is_zero, at_zero, found * turn.cos()), torch.where(is_zero, 0.0, found * turn.sin()))


def sin(x: Pair) -> Pair:
    return Pair(x.re.sin() * x.im.cosh(), x.re.cos() * x.im.sinh())


def cos(x: Pair) -> Pair:
    return Pair(x.re.cos() * x.im.cosh(), -(x.re.sin() * x.im.sinh()))


def sinh(x: Pair) -> Pair:
    return Pair(x.re.sinh() * x.im.cos(), x.re.cosh() * x.im.sin())


def cosh(x: Pair) -> Pair:
    return Pair(x.re.cosh() * x.im.cos(), x.re.sinh() * x.im.sin())


def tanh(x: Pair) -> Pair:
    """(sinh(a) cosh(a) + i sin(b) cos(b)) / (sinh(a)^2 + cos(b)^2); beyond 20, where that overflows, by its limit."""
    a = x.re.clamp(-20.0, 20.0)
    s, c, cos_b = a.sinh(), a.cosh(), x.im.cos()
    norm = s * s + cos_b * cos_b
    far = x.re.abs() > 20
    wave = x.im.sin() * cos_b
    limit = 4.0 * wave * (x.re.abs() * -2.0).exp()
    return Pair(torch.where(far, x.re.sign(), s * c / norm), torch.where(far, limit, wave / norm))


def asinh(x: Pair) -> Pair:
    return _around_i(asin, x)


def asin(x: Pair) -> Pair:
    """Kahan's CASIN: no sum of large numbers that cancel."""
    left, right = square_root(Pair(1.0 - x.re, -x.im)), square_root(x + 1.0)
    re = torch.atan2(x.re, left.re * right.re - left.im * right.im)
    return Pair(re, (left.re * right.im - left.im * right.re).asinh())


def acos(x: Pair) -> Pair:
    left, right = square_root(Pair(1.0 - x.re, -x.im)), square_root(x + 1.0)
    return Pair(torch.atan2(left.re, right.re) * 2.0, (right.re * left.im - right.im * left.re).asinh())


def acosh(x: Pair) -> Pair:
    left, right = square_root(x - 1.0), square_root(x + 1.0)
    return Pair((left.re * right.re + left.im * right.im).asinh(), torch.atan2(left.im, right.re) * 2.0)


def atanh(x: Pair) -> Pair:
    """Of numbers to the right of 0, and turned round: to the left the logarithm would be of what is nearly 0."""
    apart, length = 1.0 - x.re, x.re.abs()
    near = 1.0 - length
    re = (4.0 * length / (near * near + x.im * x.im)).log1p() * 0.25
    return Pair(torch.copysign(re, x.re), torch.atan2(x.im * 2.0, apart * (1.0 + x.re) - x.im * x.im) * 0.5)


def _around_i(function: Function, x: Pair) -> Pair:
    """-i f(ix): how a function of angles becomes the hyperbolic one, or the other way round."""
    return -function(x.turned()).turned()


def sigmoid(x: Pair) -> Pair:
    return Pair(1.0, 0.0) / (exp(-x) + 1.0)


_FUNCTIONS: dict[object, Function] = {
    aten.exp.default: exp,
    aten.exp2.default: lambda x: exp(x.scaled(math.log(2))),
    aten.expm1.default: expm1,
    aten.log.default: log,
    aten.log2.default: lambda x: log(x).scaled(1 / math.log(2)),
    aten.log10.default: lambda x: log(x).scaled(1 / math.log(10)),
    aten.log1p.default: log1p,
    aten.sqrt.default: square_root,
    aten.rsqrt.default: lambda x: Pair(1.0, 0.0) / square_root(x),
    aten.sin.default: sin,
    aten.cos.default: cos,
    aten.tan.default: lambda x: _around_i(tanh, x),
    aten.sinh.default: sinh,
    aten.cosh.default: cosh,
    aten.tanh.default: tanh,
    aten.asin.default: asin,
    aten.acos.default: acos,
    aten.atan.default: lambda x: _around_i(atanh, x),
    aten.asinh.default: asinh,
    aten.acosh.default: acosh,
    aten.atanh.default: atanh,
    aten.sigmoid.default: sigmoid,
    aten.silu.default: lambda x: x * sigmoid(x),
}
for _op, _function in _FUNCTIONS.items():
    _register(_op, _function)
