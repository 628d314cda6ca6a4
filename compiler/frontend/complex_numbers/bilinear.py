"""Rules for bilinear ops on complex numbers: products of matrices and vectors, and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from buddy.compiler.frontend.complex_numbers.pair import ComplexPair, pair_of, rule

if TYPE_CHECKING:
    from buddy.compiler.frontend.complex_numbers.pair import Operand, Rule


aten = torch.ops.aten

# An op on real tensors that is linear in each of its two operands.
Bilinear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _product(op: Bilinear, x: Operand, y: Operand) -> ComplexPair:
    """Returns `op(x, y)` by four real products.

    Three products, as in Gauss's trick, lose digits if the parts differ in magnitude.
    """
    a, b = pair_of(x), pair_of(y)
    if not isinstance(a.im, torch.Tensor) or not isinstance(b.im, torch.Tensor):
        raise TypeError("a bilinear op has two complex operands")
    return ComplexPair(op(a.re, b.re) - op(a.im, b.im), op(a.re, b.im) + op(a.im, b.re))


def _bilinear_rule(op: torch._ops.OpOverload) -> Rule:
    """Returns the rule of a bilinear op without other arguments."""
    return lambda out, x, y: _product(op, x, y)


for _op in (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default):
    rule(_op)(_bilinear_rule(_op))


@rule(aten.vdot.default)
def vdot(out: torch.Tensor, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    return _product(aten.dot.default, x.conj(), y)


def _addend_rule(op: torch._ops.OpOverload, sum_batch: bool = False) -> Rule:
    """Returns the rule of `beta * addend + alpha * op(x, y)`; an addend times 0 is not read, as in eager.

    `sum_batch` sums the products over the batch (`addbmm`).
    """

    def apply(
        out: torch.Tensor, addend: ComplexPair, x: ComplexPair, y: ComplexPair, beta: Operand = 1, alpha: Operand = 1
    ) -> ComplexPair:
        product = _product(op, x, y)
        product = product.map(lambda part: part.sum(0)) if sum_batch else product
        product = product if alpha == 1 else product * alpha
        if beta == 0:
            return product
        return product + (addend if beta == 1 else addend * beta)

    return apply


rule(aten.addmm.default)(_addend_rule(aten.mm.default))
rule(aten.baddbmm.default)(_addend_rule(aten.bmm.default))
rule(aten.addmv.default)(_addend_rule(aten.mv.default))
rule(aten.addbmm.default)(_addend_rule(aten.bmm.default, sum_batch=True))


@rule(aten.convolution.default)
def convolution(
    out: torch.Tensor, x: ComplexPair, weight: ComplexPair, bias: ComplexPair | None, *options: object
) -> ComplexPair:
    product = _product(lambda a, b: aten.convolution.default(a, b, None, *options), x, weight)
    if bias is None:
        return product
    return product + bias.map(lambda part: part.reshape([-1] + [1] * (out.dim() - 2)))
