"""Kernels that multiply narrow elements by dot-product instructions: on vectors, and on the tiles of AMX."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from buddy.compiler.mlir.bindings import arith, ir, memref, vector
from buddy.compiler.passes.kernels.contraction import byte_width, convert_elements, emit_add
from buddy.compiler.passes.kernels.dot_instructions import (
    OFFSET,
    TILE_ROWS,
    DotInstruction,
    as_elements,
    as_words,
)
from buddy.compiler.passes.kernels.emit import Index, ceil_div, round_up
from buddy.compiler.passes.kernels.epilogue import KernelResults
from buddy.compiler.passes.kernels.gemm.kernel import BlockedGemm, Range, Tile
from buddy.compiler.passes.kernels.packing import ALIGNMENT
from buddy.compiler.support.target import CACHE_LINE


class DotGemm(BlockedGemm):
    """Computes C in register blocks, by an instruction that multiplies groups of elements along K.

    B is in panels: a row of a panel has one group of each column, and the elements of a group are adjacent. A is copied
    first if it is not contiguous along K, or if its elements must be converted.
    """

    @property
    def instruction(self) -> DotInstruction:
        assert self.block.instruction is not None
        return self.block.instruction

    def copied_element_type(self) -> ir.Type:
        return ir.Type.parse(self.instruction.element)

    def convert_a(self, value: ir.Value) -> ir.Value:
        if not self.instruction.needs_offset(self.c.unsigned):
            return super().convert_a(value)
        # Inverts the highest bit, which adds OFFSET; a signed byte with only this bit is -OFFSET.
        return arith.xori(value, self.e.splat(value.type, -OFFSET))

    def private_panel_type(self) -> ir.Type:
        return ir.MemRefType.get([self.panels.panel_elements], ir.Type.parse(self.c.input_elements[1]))

    # ---- sums of B's columns -----------------------------------------------------------------------------------------

    def emit_row_blocks(
        self, tile: Tile, panel: ir.Value, results: KernelResults, k_range: Range | None,
        block_sums: KernelResults | None = None,
    ) -> None:  # fmt: skip
        """Emits the blocks as the base class does; before them, the column sums of B if all blocks share these."""
        if not self.block.shares_column_sums:
            super().emit_row_blocks(tile, panel, results, k_range, block_sums)
            return
        self._column_corrections = memref.alloc(self.scratch_type(self.block.columns), [], [], alignment=ALIGNMENT)
        self._store_column_corrections(tile, panel, k_range)
        super().emit_row_blocks(tile, panel, results, k_range, block_sums)
        memref.dealloc(self._column_corrections)

    def _store_column_corrections(self, tile: Tile, panel: ir.Value, k_range: Range | None) -> None:
        """Stores `OFFSET` times the sum of each column of B, which the blocks subtract from their sums.

        `convert_a` adds `OFFSET` to each element of A, which increases the sums by this amount.
        """
        e, group, (k,), lanes = self.e, self.block.group, self.c.k, self.lanes
        vectors = ceil_div(tile.columns, lanes)
        lower, upper = k_range or (0, round_up(k.size, group))  # zeros at the end of a panel add nothing
        depth = upper - lower if isinstance(lower, int) and isinstance(upper, int) else group
        # Several sums for each column hide the latency of an addition; one sum if the range is not constant.
        count = next(n for n in (4, 2, 1) if depth % (n * group) == 0)

        def emit_step(step: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
            starts = [e.add(tile.b, e.mul(e.add(step, i * group), self.block.columns)) for i in range(count)]
            rows = [self._load_row_of_b(panel, start, tile.columns) for start in starts]
            return self._add_group_sums(carried, [value for row in rows for value in row])

        sums = e.loop(lower, upper, count * group, emit_step, [self.zero()] * (count * vectors))
        for i in range(vectors):
            total = functools.reduce(arith.addi, sums[i::vectors])
            e.store(arith.muli(total, e.splat(self.vector, OFFSET)), self._column_corrections, i * lanes)

    def _add_group_sums(self, sums: list[ir.Value], b_vectors: list[ir.Value]) -> list[ir.Value]:
        """Returns `sums` plus the sum of each group in `b_vectors`, computed as its dot product with ones."""
        ones = self.e.splat(ir.VectorType.get([self.lanes], ir.IntegerType.get_signless(32)), 0x01010101)
        ones_in_bytes = as_elements(ones, ir.Type.parse(self.instruction.element))
        return [self.instruction.emit(total, ones_in_bytes, b) for total, b in zip(sums, b_vectors, strict=True)]

    # ---- steps of K --------------------------------------------------------------------------------------------------

    def accumulate(self, tile: Tile, panel: ir.Value, k_range: Range | None, sums: list[ir.Value]) -> list[ir.Value]:
        e, group, (k,) = self.e, self.block.group, self.c.k
        vectors = len(sums) // tile.rows
        adds_columns = self.instruction.needs_offset(self.c.unsigned) and not self.block.shares_column_sums
        column_sums = [self.zero()] * vectors if adds_columns else []

        def emit_step(step: Index, carried: list[ir.Value], active: int = group) -> list[ir.Value]:
            if tile.next_panel is not None:
                self.prefetch(self.b, e.add(tile.next_panel, e.mul(step, self.prefetched_per_step)))
            b = e.add(tile.b, e.mul(step, self.block.columns))
            return self._add_groups(e.add(tile.a, step), b, panel, tile, carried, active)

        lower, upper = k_range or (0, k.size // group * group)
        carried = e.loop(lower, upper, group, emit_step, [*sums, *column_sums])
        if k_range is None and k.size % group:
            carried = emit_step(k.size // group * group, carried, k.size % group)
        sums, column_sums = carried[: len(sums)], carried[len(sums) :]
        if self.block.shares_column_sums:
            stored = [e.load(self._column_corrections, i * self.lanes, self.lanes) for i in range(vectors)]
            return [arith.subi(value, stored[i % vectors]) for i, value in enumerate(sums)]
        if not column_sums:
            return sums
        corrections = [arith.muli(value, e.splat(self.vector, OFFSET)) for value in column_sums]
        return [arith.subi(value, corrections[i % vectors]) for i, value in enumerate(sums)]

    def _add_groups(
        self, a: Index, b: Index, panel: ir.Value, tile: Tile, carried: list[ir.Value], active: int
    ) -> list[ir.Value]:  # fmt: skip
        """Returns the sums after one group of K, of which A has `active` elements.

        The sums of B's columns follow the sums in `carried`, if the instruction needs them.
        """
        e, lanes, group = self.e, self.lanes, self.block.group
        element = ir.Type.parse(self.instruction.element)
        b_vectors = self._load_row_of_b(panel, b, tile.columns)
        new_sums = []
        for row in range(tile.rows):
            active_of_a = None if self.block.copies_a else active  # a copy is padded with zeros
            word = as_words(e.load(self.a, e.add(a, e.mul(row, self._row_step)), group, active_of_a), group)
            word = vector.broadcast(ir.VectorType.get([lanes], word.type.element_type), vector.extract(word, [], [0]))
            a_vector = as_elements(word, element)
            row_sums = carried[row * len(b_vectors) : (row + 1) * len(b_vectors)]
            new_sums += [
                self.instruction.emit(total, a_vector, b_vector)
                for total, b_vector in zip(row_sums, b_vectors, strict=True)
            ]
        column_sums = carried[len(new_sums) :]
        return [*new_sums, *(self._add_group_sums(column_sums, b_vectors) if column_sums else [])]

    def _load_row_of_b(self, panel: ir.Value, b: Index, columns: int) -> list[ir.Value]:
        """Loads the vectors of one group of K at offset `b` of a panel, as elements that the instruction multiplies."""
        e, width, element = self.e, self.lanes * self.block.group, ir.Type.parse(self.instruction.element)
        return [
            convert_elements(e.load(panel, e.add(b, column * self.block.group), width), element, self.c.unsigned[1])
            for column in range(0, columns, self.lanes)
        ]


# ---- tiles of AMX ----------------------------------------------------------------------------------------------------

_TILE = "!llvm.x86_amx"
# A block has at most 2 x 2 tiles of sums. Tile `i` starts with the rows of zeros from row `i` on.
_ZERO_ROWS = TILE_ROWS + 2 * 2 - 1


class TileGemm(DotGemm):
    """Computes C in blocks of tiles. Stores each block to a buffer, whose rows a loop finishes.

    A tile of A is 16 rows of 64 bytes. If the rows of a block are no multiple of 16, its last tile starts earlier, so
    that the tile overlaps the one before it; with fewer than 16 rows, the tile starts before the block. If C has fewer
    than 16 rows, A is copied to 16 rows.
    """

    def emit(self) -> None:
        # Sums start with tiles of zeros, each loaded from another offset. MLIR or LLVM would merge equal loads, and the
        # tile would then have to be copied, which takes a store and a load.
        self._zeros = memref.alloc(self.scratch_type(_ZERO_ROWS * self.lanes), [], [], alignment=ALIGNMENT)
        for row in range(_ZERO_ROWS):
            self.e.store(self.zero(), self._zeros, row * self.lanes)
        super().emit()
        memref.dealloc(self._zeros)

    def emit_finished_blocks(self, tile: Tile, panel: ir.Value) -> None:
        buffer, block_sums = self.allocate_sums(self.block.rows, self.block.columns)
        self.emit_row_blocks(tile, panel, self.results, None, block_sums)
        memref.dealloc(buffer)

    def emit_block(
        self,
        tile: Tile,
        panel: ir.Value,
        results: KernelResults,
        k_range: Range | None,
        block_sums: KernelResults | None,
    ) -> None:
        assert k_range is None, "tiles are computed over all of K"
        assert block_sums is not None
        e, lanes, columns = self.e, self.lanes, self.block.columns
        # The first row of each tile, relative to the block; negative if the block has fewer than 16 rows.
        starts = [min(start, tile.rows - TILE_ROWS) for start in range(0, tile.rows, TILE_ROWS)]
        if self.c.m.size < TILE_ROWS:
            starts = [0]
        rows_before = max(0, -starts[-1])  # rows of the last tile that are before the block
        buffer = block_sums.flats[0]
        sums = self._accumulate_tiles(tile, panel, starts)
        for number, value in enumerate(sums):
            row, column = divmod(number, len(sums) // len(starts))
            start = (rows_before + starts[row]) * columns + column * lanes
            _store(_cast(value, self._sums_type), buffer, e.value(start), e.value(columns))

        def finish_row(row: Index) -> None:
            offsets = results.advance(tile.offsets, self.m_loop, row)
            for column in range(0, tile.columns, lanes):
                active = tile.columns - column
                total = e.load(buffer, e.add(e.mul(row, columns), rows_before * columns + column), lanes)
                if results.has_initial_sums:
                    total = emit_add(results.initial(offsets, column, active), total)
                results.finish(total, offsets, column, active)

        e.for_each(0, tile.rows, 1, finish_row)

    def _accumulate_tiles(self, tile: Tile, panel: ir.Value, starts: Sequence[int]) -> list[ir.Value]:
        """Returns the tiles of sums over all of K, row by row; `starts` has the first row of each row of tiles."""
        e, group, lanes, (k,) = self.e, self.block.group, self.lanes, self.c.k
        tile_depth = self.block.depth_multiple  # steps of K in a tile
        a_stride, b_stride = e.value(self.c.m.strides[0]), e.value(self.block.columns * group)
        tile_columns = range(0, tile.columns, lanes)
        offsets = [number * lanes for number in range(len(starts) * len(tile_columns))]
        zeros = [_load(self._sums_type, self._zeros, e.value(offset), e.value(lanes)) for offset in offsets]

        def load(flat: ir.Value, offset: Index, stride: ir.Value) -> ir.Value:
            return _load(self._factor_type, flat, e.value(offset), stride)

        def emit_step(step: Index, carried: list[ir.Value]) -> list[ir.Value]:
            if tile.next_panel is not None:
                self._prefetch_panel(e.add(tile.next_panel, e.mul(step, self.prefetched_per_step)))
            a, b = e.add(tile.a, step), e.add(tile.b, e.mul(step, self.block.columns))
            a_tiles = [load(self.a, e.add(a, start * self.c.m.strides[0]), a_stride) for start in starts]
            b_tiles = [load(panel, e.add(b, column * group), b_stride) for column in tile_columns]
            factors = [(a_tile, b_tile) for a_tile in a_tiles for b_tile in b_tiles]
            return [self._multiply(*pair, total) for pair, total in zip(factors, carried, strict=True)]

        padded = round_up(k.size, tile_depth)
        return e.loop(0, padded, tile_depth, emit_step, [_cast(zero, ir.Type.parse(_TILE)) for zero in zeros])

    def _prefetch_panel(self, offset: Index) -> None:
        """Prefetches to the L2 cache, from `offset` of the next panel, the elements for the steps of K in one tile."""
        line = CACHE_LINE // byte_width(self.c.input_elements[1])
        for start in range(0, self.prefetched_per_step * self.block.depth_multiple, line):
            self.prefetch(self.b, self.e.add(offset, start), locality=2)

    def _multiply(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """Returns the tile `total` plus the product of the tiles `a` and `b`."""
        operands = [a, b, _cast(total, self._sums_type)]
        if self.c.element == "f32":
            (product,) = _create("tile_mulf", [self._sums_type], operands)
        else:
            names = ("isZextLhs", "isZextRhs")
            flags = {name: ir.UnitAttr.get() for name, flag in zip(names, self.c.unsigned, strict=True) if flag}
            (product,) = _create("tile_muli", [self._sums_type], operands, **flags)
        return _cast(product, ir.Type.parse(_TILE))

    @property
    def copied_rows(self) -> int:
        """Returns the rows of a copy of A, which has at least one tile."""
        return max(TILE_ROWS, self.c.m.size)

    @property
    def _sums_type(self) -> ir.Type:
        return ir.Type.parse(f"!x86.amx.tile<{TILE_ROWS}x{self.lanes}x{self.c.element}>")

    @property
    def _factor_type(self) -> ir.Type:
        return ir.Type.parse(f"!x86.amx.tile<{TILE_ROWS}x{self.lanes * self.block.group}x{self.instruction.element}>")


def _load(type_: ir.Type, flat: ir.Value, offset: ir.Value, stride: ir.Value) -> ir.Value:
    """Loads a tile from the flat memref `flat`; `stride` is the distance of its rows in elements."""
    return _create("tile_load", [type_], [flat, offset, stride], operandSegmentSizes=_segments(3))[0]


def _store(tile: ir.Value, flat: ir.Value, offset: ir.Value, stride: ir.Value) -> None:
    """Stores a tile to the flat memref `flat`; `stride` is the distance of its rows in elements."""
    _create("tile_store", [], [flat, offset, tile, stride], operandSegmentSizes=_segments(4))


def _segments(count: int) -> ir.DenseI32ArrayAttr:
    return ir.DenseI32ArrayAttr.get([1] * count)


def _create(name: str, results: list[ir.Type], operands: list[ir.Value], **attributes: ir.Attribute) -> ir.OpResultList:
    """Emits an op on tiles, of which the bindings of some versions have no classes; returns its results."""
    return ir.Operation.create(f"x86.amx.{name}", results, operands, attributes).results


def _cast(value: ir.Value, type_: ir.Type) -> ir.Value:
    """Casts a tile between the types of the dialects x86 and llvm. Loops carry llvm's type: MLIR lowers no others."""
    return ir.Operation.create("builtin.unrealized_conversion_cast", [type_], [value]).result
