"""A graph node by node with errors as large as those of another correct run, at random.

Each op is computed in double precision on the values of this run, and its result is rounded to its element type up or
down with the chances that make the rounding right on average (stochastic rounding, as in the CESTAC method of Vignes,
1993). A value that the type can hold stays what it is, so ops that move or choose numbers change none.

A sum of many products is rounded once for each of them, and how it is cut into parts is for a kernel to say. Of a sum
in float32 from the first addend to the last, the error is a random walk (Higham and Mary, 2019: rounding errors as
independent random numbers): u times the root of a third of the sum of the squares of all partial sums. Those are taken
for half the sum of the squares of the addends, which the last one is of addends of both signs, and a third of the
square of the result, as of addends of one sign; each times their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.runtime.lockstep_interpreter import LockstepInterpreter, widened
from buddy.compiler.runtime.torch_values import to_torch

# By target, which operand's rows are multiplied.
_PRODUCTS = {"mm.default": 0, "bmm.default": 0, "addmm.default": 1, "baddbmm.default": 1}
_SUMS, _MEANS = {"sum.default", "sum.dim_IntList"}, {"mean.default", "mean.dim"}


class RandomlyRounded(LockstepInterpreter):
    """As `LockstepInterpreter`, with random bits from `seed`; torch's own generator is not used for them."""

    def __init__(self, graph: Graph, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], seed: int) -> None:
        super().__init__(graph, tensors, symbols, (), "float64")
        self._bits = torch.Generator().manual_seed(seed)

    def _computed(self, op: Op) -> Any:
        value = super()._computed(op)
        length = _addends(op, self._operand)
        if length > 1 and isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            value = value + self._error_of_sum(op, value, length)
        return self._rounded(value, op)

    def _operand(self, op: Op, place: int) -> torch.Tensor:
        found: torch.Tensor = self.value(op.args[place].name)
        return found

    def _error_of_sum(self, op: Op, value: torch.Tensor, length: float) -> torch.Tensor:
        """An error of sums of so many addends, of which `op` gives the results `value`, or their means."""
        squares = self.alone(op, {p.name: widened(self.value(p.name)).square() for p in op.parents})
        scale = length if op.target in _MEANS else 1.0
        partial = length * (squares * scale / 2 + (value * scale).square() / 3)
        size = torch.finfo(torch.float32).eps / 2 * (partial / 3).sqrt() / scale
        return size * torch.randn(value.shape, generator=self._bits, dtype=torch.float64)

    def _rounded(self, value: Any, op: Op, index: int = 0) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._rounded(item, op, number) for number, item in enumerate(value)]
        meta = op.metas[index] if index < len(op.metas) else None
        if not isinstance(value, torch.Tensor) or meta is None:
            return value
        return rounded_at_random(value, to_torch(meta.dtype), self._bits)


def _addends(op: Op, operand: Callable[[Op, int], torch.Tensor]) -> float:
    """How many numbers each result of an op is the sum of; 0 where it is none."""
    if op.target in _PRODUCTS:
        return operand(op, _PRODUCTS[op.target]).shape[-1]
    if op.target == "convolution.default":
        weight, is_transposed, groups = operand(op, 1), bool(op.args[6]), int(op.args[8])
        return weight[:, 0].numel() / groups if is_transposed else weight[0].numel()
    if op.target in _SUMS | _MEANS:
        results = op.metas[0].shape if op.metas and op.metas[0] else ()
        return operand(op, 0).numel() / max(1, math.prod(int(size) for size in results))
    return 0


def rounded_at_random(value: torch.Tensor, dtype: torch.dtype, bits: torch.Generator) -> torch.Tensor:
    """A tensor of double precision in the narrower `dtype`: each element one of its two neighbours there."""
    if value.is_complex():
        part = {torch.complex64: torch.float32, torch.complex32: torch.float16}.get(dtype, torch.float64)
        real, imaginary = (rounded_at_random(x, part, bits) for x in (value.real, value.imag))
        return torch.complex(real.double(), imaginary.double()).to(dtype)
    if not value.is_floating_point() or not dtype.is_floating_point or dtype == torch.float64:
        return value.to(dtype)
    # The distance of neighbours of x = m 2^e with 1/2 <= m < 1.
    _, exponent = torch.frexp(value)
    step = torch.ldexp(torch.full_like(value, torch.finfo(dtype).eps), exponent - 1)
    moved = value + (torch.rand(value.shape, generator=bits, dtype=torch.float64) - 0.5) * step
    nearest = value.to(dtype)
    return torch.where(nearest == value, nearest, moved.to(dtype))
