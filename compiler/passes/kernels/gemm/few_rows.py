"""The base of the matrix-multiply kernels, and the kernels of few rows: dot products, and B read once row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir, memref, vector
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.contraction import Contraction, add, bytes_of, converted, multiply_add
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks, nanoseconds, reduce_lanes
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place, ResultSpec
from buddy.compiler.passes.kernels.packing import ALIGNMENT


class GemmKernel:
    """One contraction on flat operands `a` and `b`. Offsets are in elements."""

    def __init__(
        self, e: KernelEmitter, a: Any, b: Any, results: KernelResults, contraction: Contraction, blocking: GemmBlocking
    ) -> None:
        self.e, self.a, self.b, self.results = e, a, b, results
        self.c, self.block, self.lanes = contraction, blocking, blocking.lanes
        self.vector = results.vector
        self.element = self.vector.element_type
        self.m_loop, self.n_loop = len(contraction.outer), len(contraction.outer) + 1

    def emit(self) -> None:
        raise NotImplementedError

    def factor(self, operand: int, value: Any) -> Any:
        """Converts elements of A (0) or B (1) to the accumulator type."""
        return converted(value, self.element, self.c.unsigned[operand])

    def start(self, operand: int, outer: Sequence[Index]) -> Index:
        """Returns the offset of A (0) or B (1) for one value of the outer loops."""
        return self.e.dot(outer, [loop.strides[operand] for loop in self.c.outer])

    def place(self, outer: Sequence[Index], row: Index, column: Index) -> Place:
        """Returns the offset of results for one value of the outer loops, from `row` and `column` on."""
        place = self.results.origin
        for loop, index in enumerate([*outer, row, column]):
            place = self.results.advance(place, loop, index)
        return place

    @property
    def work(self) -> float:
        """Returns a rough time on one thread in nanoseconds."""
        outer = 1
        for loop in self.c.outer:
            outer *= loop.size
        of_b = outer * self.c.n.size * self.c.depth * bytes_of(self.c.factor_element)
        return nanoseconds(self.c.flops, of_b if self.c.m.size <= 8 else 0)

    def partial_sums(self, rows: int, columns: int) -> tuple[Any, KernelResults]:
        """Returns a new buffer of `rows` x `columns` sums, and access to it; the caller frees it."""
        buffer = memref.alloc(self.scratch_type(rows * columns), [], [], alignment=ALIGNMENT)
        spec = ResultSpec((*(0 for _ in self.c.outer), columns, 1), accumulate=True)
        return buffer, KernelResults(self.e, spec, [buffer], self.lanes, self.element)

    def move(
        self, rows: int, columns: int, source: KernelResults, start: Place, target: KernelResults, there: Place
    ) -> None:
        """Moves `rows` x `columns` sums from `source` at `start` to `target` at `there`, which finishes them."""

        def row(index: Index, _: list[Any]) -> Sequence[Any]:
            here, to = source.advance(start, self.m_loop, index), target.advance(there, self.m_loop, index)

            def one(column: Index, active: int) -> None:
                at, onto = source.advance(here, self.n_loop, column), target.advance(to, self.n_loop, column)
                target.finish(source.initial(at, 0, active), onto, 0, active)

            self.vectors(columns, one)
            return ()

        self.e.loop(0, rows, 1, row)

    def vectors(self, columns: int, body: Callable[[Index, int], None]) -> None:
        """Emits `body(column, active)` for each vector of `columns` columns."""
        for_blocks(self.e, columns, self.lanes, lambda number, active: body(self.e.mul(number, self.lanes), active))

    def zero(self) -> Any:
        return self.e.zero(self.vector)

    def scratch_type(self, elements: int) -> Any:
        return ir.MemRefType.get([elements], self.element)


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
