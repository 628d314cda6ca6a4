"""Contractions of few rows with B row-major: reads B once, row by row, and accumulates in C, which stays in cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import memref, vector
from buddy.compiler.passes.kernels.arithmetic import multiply_add
from buddy.compiler.passes.kernels.emit import Index
from buddy.compiler.passes.kernels.epilogue import KernelResults
from buddy.compiler.passes.kernels.gemm.base import GemmKernel


class StreamedRows(GemmKernel):
    """Sums `block.columns` columns of C at a time in a private buffer, `block.depth` rows of B at once."""

    def emit(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.n.size]
        blocks = [*(1 for _ in self.c.outer), self.block.columns]
        self.e.parallel_blocks(sizes, blocks, self._chunk, self.work)

    def _chunk(self, numbers: list[Index], active: list[int]) -> None:
        e, rows, columns = self.e, self.c.m.size, active[-1]
        *outer, number = numbers
        first = e.mul(number, self.block.columns)
        place = self.place(outer, 0, first)
        # Stores to rows that are a page apart would stall each other.
        buffer, sums = self.partial_sums(rows, self.block.columns + self.lanes)
        self.move(rows, columns, self.results, place, sums, sums.origin)
        self._add_rows(self.start(0, outer), e.add(self.start(1, outer), first), sums, columns)
        self.move(rows, columns, sums, sums.origin, self.results, place)
        memref.dealloc(buffer)

    def _add_rows(self, a: Index, b: Index, sums: KernelResults, columns: int) -> None:
        """Adds `block.depth` rows of B at once, then the remaining ones."""
        size, depth = self.c.k[0].size, self.block.depth
        whole = size // depth * depth

        def rows(k: Index, _: list[Any], count: int = depth) -> Sequence[Any]:
            self._add(a, b, k, count, sums, columns)
            return ()

        self.e.loop(0, whole, depth, rows)
        self.e.loop(whole, size, 1, lambda k, _: rows(k, [], 1))

    def _add(self, a: Index, b: Index, k: Index, count: int, sums: KernelResults, columns: int) -> None:
        e, loop = self.e, self.c.k[0]
        here = e.add(a, e.mul(k, loop.strides[0]))
        starts = [e.add(b, e.mul(e.add(k, i), loop.strides[1])) for i in range(count)]
        factors = [[self._factor(here, row, i) for i in range(count)] for row in range(self.c.m.size)]

        def one(column: Index, active: int) -> None:
            others = [self.factor(1, e.load(self.b, e.add(at, column), self.lanes, active)) for at in starts]
            for row, of_row in enumerate(factors):
                place = sums.advance(sums.advance(sums.origin, self.m_loop, row), self.n_loop, column)
                total = sums.initial(place, 0, active)
                for factor, other in zip(of_row, others, strict=True):
                    total = multiply_add(factor, other, total)
                sums.finish(total, place, 0, active)

        self.vectors(columns, one)

    def _factor(self, a: Index, row: int, step: int) -> Any:
        """Loads an element of A into all lanes, `row` rows and `step` steps of K from `a`."""
        offset = self.e.add(a, row * self.c.m.strides[0] + step * self.c.k[0].strides[0])
        return vector.broadcast(self.vector, self.factor(0, self.e.load_scalar(self.a, offset)))
