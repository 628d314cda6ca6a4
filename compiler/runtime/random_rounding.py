"""Evaluates a graph node by node with random errors of the size of those of another correct run.

Each op is computed in double precision on the values of this run, and its result is rounded to its element type up or
down at random, with zero mean error (stochastic rounding, as in the CESTAC method: Vignes, 1993). Values that the type
represents exactly do not change, so ops that move or select elements have no errors.

A sum of products is rounded once per addend, and its order depends on the kernel. The error of a sequential sum in
float32 is modelled as a random walk with independent rounding errors (Higham and Mary, 2019): its deviation is
u sqrt(S / 3), where u is the unit roundoff and S the sum of the squares of all n partial sums. S is estimated by
n (Q / 2 + s² / 3), where Q is the sum of the squares of the addends and s the result: the first term holds on average
for addends of random sign, the second one for equal addends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.runtime.lockstep_interpreter import LockstepInterpreter, widen
from buddy.compiler.runtime.torch_values import to_torch

# By target, the number of the operand whose rows are multiplied.
_PRODUCTS = {"mm.default": 0, "bmm.default": 0, "addmm.default": 1, "baddbmm.default": 1}
_SUMS, _MEANS = {"sum.default", "sum.dim_IntList"}, {"mean.default", "mean.dim"}


class RandomlyRounded(LockstepInterpreter):
    """A `LockstepInterpreter` that rounds at random, with bits from `seed` instead of torch's own generator."""

    def __init__(self, graph: Graph, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], seed: int) -> None:
        super().__init__(graph, tensors, symbols, (), "float64")
        self._bits = torch.Generator().manual_seed(seed)

    def _compute(self, op: Op) -> Any:
        value = super()._compute(op)
        length = _addends(op, self._operand)
        if length > 1 and isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            value = value + self._error_of_sum(op, value, length)
        return self._round(value, op)

    def _operand(self, op: Op, place: int) -> torch.Tensor:
        found: torch.Tensor = self.value(op.args[place].name)
        return found

    def _error_of_sum(self, op: Op, value: torch.Tensor, length: float) -> torch.Tensor:
        """Returns random errors of `value`, the result of `op`: sums or means of `length` addends each."""
        squares = self.compute_alone(op, {p.name: widen(self.value(p.name)).square() for p in op.parents})
        scale = length if op.target in _MEANS else 1.0
        partial = length * (squares * scale / 2 + (value * scale).square() / 3)
        size = torch.finfo(torch.float32).eps / 2 * (partial / 3).sqrt() / scale
        return size * torch.randn(value.shape, generator=self._bits, dtype=torch.float64)

    def _round(self, value: Any, op: Op, index: int = 0) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._round(item, op, number) for number, item in enumerate(value)]
        meta = op.metas[index] if index < len(op.metas) else None
        if not isinstance(value, torch.Tensor) or meta is None:
            return value
        return round_at_random(value, to_torch(meta.dtype), self._bits)


def _addends(op: Op, operand: Callable[[Op, int], torch.Tensor]) -> float:
    """Returns the number of addends of each element of the result; 0 if `op` does not compute sums."""
    if op.target in _PRODUCTS:
        return operand(op, _PRODUCTS[op.target]).shape[-1]
    if op.target == "convolution.default":
        weight, is_transposed, groups = operand(op, 1), bool(op.args[6]), int(op.args[8])
        return weight[:, 0].numel() / groups if is_transposed else weight[0].numel()
    if op.target in _SUMS | _MEANS:
        results = op.metas[0].shape if op.metas and op.metas[0] else ()
        return operand(op, 0).numel() / max(1, math.prod(int(size) for size in results))
    return 0


def round_at_random(value: torch.Tensor, dtype: torch.dtype, bits: torch.Generator) -> torch.Tensor:
    """Rounds a double-precision tensor to `dtype`: each element to one of its two neighbours in it, at random."""
    if value.is_complex():
        part = {torch.complex64: torch.float32, torch.complex32: torch.float16}.get(dtype, torch.float64)
        real, imaginary = (round_at_random(x, part, bits) for x in (value.real, value.imag))
        return torch.complex(real.double(), imaginary.double()).to(dtype)
    if not value.is_floating_point() or not dtype.is_floating_point or dtype == torch.float64:
        return value.to(dtype)
    # The distance between neighbours of x = m 2^e with 1/2 <= m < 1.
    _, exponent = torch.frexp(value)
    step = torch.ldexp(torch.full_like(value, torch.finfo(dtype).eps), exponent - 1)
    moved = value + (torch.rand(value.shape, generator=bits, dtype=torch.float64) - 0.5) * step
    nearest = value.to(dtype)
    return torch.where(nearest == value, nearest, moved.to(dtype))
