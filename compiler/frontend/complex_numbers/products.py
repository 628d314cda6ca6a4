"""Matrix products and convolutions: ops that are linear in each of two operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from buddy.compiler.frontend.complex_numbers.pair import RULES, ComplexPair, pair_of, rule

aten = torch.ops.aten

Bilinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _product(op: Bilinear, x: Any, y: Any) -> ComplexPair:
    """Four real products: three lose digits if the parts differ in size."""
    a, b = pair_of(x), pair_of(y)
    if not isinstance(a.im, torch.Tensor) or not isinstance(b.im, torch.Tensor):
        raise TypeError("a product of matrices has operands of one type")
    return ComplexPair(op(a.re, b.re) - op(a.im, b.im), op(a.re, b.im) + op(a.im, b.re))


def _bilinear(op: Any) -> Any:
    return lambda out, x, y: _product(op, x, y)


for _op in (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default):
    RULES[_op] = _bilinear(_op)


@rule(aten.vdot.default)
def vdot(out: torch.Tensor, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    return _product(aten.dot.default, x.conj(), y)


def _added(op: Any, summed: bool = False) -> Any:
    """The rule of `beta * addend + alpha * op(x, y)`; an addend times 0 is not read, as in eager."""

    def apply(
        out: torch.Tensor, addend: ComplexPair, x: ComplexPair, y: ComplexPair, beta: Any = 1, alpha: Any = 1
    ) -> ComplexPair:
        product = _product(op, x, y)
        product = product.map(lambda part: part.sum(0)) if summed else product
        product = product if alpha == 1 else product * alpha
        if beta == 0:
            return product
        return product + (addend if beta == 1 else addend * beta)

    return apply


RULES[aten.addmm.default] = _added(aten.mm.default)
RULES[aten.baddbmm.default] = _added(aten.bmm.default)
RULES[aten.addmv.default] = _added(aten.mv.default)
RULES[aten.addbmm.default] = _added(aten.bmm.default, summed=True)


@rule(aten.convolution.default)
def convolution(out: torch.Tensor, x: ComplexPair, weight: ComplexPair, bias: Any, *rest: Any) -> ComplexPair:
    product = _product(lambda a, b: aten.convolution.default(a, b, None, *rest), x, weight)
    if bias is None:
        return product
    return product + bias.map(lambda part: part.reshape([-1] + [1] * (out.dim() - 2)))
