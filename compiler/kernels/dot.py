"""Contractions of few rows whose factors are both contiguous along K: dot products in vectors, nothing packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.bindings import arith, ir, vector
from buddy.compiler.kernels.contraction import Contraction
from buddy.compiler.kernels.emit import Emitter, Index, across, for_blocks

COLUMNS = 4  # that share each vector of A; as many sums hide the latency of a multiply-add
MAX_ROWS = 4


def fits(contraction: Contraction) -> bool:
    """Whether packing B would cost about as much as the products themselves."""
    k, n = contraction.k, contraction.n
    contiguous = len(k) == 1 and k[0].strides[0] == k[0].strides[1] == 1
    return contiguous and contraction.m.size <= MAX_ROWS and (n.size == 1 or n.strides[1] != 1)


class DotProducts:
    """Emission of one kernel over flat operands A, B, C; sums are added to C unless `zero`."""

    def __init__(self, e: Emitter, flats: Sequence[Any], contraction: Contraction, lanes: int, zero: bool) -> None:
        self.e, self.c, self.lanes, self.zero = e, contraction, lanes, zero
        self.a, self.b, self.out = flats
        self.vector = ir.VectorType.get([lanes], self.out.type.element_type)

    def emit(self) -> None:
        loops = [*self.c.outer, self.c.m]
        n = self.c.n

        def row(indices: list[Index]) -> None:
            a, b, c = (self.e.dot(indices, [loop.strides[i] for loop in loops]) for i in range(3))

            def columns(number: Index, count: int) -> None:
                first = self.e.mul(number, COLUMNS)
                here, there = (self.e.add(at, self.e.mul(first, n.strides[i])) for at, i in ((b, 1), (c, 2)))
                self._columns(a, here, there, count)

            for_blocks(self.e, n.size, COLUMNS, columns)

        self.e.nest([loop.size for loop in loops], row)

    def _columns(self, a: Index, b: Index, c: Index, count: int) -> None:
        """The sums of `count` columns for one row of A."""
        e, size = self.e, self.c.k[0].size
        full = size // self.lanes * self.lanes

        def step(k: Index, sums: list[Any], active: int | None = None) -> Sequence[Any]:
            factor = e.load(self.a, e.add(a, k), self.lanes, active)
            starts = [e.add(b, e.add(k, i * self.c.n.strides[1])) for i in range(count)]
            others = [e.load(self.b, start, self.lanes, active) for start in starts]
            return [vector.fma(factor, other, total) for other, total in zip(others, sums, strict=True)]

        sums = e.loop(0, full, self.lanes, step, [e.zero(self.vector)] * count)
        if full < size:
            sums = list(step(full, sums, size - full))
        for i, total in enumerate(sums):
            place = e.add(c, i * self.c.n.strides[2])
            value = across(total, arith.addf)
            e.store_scalar(value if self.zero else arith.addf(e.load_scalar(self.out, place), value), self.out, place)
