"""The register-blocked kernel that copies rows of A and panels of B: for a large A that is read across its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.passes.kernels.emit import Index, ceil_div, for_blocks, round_up
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets
from buddy.compiler.passes.kernels.gemm.kernel import BlockedGemm, Range, Tile
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Panels, pack_panel


class PackedGemm(BlockedGemm):
    """Copies a chunk of rows of A, block by block, then multiplies it with all panels of B, each copied before its use.

    The copy of a block is [k][row], with rows padded to whole vectors. It replaces `a` while an iteration is emitted.
    """

    def emit(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.m.size, self.c.n.size]
        blocks = [*(1 for _ in self.c.outer), self.block.chunk, self.block.strip]
        self.e.parallel_blocks(sizes, blocks, self._emit_iteration, self.work)

    def _emit_iteration(self, numbers: list[Index], active: list[int]) -> None:
        """Emits the tile of C for one iteration of the outer loop: a chunk of rows by a strip of columns."""
        e, c, block, source = self.e, self.c, self.block, self.a
        *outer, chunk, strip = numbers
        *_, rows, columns = active
        row, column = e.mul(chunk, block.chunk), e.mul(strip, block.strip)
        a_start = e.add(self.start(0, outer), e.mul(row, c.m.strides[0]))
        b_start, offsets = self._unpacked_start(outer, column), self.result_offsets(outer, row, column)
        self.a = self._allocate(ceil_div(rows, block.rows) * self._row_panels.panel_elements)
        panel = self._allocate(self.panels.panel_elements)

        def multiply(results: KernelResults, origin: ResultOffsets, k_range: Range | None) -> None:
            self._copy_rows(source, a_start, rows, k_range)
            self._emit_panels(Tile(0, 0, origin, rows, columns), b_start, panel, results, k_range)

        c_sums = self.results.adding_to_c()
        if not block.blocks_k(c):
            multiply(self.results, offsets, None)
        elif c_sums is not None:
            multiply(self.results, offsets, (0, block.depth))
            self._over_k_blocks(block.depth, functools.partial(multiply, c_sums, offsets[-1:]))
        else:
            buffer, sums = self.allocate_sums(rows, columns)
            self.move(rows, columns, self.results, offsets, sums, sums.origin)
            self._over_k_blocks(0, functools.partial(multiply, sums, sums.origin))
            self.move(rows, columns, sums, sums.origin, self.results, offsets)
            memref.dealloc(buffer)
        memref.dealloc(panel)
        memref.dealloc(self.a)
        self.a = source

    def _over_k_blocks(self, first: int, body: Callable[[Range], None]) -> None:
        """Emits `body` for each block of K from step `first` on."""
        e, size = self.e, self.c.k[0].size

        def emit_block(lower: Index) -> None:
            body((lower, e.minimum(e.add(lower, self.block.depth), size)))

        e.for_each(first, size, self.block.depth, emit_block)

    def _allocate(self, elements: int) -> ir.Value:
        return memref.alloc(self.scratch_type(elements), [], [], alignment=ALIGNMENT)

    @property
    def panels(self) -> Panels:
        return self._for_block_of_k(super().panels)

    @property
    def _row_panels(self) -> Panels:
        """Returns the layout of the copy of A: a panel for each block of rows, whose columns are the rows of A."""
        (k,), width = self.c.k, round_up(self.block.rows, self.lanes)
        rows = (self.c.m.size, self.c.m.strides[0])
        return self._for_block_of_k(Panels((), rows, ((k.size, k.strides[0]),), width, self.lanes, self.c.unsigned[0]))

    def _for_block_of_k(self, panels: Panels) -> Panels:
        """Returns `panels` with the steps of one block of K. The panels of all blocks have this layout."""
        ((_, stride),) = panels.k
        return replace(panels, k=((self.block.depth, stride),))

    def _copy_rows(self, source: ir.Value, start: Index, rows: int, k_range: Range | None) -> None:
        """Copies `rows` rows of the flat A, from offset `start`, over the steps of K in `k_range` (`None`: all)."""
        e, panels = self.e, self._row_panels

        def copy_block(number: Index, active: int) -> None:
            first = e.add(start, e.mul(number, self.block.rows * self.c.m.strides[0]))
            target = e.add(e.mul(number, panels.panel_elements), self._panel_origin(k_range, panels.columns))
            pack_panel(e, panels, source, first, self.a, target, active, k_range)

        for_blocks(e, rows, self.block.rows, copy_block)

    def _panel_origin(self, k_range: Range | None, columns: int) -> Index:
        """Returns the offset of step 0 of K in a panel that begins with the first step in `k_range`."""
        return 0 if k_range is None else self.e.mul(k_range[0], -columns)

    def _emit_panels(
        self, tile: Tile, b_start: Index, panel: ir.Value, results: KernelResults, k_range: Range | None
    ) -> None:
        """Emits the tile panel by panel, each copied to `panel`, over the steps of K in `k_range` (`None`: all)."""
        e, columns, step = self.e, self.block.columns, self.c.n.strides[1]
        origin = self._panel_origin(k_range, columns)

        def emit_panel(number: Index, active: int) -> None:
            column = e.mul(number, columns)
            pack_panel(e, self.panels, self.b, e.add(b_start, e.mul(column, step)), panel, origin, active, k_range)
            panel_tile = replace(
                tile,
                a=self._panel_origin(k_range, self._row_panels.columns),
                b=origin,
                offsets=results.advance(tile.offsets, self.n_loop, column),
                columns=active,
            )
            if k_range is None:
                self.emit_finished_blocks(panel_tile, panel)
            else:
                self.emit_row_blocks(panel_tile, panel, results, k_range)

        for_blocks(e, tile.columns, columns, emit_panel)

    def _start_of_rows(self, start: Index, number: Index, row: Index) -> Index:
        return self.e.add(start, self.e.mul(number, self._row_panels.panel_elements))

    @property
    def _row_step(self) -> int:
        return 1

    def _a_strides(self) -> list[int]:
        return [self._row_panels.columns]

    def _prefetches_rows(self, tile: Tile, k_range: Range | None) -> bool:
        return False
