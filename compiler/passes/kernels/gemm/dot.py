"""Contractions of few rows with both factors contiguous along K: dot products of vectors, without packing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import memref
from buddy.compiler.passes.kernels.arithmetic import add, multiply_add
from buddy.compiler.passes.kernels.emit import Index, reduce_lanes
from buddy.compiler.passes.kernels.epilogue import Place
from buddy.compiler.passes.kernels.gemm.base import GemmKernel
from buddy.compiler.passes.kernels.packing import ALIGNMENT

# Sums that are computed at once: four hide the latency of a multiply-add, more keep several loads in flight.
SUMS = 8
# Columns of B that one iteration of the outer loop reads, sequentially, which is fastest.
COLUMNS = 64


class DotProducts(GemmKernel):
    """Reads each column of B once, from start to end, and multiplies it with all rows of A."""

    def emit(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.n.size]
        blocks = [*(1 for _ in self.c.outer), COLUMNS]
        self.e.parallel_blocks(sizes, blocks, self._columns, self.work)

    def _columns(self, numbers: list[Index], active: list[int]) -> None:
        """Emits a block of columns: dot products to a private buffer, then vectors of them to C."""
        e, rows, columns = self.e, self.c.m.size, active[-1]
        *outer, number = numbers
        first = e.mul(number, COLUMNS)
        a, b = self.start(0, outer), e.add(self.start(1, outer), e.mul(first, self.c.n.strides[1]))
        buffer = memref.alloc(self.scratch_type(rows * COLUMNS), [], [], alignment=ALIGNMENT)

        def column(index: Index, _: list[Any]) -> Sequence[Any]:
            totals = self._products(a, e.add(b, e.mul(index, self.c.n.strides[1])))
            for row, total in enumerate(totals):
                e.store_scalar(total, buffer, e.add(row * COLUMNS, index))
            return ()

        e.loop(0, columns, 1, column)
        self._finish(buffer, self.place(outer, 0, first), columns)
        memref.dealloc(buffer)

    def _products(self, a: Index, b: Index) -> list[Any]:
        """Returns the dot products of each row of A with one column of B."""
        e, rows, lanes, size = self.e, self.c.m.size, self.lanes, self.c.k[0].size
        width = max(1, min(SUMS // rows, size // lanes))  # vectors of the column at once
        block, full = width * lanes, size // lanes * lanes

        def step(k: Index, sums: list[Any], count: int = width, active: int | None = None) -> Sequence[Any]:
            return self._steps(a, b, k, sums, count, active)

        sums = e.loop(0, size // block * block, block, step, [self.zero()] * (rows * width))
        sums = e.loop(size // block * block, full, lanes, lambda k, inner: step(k, inner, 1), sums)
        if full < size:
            sums = list(step(full, sums, 1, size - full))
        return [self._total(sums[row * width : (row + 1) * width]) for row in range(rows)]

    def _steps(self, a: Index, b: Index, k: Index, sums: list[Any], count: int, active: int | None) -> list[Any]:
        """Multiplies `count` vectors of the column from `k` on with those of each row; the last has `active` lanes."""
        e, rows, lanes = self.e, self.c.m.size, self.lanes
        found, width = list(sums), len(sums) // rows
        for i in range(count):
            here = e.add(k, i * lanes)
            other = self.factor(1, e.load(self.b, e.add(b, here), lanes, active))
            for row in range(rows):
                start = e.add(a, e.add(here, row * self.c.m.strides[0]))
                factor = self.factor(0, e.load(self.a, start, lanes, active))
                found[row * width + i] = multiply_add(factor, other, found[row * width + i])
        return found

    def _total(self, sums: list[Any]) -> Any:
        """Returns the sum over vectors, in pairs, and then over lanes."""
        while len(sums) > 1:
            pairs = [add(x, y) for x, y in zip(sums[::2], sums[1::2], strict=False)]
            sums = pairs + sums[len(pairs) * 2 :]
        return reduce_lanes(sums[0], add)

    def _finish(self, buffer: Any, place: Place, columns: int) -> None:
        e, lanes = self.e, self.lanes
        for row in range(self.c.m.size):
            here = self.results.advance(place, self.m_loop, row)
            for column in range(0, columns, lanes):
                active = columns - column
                totals = e.load(buffer, row * COLUMNS + column, lanes)
                start = self.results.initial(here, column, active) if self.results.starts else None
                self.results.finish(totals if start is None else add(start, totals), here, column, active)
