"""Arithmetic, comparison, selection and conversion of complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from buddy.compiler.frontend.complex_numbers.functions import modulus, power, square_root
from buddy.compiler.frontend.complex_numbers.pair import ComplexPair, pair_of, part_type, rule, to_pair_like

if TYPE_CHECKING:
    from buddy.compiler.frontend.complex_numbers.pair import Operand


aten = torch.ops.aten


def _operands(out: torch.Tensor, *values: Operand) -> list[ComplexPair]:
    """Returns the operands as pairs, converted to the type of the result's parts, as eager does."""
    return [pair_of(value, part_type(out.dtype)) for value in values]


@rule(aten.add.Tensor, aten.add.Scalar)
def add(out: torch.Tensor, x: Operand, y: Operand, alpha: Operand = 1) -> ComplexPair:
    """Returns x + alpha y. Multiplies by 1 too, like eager: the real part is NaN if the imaginary part is infinite."""
    a, b = _operands(out, x, y)
    return a + b * alpha


@rule(aten.sub.Tensor, aten.sub.Scalar)
def sub(out: torch.Tensor, x: Operand, y: Operand, alpha: Operand = 1) -> ComplexPair:
    a, b = _operands(out, x, y)
    return a + b * -alpha


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(out: torch.Tensor, x: Operand, y: Operand, alpha: Operand = 1) -> ComplexPair:
    return sub(out, y, x, alpha)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def mul(out: torch.Tensor, x: Operand, y: Operand) -> ComplexPair:
    a, b = _operands(out, x, y)
    return a * b


@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(out: torch.Tensor, x: Operand, y: Operand) -> ComplexPair:
    a, b = _operands(out, x, y)
    return a / b


@rule(aten.reciprocal.default)
def reciprocal(out: torch.Tensor, x: ComplexPair) -> ComplexPair:
    return _inverse(x)


@rule(aten.neg.default)
def neg(out: torch.Tensor, x: ComplexPair) -> ComplexPair:
    return -x


@rule(aten.square.default)
def square(out: torch.Tensor, x: ComplexPair) -> ComplexPair:
    return x * x


@rule(aten.addcmul.default)
def addcmul(out: torch.Tensor, x: Operand, y: Operand, z: Operand, value: Operand = 1) -> ComplexPair:
    a, b, c = _operands(out, x, y, z)
    return a + b * value * c


@rule(aten.addcdiv.default)
def addcdiv(out: torch.Tensor, x: Operand, y: Operand, z: Operand, value: Operand = 1) -> ComplexPair:
    a, b, c = _operands(out, x, y, z)
    return a + b * value / c


@rule(aten.lerp.Tensor, aten.lerp.Scalar)
def lerp(out: torch.Tensor, start: Operand, end: Operand, weight: Operand) -> ComplexPair:
    """Returns the interpolation from the nearer end, like eager: `end` if the modulus of the weight is 0.5 or more."""
    a, b, w = _operands(out, start, end, weight)
    from_start, from_end = a + w * (b - a), b - (b - a) * (pair_of(1.0) - w)
    if not isinstance(w.re, torch.Tensor):
        return from_start if abs(complex(w.re, w.im)) < 0.5 else from_end
    is_near_start = modulus(w) < 0.5
    return ComplexPair(
        torch.where(is_near_start, from_start.re, from_end.re), torch.where(is_near_start, from_start.im, from_end.im)
    )


@rule(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(out: torch.Tensor, base: Operand, exponent: Operand) -> ComplexPair:
    x, n = _operands(out, base, exponent)
    special_cases: dict[complex, Callable[[], ComplexPair]] = {
        0: lambda: ComplexPair(1.0, 0.0), 1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x,
        0.5: lambda: square_root(x), -0.5: lambda: _inverse(square_root(x)),
        -1: lambda: _inverse(x), -2: lambda: _inverse(x * x),
    }  # fmt: skip
    if not isinstance(exponent, (torch.Tensor, ComplexPair)) and exponent in special_cases:
        return special_cases[exponent]()
    return power(x, n)


@rule(aten.ldexp.Tensor)
def ldexp(out: torch.Tensor, x: Operand, exponent: Operand) -> ComplexPair:
    """Returns x times a power of 2; with a real exponent, the power has the imaginary part 0, as in eager."""
    factor = pow_(out, 2.0, exponent) if isinstance(exponent, ComplexPair) else torch.pow(2.0, exponent)
    return pair_of(x) * factor


def _inverse(divisor: ComplexPair) -> ComplexPair:
    return ComplexPair(1.0, 0.0) / divisor


# ---- conversions -----------------------------------------------------------------------------------------------------


@rule(aten.complex.default)
def complex_(out: torch.Tensor, re: torch.Tensor, im: torch.Tensor) -> ComplexPair:
    return ComplexPair(re, im)


@rule(aten.polar.default)
def polar(out: torch.Tensor, length: torch.Tensor, angle: torch.Tensor) -> ComplexPair:
    return ComplexPair(length * angle.cos(), length * angle.sin())


@rule(aten.view_as_real.default)
def view_as_real(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return torch.stack([x.re, x.im], -1)


@rule(aten.real.default)
def real(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return x.re


@rule(aten.imag.default)
def imag(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return x.im


@rule(aten._conj.default, aten.conj_physical.default, aten._conj_physical.default)
def conj(out: torch.Tensor, x: ComplexPair) -> ComplexPair:
    return x.conj()


@rule(aten.abs.default)
def abs_(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return modulus(x)


@rule(aten.angle.default)
def angle(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return torch.atan2(x.im, x.re)


@rule(aten.sgn.default)
def sgn(out: torch.Tensor, x: ComplexPair) -> ComplexPair:
    """Returns the number on the unit circle in the same direction; 0 for 0."""
    length = modulus(x)
    return x.map(lambda part: torch.where(length == 0, 0.0, part / length))


def _is_true(x: Operand) -> torch.Tensor:
    """True if a number is not 0; a pair is not 0 if one of its parts is not 0."""
    return (x.re != 0) | (x.im != 0) if isinstance(x, ComplexPair) else x != 0


@rule(aten.eq.Tensor, aten.eq.Scalar)
def eq(out: torch.Tensor, x: Operand, y: Operand) -> torch.Tensor:
    a, b = pair_of(x), pair_of(y)
    return _to_bool_tensor(out, a.re == b.re) & _to_bool_tensor(out, a.im == b.im)


@rule(aten.ne.Tensor, aten.ne.Scalar)
def ne(out: torch.Tensor, x: Operand, y: Operand) -> torch.Tensor:
    a, b = pair_of(x), pair_of(y)
    return _to_bool_tensor(out, a.re != b.re) | _to_bool_tensor(out, a.im != b.im)


def _to_bool_tensor(out: torch.Tensor, value: Operand) -> torch.Tensor:
    """Returns the result of a comparison as a tensor of the shape of `out`; for two numbers, `value` is a bool."""
    return value if isinstance(value, torch.Tensor) else torch.full(out.shape, value, dtype=torch.bool)


@rule(aten.logical_not.default)
def logical_not(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return ~_is_true(x)


@rule(aten.logical_and.default)
def logical_and(out: torch.Tensor, x: Operand, y: Operand) -> torch.Tensor:
    return _is_true(x) & _is_true(y)


@rule(aten.logical_or.default)
def logical_or(out: torch.Tensor, x: Operand, y: Operand) -> torch.Tensor:
    return _is_true(x) | _is_true(y)


@rule(aten.logical_xor.default)
def logical_xor(out: torch.Tensor, x: Operand, y: Operand) -> torch.Tensor:
    return _is_true(x) ^ _is_true(y)


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def any_(out: torch.Tensor, x: ComplexPair, *args: object) -> torch.Tensor:
    return torch.any(_is_true(x), *args)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def all_(out: torch.Tensor, x: ComplexPair, *args: object) -> torch.Tensor:
    return torch.all(_is_true(x), *args)


@rule(aten.isnan.default)
def isnan(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return x.re.isnan() | x.im.isnan()


@rule(aten.isinf.default)
def isinf(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return x.re.isinf() | x.im.isinf()


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(out: torch.Tensor, condition: torch.Tensor, x: Operand, y: Operand) -> ComplexPair:
    a, b = to_pair_like(out, x), to_pair_like(out, y)
    return ComplexPair(torch.where(condition, a.re, b.re), torch.where(condition, a.im, b.im))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(out: torch.Tensor, x: ComplexPair, mask: torch.Tensor, value: Operand) -> ComplexPair:
    return where(out, mask, value, x)


@rule(aten.scatter.value)
def scatter(out: torch.Tensor, x: ComplexPair, dim: int, index: torch.Tensor, value: complex) -> ComplexPair:
    number = complex(value)
    return ComplexPair(x.re.scatter(dim, index, number.real), x.im.scatter(dim, index, number.imag))


@rule(aten.index_fill.int_Scalar)
def index_fill(out: torch.Tensor, x: ComplexPair, dim: int, index: torch.Tensor, value: complex) -> ComplexPair:
    number = complex(value)
    return ComplexPair(x.re.index_fill(dim, index, number.real), x.im.index_fill(dim, index, number.imag))


@rule(aten.nan_to_num.default)
def nan_to_num(out: torch.Tensor, x: ComplexPair, *numbers: float | None) -> ComplexPair:
    return x.map(lambda part: torch.nan_to_num(part, *numbers))


@rule(aten.nonzero_static.default)
def nonzero_static(out: torch.Tensor, x: ComplexPair, **kwargs: object) -> torch.Tensor:
    return aten.nonzero_static.default(_is_true(x), **kwargs)
