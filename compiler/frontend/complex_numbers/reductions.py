"""Rules for reductions of complex numbers: products of matrices, convolutions, sums, means, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from buddy.compiler.frontend.complex_numbers.functions import modulus
from buddy.compiler.frontend.complex_numbers.pair import RULES, ComplexPair, pair_of, part_type, rule

if TYPE_CHECKING:
    from buddy.compiler.frontend.complex_numbers.pair import Operand, Rule


# ---- products of matrices and vectors, and convolutions --------------------------------------------------------------


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


# ---- sums, means, variances, norms and products of elements ----------------------------------------------------------


def _linear_rule(op: torch._ops.OpOverload) -> Rule:
    """Returns the rule of an op that is linear in its operand: it applies the op to both parts.

    The op computes in the type of the result's parts.
    """

    def apply(out: torch.Tensor, x: Operand, *args: object, dtype: torch.dtype | None = None) -> object:
        if not out.dtype.is_complex:
            return NotImplemented
        pair = pair_of(x, part_type(out.dtype))
        return ComplexPair(op(pair.re, *args), op(pair.im, *args) if isinstance(pair.im, torch.Tensor) else 0.0)

    return apply


for _op in (aten.sum.default, aten.sum.dim_IntList, aten.cumsum.default):
    RULES[_op] = _linear_rule(_op)


def _mean_rule(op: torch._ops.OpOverload) -> Rule:
    """Returns the rule of a mean.

    Eager divides the sum by a complex count. An infinite part therefore makes the other part NaN, and a NaN makes both
    parts NaN; adding 0 times the other part has the same effect.
    """
    mean_of_parts = _linear_rule(op)

    def apply(out: torch.Tensor, x: Operand, *args: object, dtype: torch.dtype | None = None) -> object:
        mean = mean_of_parts(out, x, *args)
        if not isinstance(mean, ComplexPair):
            return mean
        return ComplexPair(mean.re + mean.im * 0.0, mean.im - mean.re * 0.0)

    return apply


for _op in (aten.mean.default, aten.mean.dim):
    RULES[_op] = _mean_rule(_op)


@rule(aten.var.correction)
def var(out: torch.Tensor, x: ComplexPair, *args: object, **kwargs: object) -> torch.Tensor:
    """Returns the variance: the sum of the variances of both parts."""
    return torch.var(x.re, *args, **kwargs) + torch.var(x.im, *args, **kwargs)


@rule(aten.std.correction)
def std(out: torch.Tensor, x: ComplexPair, *args: object, **kwargs: object) -> torch.Tensor:
    return var(out, x, *args, **kwargs).sqrt()


@rule(aten.var_mean.correction)
def var_mean(
    out: Sequence[torch.Tensor],
    x: ComplexPair,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    **kwargs: object,
) -> object:
    dims = list(range(x.re.dim())) if dim is None else dim
    variance = var(out[0], x, dims, keepdim=keepdim, **kwargs)
    return [variance, x.map(lambda part: torch.mean(part, dims, keepdim))]


@rule(aten.linalg_vector_norm.default)
def vector_norm(
    out: torch.Tensor,
    x: ComplexPair,
    ord: float = 2,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return torch.linalg.vector_norm(modulus(pair_of(x, out.dtype)), ord, dim, keepdim)


@rule(aten.prod.default)
def prod(out: torch.Tensor, x: Operand, dtype: torch.dtype | None = None) -> object:
    if not isinstance(x, ComplexPair) or not isinstance(x.re.numel(), int):
        return NotImplemented
    return _reduce_product(_multiply_by_one(pair_of(x, part_type(out.dtype))).map(torch.flatten), 0)


@rule(aten.prod.dim_int)
def prod_of_dim(
    out: torch.Tensor, x: Operand, dim: int, keepdim: bool = False, dtype: torch.dtype | None = None
) -> object:
    if not isinstance(x, ComplexPair) or (x.re.dim() and not isinstance(x.re.size(dim), int)):
        return NotImplemented
    product = _reduce_product(_multiply_by_one(pair_of(x, part_type(out.dtype))), dim)
    return product.map(lambda part: part.unsqueeze(dim)) if keepdim and out.dim() else product


def _multiply_by_one(x: ComplexPair) -> ComplexPair:
    """Multiplies by complex 1, as eager's products do: an infinite part makes the other part NaN."""
    return x * ComplexPair(1.0, 0.0)


def _reduce_product(x: ComplexPair, dim: int) -> ComplexPair:
    """Multiplies the two halves of `dim` elementwise until one element is left, in log2(length) steps."""
    if not x.re.dim():
        return x
    while (size := x.re.size(dim)) > 1:
        half = size // 2
        # `rest` has the last element if `size` is odd, else none.
        first, second, rest = (
            x.map(lambda part, start=start, count=count: part.narrow(dim, start, count))  # type: ignore[misc]
            for start, count in ((0, half), (half, half), (2 * half, size - 2 * half))
        )
        x = first * second
        if size % 2:
            x = ComplexPair(torch.cat([x.re, rest.re], dim), torch.cat([x.im, rest.im], dim))
    if not x.re.size(dim):  # the product of no elements is 1
        shape = [n for i, n in enumerate(x.re.shape) if i != dim % x.re.dim()]
        return ComplexPair(x.re.new_ones(shape), x.re.new_zeros(shape))
    return x.map(lambda part: part.squeeze(dim))
