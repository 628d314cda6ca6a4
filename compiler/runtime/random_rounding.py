"""A graph node by node with results rounded up or down at random: another correct run of the program.

Each op is computed in double precision on the values of this run, and its result is rounded to its element type up or
down with the chances that make the rounding right on average (stochastic rounding, as in the CESTAC method of Vignes,
1993). A value that the type can hold stays what it is, so ops that move or choose numbers change none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.runtime.in_step import InStep
from buddy.compiler.runtime.torch_values import to_torch


class RandomlyRounded(InStep):
    """As `InStep`, with random bits from `seed`; torch's own generator is not used for them."""

    def __init__(self, graph: Graph, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int], seed: int) -> None:
        super().__init__(graph, tensors, symbols, (), "float64")
        self._bits = torch.Generator().manual_seed(seed)

    def _computed(self, op: Op) -> Any:
        return self._rounded(super()._computed(op), op)

    def _rounded(self, value: Any, op: Op, index: int = 0) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._rounded(item, op, number) for number, item in enumerate(value)]
        meta = op.metas[index] if index < len(op.metas) else None
        if not isinstance(value, torch.Tensor) or meta is None:
            return value
        return rounded_at_random(value, to_torch(meta.dtype), self._bits)


def rounded_at_random(value: torch.Tensor, dtype: torch.dtype, bits: torch.Generator) -> torch.Tensor:
    """A tensor of double precision in the narrower `dtype`: each element one of its two neighbours there."""
    if value.is_complex():
        part = {torch.complex64: torch.float32, torch.complex32: torch.float16}.get(dtype, torch.float64)
        real, imaginary = (rounded_at_random(x, part, bits) for x in (value.real, value.imag))
        return torch.complex(real.double(), imaginary.double()).to(dtype)
    if not value.is_floating_point() or not dtype.is_floating_point or dtype == torch.float64:
        return value.to(dtype)
    # The distance of neighbours of x = m 2^e with 1/2 <= m < 1; half of it moves no number that the type can hold.
    _, exponent = torch.frexp(value)
    step = torch.ldexp(torch.full_like(value, torch.finfo(dtype).eps), exponent - 1)
    return (value + (torch.rand(value.shape, generator=bits, dtype=torch.float64) - 0.5) * step).to(dtype)
