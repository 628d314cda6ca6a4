"""A complex tensor as two real ones, and the registry of rules for complex ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import torch

Part = Any  # a real tensor, or a number if all elements are equal
# An operand of arithmetic on pairs: a pair, a real tensor or a number.
Operand = Union["ComplexPair", torch.Tensor, complex]
# Takes a fake tensor with the shape and dtype of the op's result (a list for several results), then the op's own
# arguments, with a `ComplexPair` for each complex tensor. Returns the op's result, or `NotImplemented` if the op stays
# unchanged. Its first parameter is called `out`.
Rule = Callable[..., Any]
# The rules by overload.
RULES: dict[Any, Rule] = {}


def rule(*ops: Callable[..., object]) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of the overloads `ops`."""

    def decorate(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return decorate


@dataclass(frozen=True, eq=False)
class ComplexPair:
    """Real and imaginary part, tensors of one shape and type; arithmetic also accepts numbers and real tensors.

    A real operand has the imaginary part 0, and computations use this 0 like eager: infinity times `2 + 0j` has the
    imaginary part NaN. `stacked` is a tensor [..., 2] with both parts, if one exists; it saves a copy where an op needs
    the parts in this layout.
    """

    re: Part
    im: Part
    stacked: torch.Tensor | None = None

    def map(self, function: Callable[[Part], Part]) -> ComplexPair:
        """Returns the pair with `function` applied to each part."""
        return ComplexPair(function(self.re), function(self.im))

    def conj(self) -> ComplexPair:
        """Returns the complex conjugate."""
        return ComplexPair(self.re, -self.im)

    def scaled(self, factor: Operand) -> ComplexPair:
        """Returns the product with a real number or tensor, as two products."""
        return ComplexPair(self.re * factor, self.im * factor)

    def shifted(self, number: Operand) -> ComplexPair:
        """Returns the sum with a real number; the imaginary part is unchanged, and so is the sign of a zero."""
        return ComplexPair(self.re + number, self.im)

    def swapped(self) -> ComplexPair:
        """Returns the pair with the parts exchanged: i times the conjugate."""
        return ComplexPair(self.im, self.re)

    def times_i(self) -> ComplexPair:
        """Returns the product with the imaginary unit."""
        return ComplexPair(-self.im, self.re)

    def __neg__(self) -> ComplexPair:
        return ComplexPair(-self.re, -self.im)

    def __add__(self, other: Operand) -> ComplexPair:
        y = pair_of(other)
        return ComplexPair(self.re + y.re, self.im + y.im)

    def __sub__(self, other: Operand) -> ComplexPair:
        y = pair_of(other)
        return ComplexPair(self.re - y.re, self.im - y.im)

    def __mul__(self, other: Operand) -> ComplexPair:
        y = pair_of(other)
        return ComplexPair(self.re * y.re - self.im * y.im, self.re * y.im + self.im * y.re)

    def __truediv__(self, other: Operand) -> ComplexPair:
        """Divides like eager, by the algorithm of Robert L. Smith (1962).

        It first divides the smaller part of the divisor by the larger one, so that no square overflows. Each part is
        divided separately if the divisor is 0.
        """
        y = pair_of(other)
        c, d = y.re, y.im
        if not isinstance(c, torch.Tensor) and not isinstance(d, torch.Tensor):
            return self._over_number(float(c), float(d))
        is_re_larger = abs(c) >= abs(d)
        is_zero = (c == 0) & (d == 0)
        larger, smaller = torch.where(is_re_larger, c, d), torch.where(is_re_larger, d, c)
        ratio = smaller / larger
        scale = 1.0 / (larger + smaller * ratio)
        a, b = self.re, self.im
        re = torch.where(is_re_larger, a + b * ratio, a * ratio + b) * scale
        im = torch.where(is_re_larger, b - a * ratio, b * ratio - a) * scale
        return ComplexPair(torch.where(is_zero, a / abs(c), re), torch.where(is_zero, b / abs(c), im))

    def _over_number(self, c: float, d: float) -> ComplexPair:
        """Returns the quotient with the number c + id, by the same algorithm."""
        if c == d == 0:
            return self.map(lambda part: part / 0.0)
        if abs(c) >= abs(d):
            ratio = d / c
            scale = 1.0 / (c + d * ratio)
            return ComplexPair((self.re + self.im * ratio) * scale, (self.im - self.re * ratio) * scale)
        ratio = c / d
        scale = 1.0 / (d + c * ratio)
        return ComplexPair((self.re * ratio + self.im) * scale, (self.im * ratio - self.re) * scale)


@dataclass(frozen=True, eq=False)
class Interleaved:
    """A complex result whose two parts a rule has computed along an additional last dim."""

    stacked: torch.Tensor


def pair_of(value: Operand, dtype: torch.dtype | None = None) -> ComplexPair:
    """Converts a number, a real tensor or a pair to a pair, with tensors of type `dtype` if given."""
    if isinstance(value, complex):
        return ComplexPair(value.real, value.imag)
    pair = value if isinstance(value, ComplexPair) else ComplexPair(value, 0.0)
    if dtype is None:
        return pair
    return pair.map(lambda part: part.to(dtype) if isinstance(part, torch.Tensor) else part)


def part_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of the parts of a complex type; other types are returned unchanged."""
    return dtype.to_real() if dtype.is_complex else dtype


def to_pair_like(out: torch.Tensor, value: Operand) -> ComplexPair:
    """Returns `value` with parts that are tensors of the shape and part type of `out`."""
    dtype = part_type(out.dtype)

    def to_tensor(part: Part) -> torch.Tensor:
        if not isinstance(part, torch.Tensor):
            return torch.full(out.shape, part, dtype=dtype)
        return part.to(dtype).expand(out.shape) if part.shape != out.shape else part.to(dtype)

    return pair_of(value).map(to_tensor)
