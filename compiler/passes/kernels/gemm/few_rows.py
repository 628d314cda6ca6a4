"""The base class of the matrix-multiply kernels, and the kernels for few rows: dot products, streamed rows of B."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from buddy.compiler.mlir.bindings import ir, memref, vector
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.contraction import (
    Contraction,
    byte_width,
    convert_elements,
    emit_add,
    emit_multiply_add,
)
from buddy.compiler.passes.kernels.dot_instructions import WORD_BYTES
from buddy.compiler.passes.kernels.emit import (
    Index,
    KernelEmitter,
    estimate_nanoseconds,
    for_blocks,
    reduce_lanes,
    round_up,
)
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets, ResultSpec
from buddy.compiler.passes.kernels.matrix_copies import copy_rows
from buddy.compiler.passes.kernels.packing import ALIGNMENT
from buddy.compiler.support.target import CACHE_LINE

# With at most this many rows, a product may take as long as reading B from memory.
_MAX_MEMORY_BOUND_ROWS = 8


class GemmKernel:
    """Emits one contraction of the flat operands `a` and `b`. Offsets are in elements.

    Attributes: `c` is the contraction, whose stride of A changes with a copy of A; `block` the blocking; `vector` and
    `element` the types of a vector and of an element of sums. `m_loop` and `n_loop` are the numbers of the loops over
    rows and columns in `KernelResults.advance`.
    """

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        results: KernelResults,
        contraction: Contraction,
        blocking: GemmBlocking,
    ) -> None:
        self.e, self.a, self.b, self.results = e, a, b, results
        self.c, self.block, self.lanes = contraction, blocking, blocking.lanes
        self.vector = results.vector
        self.element = self.vector.element_type
        self.m_loop, self.n_loop = len(contraction.outer), len(contraction.outer) + 1

    def emit(self) -> None:
        """Emits the contraction at the insertion point."""
        raise NotImplementedError

    @contextmanager
    def copied_a(self) -> Iterator[None]:
        """Emits a copy of A, which replaces A for the ops that are emitted in the `with` block."""
        a, contraction = self.a, self.c
        self.a, self.c = copy_rows(
            self.e, a, contraction, self.lanes, self.copied_element_type(), self.copied_rows, self.block.depth_multiple,
            self.convert_a,
        )  # fmt: skip
        yield
        memref.dealloc(self.a)
        self.a, self.c = a, contraction

    def copied_element_type(self) -> ir.Type:
        """Returns the type of the elements of a copy of A."""
        return self.element

    @property
    def copied_rows(self) -> int:
        """Returns the rows of a copy of A, for each iteration of the outer loops."""
        return self.c.m.size

    def convert_a(self, value: ir.Value) -> ir.Value:
        """Converts a scalar or vector of A to elements of its copy."""
        return convert_elements(value, self.copied_element_type(), self.c.unsigned[0])

    def to_accumulator(self, operand: int, value: ir.Value) -> ir.Value:
        """Converts elements of A (0) or B (1) to the accumulator type."""
        return convert_elements(value, self.element, self.c.unsigned[operand])

    def start(self, operand: int, outer: Sequence[Index]) -> Index:
        """Returns the offset of A (0) or B (1) for one iteration of the outer loops."""
        return self.e.dot(outer, [loop.strides[operand] for loop in self.c.outer])

    def result_offsets(self, outer: Sequence[Index], row: Index, column: Index) -> ResultOffsets:
        """Returns the offsets of the results at `row` and `column`, for one iteration of the outer loops."""
        offsets = self.results.origin
        for loop, index in enumerate([*outer, row, column]):
            offsets = self.results.advance(offsets, loop, index)
        return offsets

    @property
    def work(self) -> float:
        """Returns a rough time on one thread in nanoseconds: with few rows, the time to read B counts too."""
        iterations = math.prod(loop.size for loop in self.c.outer)
        b_bytes = iterations * self.c.n.size * self.c.depth * byte_width(self.c.input_elements[1])
        return estimate_nanoseconds(self.c.flops, b_bytes if self.c.m.size <= _MAX_MEMORY_BOUND_ROWS else 0)

    def allocate_sums(self, rows: int, columns: int) -> tuple[ir.Value, KernelResults]:
        """Allocates a buffer of `rows` x `columns` sums; returns it with its accesses. The caller frees the buffer.

        Rows have room for whole vectors, which are loaded and stored as such.
        """
        columns = round_up(columns, self.lanes)
        buffer = memref.alloc(self.scratch_type(rows * columns), [], [], alignment=ALIGNMENT)
        spec = ResultSpec((*(0 for _ in self.c.outer), columns, 1), accumulate=True, padded=True)
        return buffer, KernelResults(self.e, spec, [buffer], self.lanes, self.element)

    def move(
        self,
        rows: int,
        columns: int,
        source: KernelResults,
        start: ResultOffsets,
        target: KernelResults,
        target_start: ResultOffsets,
    ) -> None:
        """Emits loops that pass `rows` x `columns` sums from `source.initial` to `target.finish`.

        `start` and `target_start` are the offsets of the first sum in `source` and `target`.
        """
        # (column, number of active lanes) of each vector of a row.
        row_vectors = [(column, columns - column) for column in range(0, columns, self.lanes)]
        # Vectors are finished in pairs: if their number in a row is odd, two rows at once.
        rows_at_once = 2 if target.in_pairs and len(row_vectors) % 2 else 1

        def move_vectors(starts: list[tuple[ResultOffsets, ResultOffsets]], vectors: list[tuple[int, int]]) -> None:
            """Moves `vectors` of each row; `starts` has the offsets of the rows in `source` and `target`."""
            sums = [source.initial(offsets, *vector_) for offsets, _ in starts for vector_ in vectors]
            accesses = [(offsets, *vector_) for _, offsets in starts for vector_ in vectors]
            target.finish_all([(value, *access) for value, access in zip(sums, accesses, strict=True)])

        def move_rows(number: Index, count: int) -> None:
            numbers = [self.e.add(self.e.mul(number, rows_at_once), i) for i in range(count)]
            starts = [
                (source.advance(start, self.m_loop, row), target.advance(target_start, self.m_loop, row))
                for row in numbers
            ]
            if target.in_pairs:
                move_vectors(starts, row_vectors)
                return

            def move_vector(column: Index, active: int) -> None:
                ((offsets, target_offsets),) = starts
                offsets = source.advance(offsets, self.n_loop, column)
                move_vectors([(offsets, target.advance(target_offsets, self.n_loop, column))], [(0, active)])

            self.for_each_vector(columns, move_vector)

        for_blocks(self.e, rows, rows_at_once, move_rows)

    def for_each_vector(self, columns: int, body: Callable[[Index, int], None]) -> None:
        """Emits `body(column, active)` for each vector of `columns` columns."""
        for_blocks(self.e, columns, self.lanes, lambda number, active: body(self.e.mul(number, self.lanes), active))

    def zero(self) -> ir.Value:
        """Returns a vector of sums that are zero."""
        return self.e.zero(self.vector)

    def scratch_type(self, elements: int) -> ir.Type:
        """Returns the type of a buffer of `elements` sums."""
        return ir.MemRefType.get([elements], self.element)


# ---- dot products ----------------------------------------------------------------------------------------------------

# Vectors of sums that are computed at once: four hide the latency of a multiply-add, more keep several loads in flight.
_SUMS = 8
# The distance of prefetches in a column of narrow elements of B, and from the end of one column into the next.
# Processors prefetch within a page of 4 KiB, of which such a column is only one or two.
_PREFETCH_BYTES = 1024
# Columns of B that one iteration of the outer loop reads, one after the other, which is the fastest order.
_COLUMNS = 64


class DotProducts(GemmKernel):
    """The kernel for columns of B that are contiguous along K: reads each once and multiplies it with all rows of A."""

    def emit(self) -> None:
        # Rows of A are read again for each column of B, so narrow elements are widened once before.
        is_narrow = byte_width(self.c.input_elements[0]) < byte_width(self.c.element)
        with self.copied_a() if is_narrow else nullcontext():
            self._emit_blocks()

    def _emit_blocks(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.n.size]
        blocks = [*(1 for _ in self.c.outer), _COLUMNS]
        self.e.parallel_blocks(sizes, blocks, self._emit_columns, self.work)

    def _emit_columns(self, numbers: list[Index], active: list[int]) -> None:
        """Emits a block of columns: stores dot products to a private buffer, then vectors of them to C."""
        e, rows, columns = self.e, self.c.m.size, active[-1]
        *outer, number = numbers
        first = e.mul(number, _COLUMNS)
        a, b = self.start(0, outer), e.add(self.start(1, outer), e.mul(first, self.c.n.strides[1]))
        buffer = memref.alloc(self.scratch_type(rows * _COLUMNS), [], [], alignment=ALIGNMENT)

        def emit_column(index: Index) -> None:
            totals = self._dot_products(a, e.add(b, e.mul(index, self.c.n.strides[1])))
            for row, total in enumerate(totals):
                e.store_scalar(total, buffer, e.add(row * _COLUMNS, index))

        e.for_each(0, columns, 1, emit_column)
        self._store_totals(buffer, self.result_offsets(outer, 0, first), columns)
        memref.dealloc(buffer)

    def _dot_products(self, a: Index, b: Index) -> list[ir.Value]:
        """Returns the dot products of each row of A with one column of B; `a` and `b` are the offsets of both."""
        e, rows, lanes, size = self.e, self.c.m.size, self.lanes, self.c.k[0].size
        width = max(1, min(_SUMS // rows, size // lanes))  # vectors of the column at once
        block, vectors_end = width * lanes, size // lanes * lanes
        blocks_end = size // block * block

        def add_vectors(
            k: Index, sums: list[ir.Value], count: int = width, active: int | None = None
        ) -> Sequence[ir.Value]:
            return self._add_products(a, b, k, sums, count, active)

        def add_block(k: Index, sums: list[ir.Value]) -> Sequence[ir.Value]:
            self._prefetch(e.add(b, k), block)
            return add_vectors(k, sums)

        sums = e.loop(0, blocks_end, block, add_block, [self.zero()] * (rows * width))
        sums = e.loop(blocks_end, vectors_end, lanes, lambda k, carried: add_vectors(k, carried, 1), sums)
        if vectors_end < size:
            sums = list(add_vectors(vectors_end, sums, 1, size - vectors_end))
        return [self._total(sums[row * width : (row + 1) * width]) for row in range(rows)]

    def _add_products(
        self, a: Index, b: Index, k: Index, sums: list[ir.Value], count: int, active: int | None
    ) -> list[ir.Value]:
        """Adds the products of `count` vectors of the column, from `k` on, with those of each row.

        Only the first `active` lanes are loaded (`None`: all). Returns the new sums.
        """
        e, rows, lanes = self.e, self.c.m.size, self.lanes
        new_sums, width = list(sums), len(sums) // rows
        for i in range(count):
            offset = e.add(k, i * lanes)
            column = self.to_accumulator(1, e.load(self.b, e.add(b, offset), lanes, active))
            for row in range(rows):
                row_offset = e.add(a, e.add(offset, row * self.c.m.strides[0]))
                row_vector = self.to_accumulator(0, e.load(self.a, row_offset, lanes, active))
                new_sums[row * width + i] = emit_multiply_add(row_vector, column, new_sums[row * width + i])
        return new_sums

    def _prefetch(self, offset: Index, count: int) -> None:
        """Prefetches `count` narrow elements of B, `_PREFETCH_BYTES` after `offset`: columns are adjacent in memory."""
        width = byte_width(self.c.input_elements[1])
        if width >= WORD_BYTES:
            return
        for start in range(0, count * width, CACHE_LINE):
            index = self.e.value(self.e.add(offset, (_PREFETCH_BYTES + start) // width))
            memref.prefetch(self.b, [index], False, 3, True)

    def _total(self, sums: list[ir.Value]) -> ir.Value:
        """Returns the sum of vectors, which are added in pairs, and of the lanes of the result."""
        while len(sums) > 1:
            pairs = [emit_add(x, y) for x, y in zip(sums[::2], sums[1::2], strict=False)]
            sums = pairs + sums[len(pairs) * 2 :]
        return reduce_lanes(sums[0], emit_add)

    def _store_totals(self, buffer: ir.Value, start: ResultOffsets, columns: int) -> None:
        """Adds the sums in `buffer` to their initial values, and stores them as results, from `start` on."""
        e, lanes = self.e, self.lanes
        for row in range(self.c.m.size):
            offsets = self.results.advance(start, self.m_loop, row)
            for column in range(0, columns, lanes):
                active = columns - column
                totals = e.load(buffer, row * _COLUMNS + column, lanes)
                if self.results.has_initial_sums:
                    totals = emit_add(self.results.initial(offsets, column, active), totals)
                self.results.finish(totals, offsets, column, active)


# ---- streamed rows of B ----------------------------------------------------------------------------------------------


class StreamedRows(GemmKernel):
    """The kernel for rows of B that are contiguous and long: reads `block.depth` of them at once.

    Sums of `block.columns` columns of C are in a private buffer meanwhile.
    """

    def emit(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.n.size]
        blocks = [*(1 for _ in self.c.outer), self.block.columns]
        self.e.parallel_blocks(sizes, blocks, self._emit_columns, self.work)

    def _emit_columns(self, numbers: list[Index], active: list[int]) -> None:
        """Emits a block of columns: of each row of C, and over all of K."""
        e, rows, columns = self.e, self.c.m.size, active[-1]
        *outer, number = numbers
        first = e.mul(number, self.block.columns)
        start = self.result_offsets(outer, 0, first)
        # Rows of the buffer get an extra vector: stores to rows at a distance of a page would stall each other.
        buffer, sums = self.allocate_sums(rows, self.block.columns + self.lanes)
        self.move(rows, columns, self.results, start, sums, sums.origin)
        self._add_all_rows(self.start(0, outer), e.add(self.start(1, outer), first), sums, columns)
        self.move(rows, columns, sums, sums.origin, self.results, start)
        memref.dealloc(buffer)

    def _add_all_rows(self, a: Index, b: Index, sums: KernelResults, columns: int) -> None:
        """Adds the products with all rows of B to `sums`: `block.depth` rows at once, then single rows."""
        size, depth = self.c.k[0].size, self.block.depth
        blocks_end = size // depth * depth

        self.e.for_each(0, blocks_end, depth, lambda k: self._add_rows(a, b, k, depth, sums, columns))
        self.e.for_each(blocks_end, size, 1, lambda k: self._add_rows(a, b, k, 1, sums, columns))

    def _add_rows(self, a: Index, b: Index, k: Index, count: int, sums: KernelResults, columns: int) -> None:
        """Adds the products with `count` rows of B, from row `k` on, to `sums`."""
        e, loop = self.e, self.c.k[0]
        a_start = e.add(a, e.mul(k, loop.strides[0]))
        row_starts = [e.add(b, e.mul(e.add(k, i), loop.strides[1])) for i in range(count)]
        a_elements = [[self._broadcast_a(a_start, row, i) for i in range(count)] for row in range(self.c.m.size)]

        def add_vector(column: Index, active: int) -> None:
            b_vectors = [
                self.to_accumulator(1, e.load(self.b, e.add(start, column), self.lanes, active)) for start in row_starts
            ]
            for row, row_elements in enumerate(a_elements):
                offsets = sums.advance(sums.advance(sums.origin, self.m_loop, row), self.n_loop, column)
                total = sums.initial(offsets, 0, active)
                for element, b_vector in zip(row_elements, b_vectors, strict=True):
                    total = emit_multiply_add(element, b_vector, total)
                sums.finish(total, offsets, 0, active)

        self.for_each_vector(columns, add_vector)

    def _broadcast_a(self, a: Index, row: int, step: int) -> ir.Value:
        """Loads the element of A that is `row` rows and `step` steps of K after offset `a` into all lanes."""
        offset = self.e.add(a, row * self.c.m.strides[0] + step * self.c.k[0].strides[0])
        return vector.broadcast(self.vector, self.to_accumulator(0, self.e.load_scalar(self.a, offset)))
