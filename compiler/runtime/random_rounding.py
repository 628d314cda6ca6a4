"""Runs a program with random errors of the size of roundings.

Each op is computed in double precision on the values of this run, and its result is rounded to its element type up or
down at random, with zero mean error (stochastic rounding, as in the CESTAC method: Vignes, 1993). Values that the type
represents exactly do not change, so ops that move or select elements have no errors.

A sum of products is rounded once per addend, and its order depends on the kernel. The error of a sequential sum in
float32 is modelled as a random walk with independent rounding errors (Higham and Mary, 2019): its deviation is
u sqrt(S / 3), where u is the unit roundoff and S the sum of the squares of all n partial sums. S is estimated by
n (Q / 2 + s² / 3), where Q is the sum of the squares of the addends and s the result: the first term holds on average
for addends of random sign, the second one for equal addends.

Compiled code may compute convolutions of 3x3 windows in bfloat16 by Winograd's algorithm, so runs with random errors
use this algorithm too. Its transformed tiles and weights are rounded to bfloat16, so the result differs from that of a
direct convolution of the same operands by more than roundings of sums. Tiles have 2x2 results: F(2x2, 3x3) of Lavin and
Gray, "Fast algorithms for convolutional neural networks", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op
from buddy.compiler.runtime.graph_interpreter import (
    NO_PRECISIONS,
    SECOND_FACTOR_POSITIONS,
    LockstepInterpreter,
    Precisions,
    product_in_double,
    widen,
)
from buddy.compiler.runtime.torch_values import to_torch_dtype

# ---- Winograd's algorithm --------------------------------------------------------------------------------------------


# The matrices B^T, G and A^T of the paper, by which tiles, weights and products are multiplied from both sides.
_INPUT_TRANSFORM = [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]]
_WEIGHT_TRANSFORM = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]]
_OUTPUT_TRANSFORM = [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, -1.0]]


def can_use_winograd(op: Op, operand: Callable[[Op, int], torch.Tensor]) -> bool:
    """Returns whether the algorithm can compute `op`: a convolution of images by 3x3 windows, without stride or groups.

    `operand(op, index)` is the value of an operand of `op`.
    """
    if op.target != "convolution.default" or operand(op, 1).shape[2:] != (3, 3):
        return False
    stride, dilation, is_transposed, groups = op.args[3], op.args[5], op.args[6], op.args[8]
    is_plain = all(step == 1 for step in (*stride, *dilation))
    return is_plain and not is_transposed and groups == 1


def convolve_by_winograd(x: torch.Tensor, weight: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """Returns the convolution of [N, C, H, W] and [O, C, 3, 3] in double precision, without a bias.

    `padding` has one size for both dims or one for each. Operands, transformed tiles and transformed weights are
    rounded to bfloat16.
    """
    input_transform, weight_transform, output_transform = (
        torch.tensor(matrix, dtype=torch.float64) for matrix in (_INPUT_TRANSFORM, _WEIGHT_TRANSFORM, _OUTPUT_TRANSFORM)
    )
    padding = [int(size) for size in padding] * (2 // len(padding))
    height, width = (size + 2 * pad - 2 for size, pad in zip(x.shape[2:], padding, strict=True))
    n_tiles = (-(-height // 2), -(-width // 2))
    end_padding = [2 * count + 2 - size - pad for count, size, pad in zip(n_tiles, x.shape[2:], padding, strict=True)]
    padded = torch.nn.functional.pad(_rounded(x), (padding[1], end_padding[1], padding[0], end_padding[0]))
    tiles = padded.unfold(2, 4, 2).unfold(3, 4, 2)
    inputs = _rounded(torch.einsum("ij,nchwjk,lk->nchwil", input_transform, tiles, input_transform))
    weights = _rounded(torch.einsum("ij,ocjk,lk->ocil", weight_transform, _rounded(weight), weight_transform))
    products = torch.einsum("ocil,nchwil->nohwil", weights, inputs)
    results = torch.einsum("pi,nohwil,ql->nohpwq", output_transform, products, output_transform)
    return results.flatten(4, 5).flatten(2, 3)[:, :, :height, :width]


def _rounded(value: torch.Tensor) -> torch.Tensor:
    """Returns `value` rounded to bfloat16, in double precision."""
    return value.bfloat16().double()


# ---- the interpreter -------------------------------------------------------------------------------------------------


# For each target of a matrix product, the index of the first factor: the length of its rows is the number of addends.
_FIRST_FACTOR_POSITIONS = {"mm.default": 0, "bmm.default": 0, "addmm.default": 1, "baddbmm.default": 1}
# Targets of sums and means.
_SUMS, _MEANS = {"sum.default", "sum.dim_IntList"}, {"mean.default", "mean.dim"}


class RandomRoundingInterpreter(LockstepInterpreter):
    """A `LockstepInterpreter` in double precision that rounds each result at random.

    Its own generator starts from `seed`.
    """

    def __init__(
        self, graph: Graph, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], seed: int,
        precisions: Precisions = NO_PRECISIONS,
    ) -> None:  # fmt: skip
        super().__init__(graph, tensors, symbols, (), "float64", precisions=precisions)
        self._generator = torch.Generator().manual_seed(seed)

    def _compute(self, op: Op) -> torch.Tensor:
        """Returns the value of a node in double precision, with the errors of its sums, and rounded at random."""
        value = super()._compute(op)
        if self._precisions.get(op.stable) == "bf16" and can_use_winograd(op, self._operand):
            value = convolve_by_winograd(self._operand(op, 0), self._operand(op, 1), op.args[4])
            if op.args[2] is not None:
                value = value + self._operand(op, 2).double().reshape(-1, 1, 1)
        n_addends = _count_addends(op, self._operand)
        if n_addends > 1 and isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            value = value + self._error_of_sum(op, value, n_addends)
        return self._round(value, op)

    def _operand(self, op: Op, index: int) -> torch.Tensor:
        """Returns the value of argument `index` of `op`, which must be a node."""
        value: torch.Tensor = self.value(op.args[index].name)
        return value

    def _error_of_sum(self, op: Op, value: torch.Tensor, n_addends: float) -> torch.Tensor:
        """Returns random errors of `value`, the result of `op`: sums or means of `n_addends` addends each."""
        values = {parent.name: self.value(parent.name) for parent in op.parents}
        # On the squares of its operands, `op` sums the squares of its addends.
        if op.target in SECOND_FACTOR_POSITIONS and op.stable not in self._precisions:
            squares = product_in_double(op, values, self._symbols, lambda value: widen(value).square())
        else:
            squares = self.compute_alone(op, {name: widen(value).square() for name, value in values.items()})
        scale = n_addends if op.target in _MEANS else 1.0
        squared_partial_sums = n_addends * (squares * scale / 2 + (value * scale).square() / 3)
        deviation = torch.finfo(torch.float32).eps / 2 * (squared_partial_sums / 3).sqrt() / scale
        return deviation * torch.randn(value.shape, generator=self._generator, dtype=torch.float64)

    def _round(self, value: torch.Tensor, op: Op, index: int = 0) -> torch.Tensor:
        """Rounds result `index` of `op`, or all of several results, at random to its element type in the graph."""
        if isinstance(value, (list, tuple)):
            return [self._round(item, op, number) for number, item in enumerate(value)]
        meta = op.metas[index] if index < len(op.metas) else None
        if not isinstance(value, torch.Tensor) or meta is None:
            return value
        return round_at_random(value, to_torch_dtype(meta.dtype), self._generator)


def _count_addends(op: Op, operand: Callable[[Op, int], torch.Tensor]) -> float:
    """Returns the number of addends of each element of the result; 0 if `op` does not compute sums.

    `operand(op, index)` is the value of an argument of `op`.
    """
    if op.target in _FIRST_FACTOR_POSITIONS:
        return operand(op, _FIRST_FACTOR_POSITIONS[op.target]).shape[-1]
    if op.target == "convolution.default":
        weight, is_transposed, groups = operand(op, 1), bool(op.args[6]), int(op.args[8])
        return weight[:, 0].numel() / groups if is_transposed else weight[0].numel()
    if op.target in _SUMS | _MEANS:
        results = op.metas[0].shape if op.metas and op.metas[0] else ()
        return operand(op, 0).numel() / max(1, math.prod(int(size) for size in results))
    return 0


def round_at_random(value: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Rounds a double-precision tensor to `dtype`: each element at random to one of its two neighbours in this type."""
    if value.is_complex():
        part = {torch.complex64: torch.float32, torch.complex32: torch.float16}.get(dtype, torch.float64)
        real, imaginary = (round_at_random(x, part, generator) for x in (value.real, value.imag))
        return torch.complex(real.double(), imaginary.double()).to(dtype)
    if not value.is_floating_point() or not dtype.is_floating_point or dtype in (torch.float64, value.dtype):
        return value.to(dtype)
    # The distance between neighbours of x = m 2^e with 1/2 <= m < 1.
    _, exponent = torch.frexp(value)
    step = torch.ldexp(torch.full_like(value, torch.finfo(dtype).eps), exponent - 1)
    moved = value + (torch.rand(value.shape, generator=generator, dtype=torch.float64) - 0.5) * step
    nearest = value.to(dtype)
    return torch.where(nearest == value, nearest, moved.to(dtype))
