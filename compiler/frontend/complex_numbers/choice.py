"""Comparisons, tests and selections of complex numbers."""

from __future__ import annotations

from typing import Any

import torch

from buddy.compiler.frontend.complex_numbers.pair import ComplexPair, made, pair_of, rule

aten = torch.ops.aten


def _is_true(x: Any) -> torch.Tensor:
    """Whether a number is not 0; for pairs, whether one part is not."""
    return (x.re != 0) | (x.im != 0) if isinstance(x, ComplexPair) else x != 0


@rule(aten.eq.Tensor, aten.eq.Scalar)
def eq(out: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    a, b = pair_of(x), pair_of(y)
    return _tensor(out, a.re == b.re) & _tensor(out, a.im == b.im)


@rule(aten.ne.Tensor, aten.ne.Scalar)
def ne(out: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    a, b = pair_of(x), pair_of(y)
    return _tensor(out, a.re != b.re) | _tensor(out, a.im != b.im)


def _tensor(out: torch.Tensor, value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.full(out.shape, value, dtype=torch.bool)


@rule(aten.logical_not.default)
def logical_not(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return ~_is_true(x)


@rule(aten.logical_and.default)
def logical_and(out: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return _is_true(x) & _is_true(y)


@rule(aten.logical_or.default)
def logical_or(out: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return _is_true(x) | _is_true(y)


@rule(aten.logical_xor.default)
def logical_xor(out: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    return _is_true(x) ^ _is_true(y)


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def any_(out: torch.Tensor, x: ComplexPair, *args: Any) -> torch.Tensor:
    return torch.any(_is_true(x), *args)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def all_(out: torch.Tensor, x: ComplexPair, *args: Any) -> torch.Tensor:
    return torch.all(_is_true(x), *args)


@rule(aten.isnan.default)
def isnan(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return x.re.isnan() | x.im.isnan()


@rule(aten.isinf.default)
def isinf(out: torch.Tensor, x: ComplexPair) -> torch.Tensor:
    return x.re.isinf() | x.im.isinf()


@rule(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(out: torch.Tensor, chosen: torch.Tensor, x: Any, y: Any) -> ComplexPair:
    a, b = made(out, x), made(out, y)
    return ComplexPair(torch.where(chosen, a.re, b.re), torch.where(chosen, a.im, b.im))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(out: torch.Tensor, x: ComplexPair, mask: torch.Tensor, value: Any) -> ComplexPair:
    return where(out, mask, value, x)


@rule(aten.scatter.value)
def scatter(out: torch.Tensor, x: ComplexPair, dim: int, index: torch.Tensor, value: Any) -> ComplexPair:
    number = complex(value)
    return ComplexPair(x.re.scatter(dim, index, number.real), x.im.scatter(dim, index, number.imag))


@rule(aten.index_fill.int_Scalar)
def index_fill(out: torch.Tensor, x: ComplexPair, dim: int, index: torch.Tensor, value: Any) -> ComplexPair:
    number = complex(value)
    return ComplexPair(x.re.index_fill(dim, index, number.real), x.im.index_fill(dim, index, number.imag))


@rule(aten.nan_to_num.default)
def nan_to_num(out: torch.Tensor, x: ComplexPair, *numbers: Any) -> ComplexPair:
    return x.map(lambda part: torch.nan_to_num(part, *numbers))


@rule(aten.nonzero_static.default)
def nonzero_static(out: torch.Tensor, x: ComplexPair, **kwargs: Any) -> torch.Tensor:
    return aten.nonzero_static.default(_is_true(x), **kwargs)
