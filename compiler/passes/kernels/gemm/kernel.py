"""The register-blocked matrix-multiply kernel: how it divides C and K into blocks, and what it prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace

from buddy.compiler.mlir.bindings import arith, ir, memref, vector
from buddy.compiler.passes.kernels.access import row_major_strides
from buddy.compiler.passes.kernels.blocking import crosses_rows_of_a
from buddy.compiler.passes.kernels.contraction import byte_width, emit_multiply_add
from buddy.compiler.passes.kernels.emit import Index, ceil_div, for_blocks
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets
from buddy.compiler.passes.kernels.gemm.few_rows import GemmKernel
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Panels, pack_panel, panels_of
from buddy.compiler.support.target import CACHE_LINE

Range = tuple[Index, Index]  # lower and upper bound of steps of K, which has one loop

# Steps of K whose elements of A are prefetched together: a row has a cache line of f32.
_LINE = 16
# With at least this many steps of K, rows of A are prefetched: the rows of the next block start far apart, and the
# hardware prefetcher detects each of them late.
_MIN_PREFETCHED_DEPTH = 256

# The minimum blocks of rows that share a widened panel: fewer blocks each widen the panel themselves.
_MIN_WIDENED_BLOCKS = 4

# An epilogue is unrolled after a block if it has at most this many ops for all vectors; a longer one becomes a loop
# over the block's vectors.
_MAX_UNROLLED_OPS = 128


@dataclass(frozen=True)
class Tile:
    """`rows` x `columns` elements of C: the part that one iteration of the outer loop computes, or a block of it.

    `a` and `b` are the offsets of the tile's first elements in A and in B, or in the current panel of B; `offsets` are
    those of its results. `first_row_block` is the number of the tile's first block of rows.

    What is prefetched while the tile is computed: at offset `next_panel` of B the next packed panel, or the columns
    from which it is packed; at offset `next_columns` the next columns of a row-major B. `None`: nothing.
    """

    a: Index
    b: Index
    offsets: ResultOffsets
    rows: int
    columns: int
    next_panel: Index | None = None
    next_columns: Index | None = None
    first_row_block: Index = 0


class BlockedGemm(GemmKernel):
    """Computes C in blocks of `rows x columns`.

    Reads B in place, from panels that were packed before the call, or from a panel that it packs.
    """

    @property
    def panels(self) -> Panels:
        """Returns the panels of B that the kernel reads, if it reads panels."""
        return panels_of(self.c, self.block)

    def emit(self) -> None:
        with self.copied_a() if self.block.copies_a else nullcontext():
            self._emit_blocks()

    def _emit_blocks(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.n.size, self.c.m.size]
        blocks = [*(1 for _ in self.c.outer), self.block.columns, self.block.chunk or max(1, self.c.m.size)]
        self.e.parallel_blocks(sizes, blocks, self._emit_iteration, self.work)

    def _emit_iteration(self, numbers: list[Index], active: list[int]) -> None:
        """Emits the tile of C for one iteration of the outer loop: a chunk of rows by the columns of a panel."""
        e, c, block = self.e, self.c, self.block
        *outer, panel, chunk = numbers
        *_, columns, rows = active
        row, column = e.mul(chunk, block.chunk), e.mul(panel, block.columns)
        a = e.add(self.start(0, outer), e.mul(row, c.m.strides[0]))
        first = e.mul(chunk, block.chunk // block.rows)
        tile = Tile(a, 0, self.result_offsets(outer, row, column), rows, columns, first_row_block=first)
        if block.b_source == "packed":
            start = self._packed_start(outer)
            if self._widens_panels:
                self._emit_on_widened_panel(tile, e.add(start, e.mul(panel, self.panels.panel_elements)))
                return
            b, next_panel = e.add(start, e.mul(panel, self.panels.panel_elements)), self._next_panel(start, panel)
            self._emit_over_depth(replace(tile, b=b, next_panel=next_panel), self.b, None)
            return
        b = self._unpacked_start(outer, column)
        tile = replace(tile, next_columns=self._next_columns(b), next_panel=self._next_unpacked_panel(b))
        if block.b_source == "direct":
            self._emit_over_depth(replace(tile, b=b), self.b, None)
        else:
            self._emit_on_private_panel(tile, b)

    def _unpacked_start(self, outer: list[Index], column: Index) -> Index:
        """Returns the offset of `column` in an unpacked B."""
        return self.e.add(self.start(1, outer), self.e.mul(column, self.c.n.strides[1]))

    def _packed_start(self, outer: list[Index]) -> Index:
        """Returns the offset of the first panel in a packed B."""
        used = [index for index, loop in zip(outer, self.c.outer, strict=True) if loop.used[1]]
        return self.e.dot(used, self.panels.outer_strides)

    def _next_columns(self, b: Index) -> Index | None:
        """Returns the offset of the next columns after offset `b`, if B is row-major; otherwise `None`."""
        return self.e.add(b, self.block.columns) if self.c.n.strides[1] == 1 else None

    def _next_unpacked_panel(self, b: Index) -> Index | None:
        """Returns the offset of the columns from which the next panel after the one at `b` is packed.

        They are prefetched while the current panel is in use; otherwise packing would wait for memory. Returns `None`
        if B is not a dense column-major matrix, or if panels are not prefetched.
        """
        is_dense = len(self.c.k) == 1 and self.c.k[0].strides[1] == 1 and self.c.n.strides[1] == self.c.k[0].size
        if self.block.b_source != "panel" or not is_dense or not self._prefetches_panels():
            return None
        return self.e.add(b, self.block.columns * self.c.n.strides[1])

    def _prefetches_panels(self) -> bool:
        """True if there is enough work on a panel, over all of K, to prefetch the next one from memory."""
        return len(self.c.k) == 1 and not self.block.blocks_k(self.c) and self.c.m.size > self.block.rows

    def _next_panel(self, start: Index, number: Index) -> Index | None:
        """Returns the offset of the packed panel after panel `number`, or `None` if panels are not prefetched.

        After the last panel, this is a panel for the next iteration of the outer loops, or memory that is prefetched
        but not read.
        """
        if not self._prefetches_panels():
            return None
        return self.e.add(start, self.e.mul(self.e.add(number, 1), self.panels.panel_elements))

    def _emit_on_private_panel(self, tile: Tile, b: Index) -> None:
        """Emits `tile` on a private panel, packed from offset `b` of B."""
        scratch = memref.alloc(self.private_panel_type(), [], [], alignment=ALIGNMENT)
        self._emit_over_depth(tile, scratch, b)
        memref.dealloc(scratch)

    @property
    def _widens_panels(self) -> bool:
        """True if packed panels of narrow elements are widened once, instead of for each block of rows."""
        is_narrow = byte_width(self.c.input_elements[1]) < byte_width(self.c.element)
        return is_narrow and not self.block.dot and self.c.m.size >= _MIN_WIDENED_BLOCKS * self.block.rows

    def _emit_on_widened_panel(self, tile: Tile, start: Index) -> None:
        """Emits `tile` on a copy, in elements of the sums, of the packed panel at offset `start` of B."""
        e, size = self.e, self.panels.panel_elements
        scratch = memref.alloc(self.scratch_type(size), [], [], alignment=ALIGNMENT)

        def widen(offset: Index) -> None:
            e.store(self.to_accumulator(1, e.load(self.b, e.add(start, offset), self.lanes)), scratch, offset)

        e.for_each(0, size, self.lanes, widen)
        self._emit_over_depth(tile, scratch, None)
        memref.dealloc(scratch)

    def private_panel_type(self) -> ir.Type:
        """Returns the type of the buffer for a panel that one iteration packs for itself."""
        depth = self.block.depth if self.block.blocks_k(self.c) else self.c.depth
        return self.scratch_type(depth * self.block.columns)

    # ---- blocks of K -------------------------------------------------------------------------------------------------

    def _emit_over_depth(self, tile: Tile, panel: ir.Value, unpacked: Index | None) -> None:
        """Emits `tile` over all of K, in blocks if necessary.

        Each block of K is packed to `panel` first, from offset `unpacked` of B, unless `unpacked` is `None`.
        """
        if not self.block.blocks_k(self.c):
            if unpacked is not None:
                pack_panel(self.e, self.panels, self.b, unpacked, panel, 0, tile.columns)
            self.emit_finished_blocks(tile, panel)
            return
        buffer, sums = self.allocate_sums(tile.rows, self.block.columns)
        self.move(tile.rows, tile.columns, self.results, tile.offsets, sums, sums.origin)
        # A kernel over the last loop of K alone, in an iteration of its other loops.
        *outer, last = self.c.k
        inner = self if not outer else copy(self)
        inner.c = replace(self.c, k=(last,))

        def emit_step(indices: list[Index]) -> None:
            a = self.e.dot(indices, [loop.strides[0] for loop in outer], tile.a)
            b = None if unpacked is None else self.e.dot(indices, [loop.strides[1] for loop in outer], unpacked)
            inner.emit_blocks_of_k(replace(tile, a=a), panel, b, sums)

        self.e.nest([loop.size for loop in outer], emit_step)
        self.move(tile.rows, tile.columns, sums, sums.origin, self.results, tile.offsets)
        memref.dealloc(buffer)

    def emit_blocks_of_k(self, tile: Tile, panel: ir.Value, unpacked: Index | None, sums: KernelResults) -> None:
        """Emits `tile` over the only loop of K, in blocks, which are added to the buffer `sums`."""
        e, columns = self.e, self.block.columns

        def emit_k_block(lower: Index) -> None:
            block_tile = replace(tile, offsets=sums.origin)
            upper = e.minimum(e.add(lower, self.block.depth), self.c.k[0].size)
            if unpacked is not None:
                # Step `lower` of K is at the start of the panel.
                panel_start = e.mul(lower, -columns)
                pack_panel(e, self.panels, self.b, unpacked, panel, panel_start, tile.columns, (lower, upper))
                block_tile = replace(block_tile, b=panel_start)
            self.emit_row_blocks(block_tile, panel, sums, (lower, upper))

        e.for_each(0, self.c.k[0].size, self.block.depth, emit_k_block)

    def emit_finished_blocks(self, tile: Tile, panel: ir.Value) -> None:
        """Emits all rows over all of K, and finishes each block as soon as it is complete."""
        if self.results.finishing_ops * self.block.rows * self.block.vectors <= _MAX_UNROLLED_OPS:
            self.emit_row_blocks(tile, panel, self.results, None)
            return
        buffer, block_sums = self.allocate_sums(self.block.rows, self.block.columns)
        self.emit_row_blocks(tile, panel, self.results, None, block_sums)
        memref.dealloc(buffer)

    # ---- blocks of rows ----------------------------------------------------------------------------------------------

    def emit_row_blocks(
        self, tile: Tile, panel: ir.Value, results: KernelResults, k_range: Range | None,
        block_sums: KernelResults | None = None,
    ) -> None:  # fmt: skip
        """Emits every block of rows over the steps of K in `k_range` (`None`: all), and finishes it to `results`.

        With `block_sums`, a buffer for one block, the block is stored there, and finished by a loop over its vectors.
        """
        e = self.e

        def emit_rows(number: Index, count: int) -> None:
            row = e.mul(number, self.block.rows)
            block_tile = replace(
                tile,
                a=self._start_of_rows(tile.a, number, row),
                offsets=results.advance(tile.offsets, self.m_loop, row),
                rows=count,
            )
            if tile.next_columns is not None:
                block_tile = replace(block_tile, first_row_block=e.add(tile.first_row_block, number))
            if tile.next_panel is not None:
                prefetched = e.mul(e.add(tile.first_row_block, number), self.prefetched_per_step * self.c.depth)
                block_tile = replace(block_tile, next_panel=e.add(tile.next_panel, prefetched))
            self.emit_block(block_tile, panel, results, k_range, block_sums)

        for_blocks(e, tile.rows, self.block.rows, emit_rows)

    def _start_of_rows(self, start: Index, number: Index, row: Index) -> Index:
        """Returns the offset in A of block `number` of rows, whose first one is `row` rows after offset `start`."""
        return self.e.add(start, self.e.mul(row, self._row_step))

    @property
    def _row_step(self) -> int:
        """Returns the elements of A, or of its copy, between two rows of a block."""
        return self.c.m.strides[0]

    def _a_strides(self) -> list[int]:
        """Returns the stride of A, or of its copy, along each loop of K."""
        return [loop.strides[0] for loop in self.c.k]

    @property
    def prefetched_per_step(self) -> int:
        """Returns the elements of the next panel that a block prefetches per step of K.

        All blocks of rows together prefetch the whole panel.
        """
        return ceil_div(self.block.columns, ceil_div(self.c.m.size, self.block.rows))

    def emit_block(
        self,
        tile: Tile,
        panel: ir.Value,
        results: KernelResults,
        k_range: Range | None,
        block_sums: KernelResults | None,
    ) -> None:
        """Emits one register block over the steps of K in `k_range` (`None`: all), and finishes it to `results`."""
        initial = [results.initial(*access) for access in self._vector_accesses(tile, results)]
        sums = self.accumulate(tile, panel, k_range, initial)
        target, offsets = (results, tile.offsets) if block_sums is None else (block_sums, block_sums.origin)
        accesses = self._vector_accesses(replace(tile, offsets=offsets), target)
        target.finish_all([(value, *access) for access, value in zip(accesses, sums, strict=True)])
        if block_sums is not None:
            self.move(tile.rows, tile.columns, block_sums, block_sums.origin, results, tile.offsets)

    def _vector_accesses(self, tile: Tile, results: KernelResults) -> list[tuple[ResultOffsets, int, int]]:
        """Returns the offsets, column and active lanes of each vector of a tile."""
        return [
            (results.advance(tile.offsets, self.m_loop, row), column, tile.columns - column)
            for row in range(tile.rows)
            for column in range(0, tile.columns, self.lanes)
        ]

    def accumulate(self, tile: Tile, panel: ir.Value, k_range: Range | None, sums: list[ir.Value]) -> list[ir.Value]:
        """Returns the sums of a register block after the steps of K in `k_range` (`None`: all)."""
        e, loops = self.e, self.c.k
        a_strides, b_strides = self._a_strides(), self._b_strides()
        if tile.next_panel is not None or self._prefetches_rows(tile, k_range):
            return self._accumulate_lines(tile, panel, b_strides[0], sums)

        def emit_loops(depth: int, a: Index, b: Index, sums: list[ir.Value]) -> list[ir.Value]:
            if depth == len(loops):
                return self._add_products(a, b, panel, tile, sums)

            def emit_iteration(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
                next_a = e.add(a, e.mul(k, a_strides[depth]))
                return emit_loops(depth + 1, next_a, e.add(b, e.mul(k, b_strides[depth])), carried)

            lower, upper = k_range or (0, loops[depth].size)
            return e.loop(lower, upper, 1, emit_iteration, sums)

        return emit_loops(0, tile.a, tile.b, sums)

    def _b_strides(self) -> list[int]:
        """Returns the stride of B, or of its panel, along each loop of K."""
        if self.block.b_source == "direct":
            return [loop.strides[1] for loop in self.c.k]
        return row_major_strides([loop.size for loop in self.c.k], self.block.columns)

    def _prefetches_rows(self, tile: Tile, k_range: Range | None) -> bool:
        """True if elements of A for the next block are prefetched, because each row, or each step of K, is far away."""
        has_next = len(self.c.k) == 1 and k_range is None and self.c.m.size > 2 * tile.rows
        return has_next and tile.rows == self.block.rows and (self._has_long_rows or crosses_rows_of_a(self.c))

    @property
    def _has_long_rows(self) -> bool:
        """True if A is row-major with long rows."""
        (k,), m = self.c.k, self.c.m
        return k.strides[0] == 1 and k.size >= _MIN_PREFETCHED_DEPTH and m.strides[0] >= k.size

    def _accumulate_lines(self, tile: Tile, panel: ir.Value, b_stride: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Returns the sums over all of K, `_LINE` steps at a time, and prefetches what the next blocks read.

        The prefetches come before all products of these steps. LLVM keeps the order of prefetches and loads: with a
        prefetch in each step of an unrolled loop, it loads several steps before their products, and spills the sums.
        """
        e, size, (a_stride,) = self.e, self.c.k[0].size, self._a_strides()
        prefetches_rows = self._prefetches_rows(tile, None)

        def emit_step(k: Index, carried: list[ir.Value]) -> list[ir.Value]:
            a, b = e.add(tile.a, e.mul(k, a_stride)), e.add(tile.b, e.mul(k, b_stride))
            return self._add_products(a, b, panel, tile, carried)

        def emit_line(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
            if prefetches_rows:
                self._prefetch_next_rows(tile, k)
            if tile.next_panel is not None:
                self._prefetch_next_panel(e.add(tile.next_panel, e.mul(k, self.prefetched_per_step)))
            return e.loop(0, _LINE, 1, lambda i, values: emit_step(e.add(k, i), values), carried)

        sums = e.loop(0, size // _LINE * _LINE, _LINE, emit_line, sums)
        return e.loop(size // _LINE * _LINE, size, 1, emit_step, sums)

    def _prefetch_next_rows(self, tile: Tile, k: Index) -> None:
        """Prefetches the steps `k` to `k + _LINE` of the next block's rows of A, and of the next columns of B."""
        e, rows = self.e, self.block.rows
        if not self._has_long_rows:
            # The other elements of the next block are in the same line as this last one, or as this block's.
            last = e.add(tile.a, 2 * rows - 1)
            for i in range(_LINE):
                self.prefetch(self.a, e.add(last, e.mul(e.add(k, i), self.c.k[0].strides[0])))
            return
        next_rows = e.add(tile.a, rows * self.c.m.strides[0])
        for row in range(rows):
            self.prefetch(self.a, e.add(next_rows, e.add(k, row * self.c.m.strides[0])))
        if tile.next_columns is not None:
            self._prefetch_columns(tile.next_columns, tile.first_row_block, k)

    def _prefetch_next_panel(self, start: Index) -> None:
        """Prefetches the elements of the next panel from `start` on that belong to `_LINE` steps of K."""
        elements = CACHE_LINE // byte_width(self.c.input_elements[1])
        for first in range(0, self.prefetched_per_step * _LINE, elements):
            self.prefetch(self.b, self.e.add(start, first))

    def _prefetch_columns(self, start: Index, block: Index, k: Index) -> None:
        """Prefetches a share of the rows `k` to `k + _LINE` of the next columns of B, which are at offset `start`.

        Each block of rows of C prefetches another share; `block` is its number.
        """
        e, blocks = self.e, ceil_div(self.c.m.size, self.block.rows)
        share = ceil_div(_LINE, blocks)
        share_number = arith.remui(e.value(block), e.value(ceil_div(_LINE, share)))
        first = e.add(k, e.mul(share_number, share))
        for i in range(share):
            row = e.add(start, e.mul(e.add(first, i), self.c.k[0].strides[1]))
            for column in range(0, self.block.columns, _LINE):
                self.prefetch(self.b, e.add(row, column))

    def prefetch(self, source: ir.Value, offset: Index, locality: int = 3) -> None:
        """Prefetches the cache line of an element for reading: to all levels of the cache, or with 2 from L2 on."""
        memref.prefetch(source, [self.e.value(offset)], False, locality, True)

    def _add_products(
        self, a: Index, b_start: Index, panel: ir.Value, tile: Tile, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Returns the sums after one step of K: a rank-one update of the block.

        A zero-padded panel is read in whole vectors.
        """
        e, lanes = self.e, self.lanes
        readable_columns = tile.columns if self.block.b_source == "direct" else self.block.columns
        b_vectors = [
            self.to_accumulator(1, e.load(panel, e.add(b_start, column), lanes, readable_columns - column))
            for column in range(0, tile.columns, lanes)
        ]
        new_sums = []
        for row in range(tile.rows):
            scalar = e.load_scalar(self.a, e.add(a, e.mul(row, self._row_step)))
            element = vector.broadcast(self.vector, self.to_accumulator(0, scalar))
            row_sums = sums[row * len(b_vectors) :]
            new_sums += [emit_multiply_add(element, b, total) for b, total in zip(b_vectors, row_sums, strict=False)]
        return new_sums
