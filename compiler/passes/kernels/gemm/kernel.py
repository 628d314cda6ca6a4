"""The register-blocked kernel, and the choice of the kernel of a contraction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import arith, func, ir, memref, vector
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.calls import argument_types, flat_operands
from buddy.compiler.passes.kernels.contraction import Contraction, multiply_add
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place, ResultSpec
from buddy.compiler.passes.kernels.gemm.few_rows import DotProducts, GemmKernel, StreamedRows
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Panels, pack_panel, panels_of, row_major

Range = tuple[Index, Index]  # steps of a single loop of K

# Elements of a row of A that are prefetched together (a cache line of f32), and steps of K from which on that is
# worthwhile: the rows of the next block start far apart, and the hardware prefetcher detects each of them late.
_LINE, _LONG = 16, 256

# Ops of an epilogue that are unrolled after a block; a longer one becomes a loop over the block's vectors.
_UNROLLED = 128


@dataclass(frozen=True)
class _Tile:
    """`rows` x `columns` of C: the part of one iteration, which threads may share.

    `a` and `b` are the offsets of its first elements (`b` in the current panel), `place` that of its results. `ahead`
    is the offset in B of the next packed panel, or of the columns that it is packed from, and `raw_ahead` that of the
    next columns of a row-major B, if these should be prefetched; `block` is the number of the tile's first block of
    rows.
    """

    a: Index
    b: Index
    place: Place
    rows: int
    columns: int
    ahead: Index | None = None
    raw_ahead: Index | None = None
    block: Index = 0


class BlockedGemm(GemmKernel):
    """Computes C in blocks of `rows x columns`; reads B in place, from packed panels, or from a panel packed here."""

    @property
    def panels(self) -> Panels:
        return panels_of(self.c, self.block)

    def emit(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.n.size, self.c.m.size]
        blocks = [*(1 for _ in self.c.outer), self.block.columns, self.block.chunk or max(1, self.c.m.size)]
        self.e.parallel_blocks(sizes, blocks, self._iteration, self.work)

    def _iteration(self, numbers: list[Index], active: list[int]) -> None:
        e, c, block = self.e, self.c, self.block
        *outer, panel, chunk = numbers
        *_, columns, rows = active
        row, column = e.mul(chunk, block.chunk), e.mul(panel, block.columns)
        a = e.add(self.start(0, outer), e.mul(row, c.m.strides[0]))
        first = e.mul(chunk, block.chunk // block.rows)
        tile = _Tile(a, 0, self.place(outer, row, column), rows, columns, block=first)
        if block.source == "packed":
            start = self._packed_start(outer)
            here, ahead = e.add(start, e.mul(panel, self.panels.panel)), self._next_panel(start, panel)
            self._over_depth(replace(tile, b=here, ahead=ahead), self.b, None)
            return
        raw = self._raw_start(outer, column)
        tile = replace(tile, raw_ahead=self._next_columns(raw), ahead=self._next_rows(raw))
        if block.source == "direct":
            self._over_depth(replace(tile, b=raw), self.b, None)
        else:
            self._with_panel(tile, raw)

    def _raw_start(self, outer: list[Index], column: Index) -> Index:
        return self.e.add(self.start(1, outer), self.e.mul(column, self.c.n.strides[1]))

    def _packed_start(self, outer: list[Index]) -> Index:
        used = [index for index, loop in zip(outer, self.c.outer, strict=True) if loop.used[1]]
        return self.e.dot(used, self.panels.outer_strides)

    def _next_columns(self, raw: Index) -> Index | None:
        """Returns the offset of the columns of a row-major B after those at offset `raw`."""
        return self.e.add(raw, self.block.columns) if self.c.n.strides[1] == 1 else None

    def _next_rows(self, raw: Index) -> Index | None:
        """Returns the offset of the rows of a column-major B from which the panel after the one at `raw` is packed.

        They are prefetched while the current panel is in use, as packed panels are; otherwise packing waits for memory.
        """
        dense = len(self.c.k) == 1 and self.c.k[0].strides[1] == 1 and self.c.n.strides[1] == self.c.k[0].size
        if self.block.source != "panel" or not dense or not self._fetches_panels():
            return None
        return self.e.add(raw, self.block.columns * self.c.n.strides[1])

    def _fetches_panels(self) -> bool:
        """True if there is enough work on a panel, over all of K, to prefetch the next one from memory."""
        return len(self.c.k) == 1 and not self.block.blocks_k(self.c) and self.c.m.size > self.block.rows

    def _next_panel(self, start: Index, number: Index) -> Index | None:
        """Returns the offset of the panel after panel `number`, if panels are consecutive in memory.

        After the last panel follow those of the next value of the outer loops, or memory that is not read.
        """
        if not self._fetches_panels():
            return None
        return self.e.add(start, self.e.mul(self.e.add(number, 1), self.panels.panel))

    def _with_panel(self, tile: _Tile, raw: Index) -> None:
        """Emits `tile` on a private panel, packed from offset `raw` of B."""
        depth = self.block.depth if self.block.blocks_k(self.c) else self.c.depth
        scratch = memref.alloc(self.scratch_type(depth * self.block.columns), [], [], alignment=ALIGNMENT)
        self._over_depth(tile, scratch, raw)
        memref.dealloc(scratch)

    # ---- K -----------------------------------------------------------------------------------------------------------

    def _over_depth(self, tile: _Tile, panel: Any, raw: Index | None) -> None:
        """Emits all of K, in blocks if necessary; packs each to `panel` first if `raw`, an offset in B, is given."""
        if not self.block.blocks_k(self.c):
            if raw is not None:
                pack_panel(self.e, self.panels, self.b, raw, panel, 0, tile.columns)
            self._finished_by_blocks(tile, panel)
            return
        e, columns = self.e, self.block.columns
        buffer, sums = self.partial_sums(tile.rows, columns)
        self.move(tile.rows, tile.columns, self.results, tile.place, sums, sums.origin)

        def block(lower: Index, _: list[Any]) -> Sequence[Any]:
            here = replace(tile, place=sums.origin)
            upper = e.minimum(e.add(lower, self.block.depth), self.c.k[0].size)
            if raw is not None:
                there = e.mul(lower, -columns)
                pack_panel(e, self.panels, self.b, raw, panel, there, tile.columns, (lower, upper))
                here = replace(here, b=there)
            self._all_rows(here, panel, sums, (lower, upper))
            return ()

        e.loop(0, self.c.k[0].size, self.block.depth, block)
        self.move(tile.rows, tile.columns, sums, sums.origin, self.results, tile.place)
        memref.dealloc(buffer)

    def _finished_by_blocks(self, tile: _Tile, panel: Any) -> None:
        """Emits all rows over all of K, and finishes each block as soon as it is complete."""
        if self.results.finishing * self.block.rows * self.block.vectors <= _UNROLLED:
            self._all_rows(tile, panel, self.results, None)
            return
        buffer, sums = self.partial_sums(self.block.rows, self.block.columns)
        self._all_rows(tile, panel, self.results, None, sums)
        memref.dealloc(buffer)

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _all_rows(
        self, tile: _Tile, panel: Any, results: KernelResults, k_range: Range | None, kept: KernelResults | None = None
    ) -> None:
        """Emits every block of rows; with `kept`, a buffer for a block, stores the block there before finishing it."""
        e = self.e

        def rows(number: Index, count: int) -> None:
            row = e.mul(number, self.block.rows)
            here = replace(
                tile,
                a=self._start_of_rows(tile.a, number, row),
                place=results.advance(tile.place, self.m_loop, row),
                rows=count,
            )
            if tile.raw_ahead is not None:
                here = replace(here, block=e.add(tile.block, number))
            if tile.ahead is not None:
                share = e.mul(e.add(tile.block, number), self._share * self.c.depth)
                here = replace(here, ahead=e.add(tile.ahead, share))
            self._block(here, panel, results, k_range, kept)

        for_blocks(e, tile.rows, self.block.rows, rows)

    def _start_of_rows(self, start: Index, number: Index, row: Index) -> Index:
        """Returns the offset in A of block `number` of rows, whose first one is `row` rows after offset `start`."""
        return self.e.add(start, self.e.mul(row, self._row_step))

    @property
    def _row_step(self) -> int:
        """Elements of A, as the kernel reads it, between two rows of a block."""
        return self.c.m.strides[0]

    def _steps_of_a(self) -> list[int]:
        """Returns the elements of A, as the kernel reads it, between steps of each loop of K."""
        return [loop.strides[0] for loop in self.c.k]

    @property
    def _share(self) -> int:
        """Returns the elements of the next panel to prefetch per step of K, so that all blocks prefetch it fully."""
        return -(-self.block.columns // -(-self.c.m.size // self.block.rows))

    def _block(
        self, tile: _Tile, panel: Any, results: KernelResults, k_range: Range | None, kept: KernelResults | None
    ) -> None:
        """Emits the tile's rows and columns of C, in registers over the steps of K in `k_range` (`None`: all)."""
        sums = self._over_k(tile, panel, k_range, [results.initial(*spot) for spot in self._spots(tile, results)])
        target, place = (results, tile.place) if kept is None else (kept, kept.origin)
        for spot, value in zip(self._spots(replace(tile, place=place), target), sums, strict=True):
            target.finish(value, *spot)
        if kept is not None:
            self.move(tile.rows, tile.columns, kept, kept.origin, results, tile.place)

    def _spots(self, tile: _Tile, results: KernelResults) -> list[tuple[Place, int, int]]:
        """Returns place, column and active lanes of each vector of a tile."""
        return [
            (results.advance(tile.place, self.m_loop, row), column, tile.columns - column)
            for row in range(tile.rows)
            for column in range(0, tile.columns, self.lanes)
        ]

    def _over_k(self, tile: _Tile, panel: Any, k_range: Range | None, sums: list[Any]) -> list[Any]:
        """Returns the sums after the steps of K in `k_range`."""
        e, loops = self.e, self.c.k
        steps, steps_of_a = self._steps_of_b(), self._steps_of_a()
        if self._fetches_rows(tile, k_range):
            return self._over_lines(tile, panel, steps[0], sums)

        def level(depth: int, a: Index, b: Index, sums: list[Any]) -> list[Any]:
            if depth == len(loops):
                return self._step(a, b, panel, tile, sums)

            def body(k: Index, inner: list[Any]) -> Sequence[Any]:
                if tile.ahead is not None:
                    self._fetch(self.b, e.add(tile.ahead, e.mul(k, self._share)))
                here = e.add(a, e.mul(k, steps_of_a[depth]))
                return level(depth + 1, here, e.add(b, e.mul(k, steps[depth])), inner)

            lower, upper = k_range or (0, loops[depth].size)
            return e.loop(lower, upper, 1, body, sums)

        return level(0, tile.a, tile.b, sums)

    def _steps_of_b(self) -> list[int]:
        """Returns the elements of B or its panel between steps of each loop of K."""
        if self.block.source == "direct":
            return [loop.strides[1] for loop in self.c.k]
        return row_major([loop.size for loop in self.c.k], self.block.columns)

    def _fetches_rows(self, tile: _Tile, k_range: Range | None) -> bool:
        k, m = self.c.k, self.c.m
        along = len(k) == 1 and k[0].strides[0] == 1 and k[0].size >= _LONG and k_range is None
        return along and tile.rows == self.block.rows and m.size > 2 * tile.rows and m.strides[0] >= k[0].size

    def _over_lines(self, tile: _Tile, panel: Any, step: int, sums: list[Any]) -> list[Any]:
        """Returns the sums over all of K, a cache line of each row at a time; prefetches the next block's rows."""
        e, size = self.e, self.c.k[0].size
        following = e.add(tile.a, self.block.rows * self.c.m.strides[0])

        def one(k: Index, inner: list[Any]) -> list[Any]:
            if tile.ahead is not None:
                self._fetch(self.b, e.add(tile.ahead, e.mul(k, self._share)))
            return self._step(e.add(tile.a, k), e.add(tile.b, e.mul(k, step)), panel, tile, inner)

        def line(k: Index, inner: list[Any]) -> Sequence[Any]:
            for row in range(self.block.rows):
                self._fetch(self.a, e.add(following, e.add(k, row * self.c.m.strides[0])))
            if tile.raw_ahead is not None:
                self._fetch_columns(tile.raw_ahead, tile.block, k)
            return e.loop(0, _LINE, 1, lambda i, values: one(e.add(k, i), values), inner)

        sums = e.loop(0, size // _LINE * _LINE, _LINE, line, sums)
        return e.loop(size // _LINE * _LINE, size, 1, one, sums)

    def _fetch_columns(self, start: Index, block: Index, k: Index) -> None:
        """Prefetches some of the `_LINE` rows from `k` on of the next columns of B; all blocks of rows take part."""
        e, blocks = self.e, -(-self.c.m.size // self.block.rows)
        share = -(-_LINE // blocks)
        turn = arith.remui(e.value(block), e.value(-(-_LINE // share)))
        first = e.add(k, e.mul(turn, share))
        for i in range(share):
            row = e.add(start, e.mul(e.add(first, i), self.c.k[0].strides[1]))
            for column in range(0, self.block.columns, _LINE):
                self._fetch(self.b, e.add(row, column))

    def _fetch(self, source: Any, offset: Index) -> None:
        memref.prefetch(source, [self.e.value(offset)], False, 3, True)

    def _step(self, a: Index, b: Index, panel: Any, tile: _Tile, sums: list[Any]) -> list[Any]:
        """Emits one step of K: a rank-one update of the block. A zero-padded panel is read in whole vectors."""
        e, lanes = self.e, self.lanes
        limit = tile.columns if self.block.source == "direct" else self.block.columns
        factors = [
            self.factor(1, e.load(panel, e.add(b, column), lanes, limit - column))
            for column in range(0, tile.columns, lanes)
        ]
        result = []
        for row in range(tile.rows):
            scalar = e.load_scalar(self.a, e.add(a, e.mul(row, self._row_step)))
            factor = vector.broadcast(self.vector, self.factor(0, scalar))
            base = row * len(factors)
            result += [multiply_add(factor, other, sums[base + j]) for j, other in enumerate(factors)]
        return result


class PackedGemm(BlockedGemm):
    """Copies a chunk of rows of A, block by block, then multiplies it with all panels of B, each copied before its use.

    The copy of a block is [k][row], with rows padded to whole vectors.
    """

    def emit(self) -> None:
        sizes = [*(loop.size for loop in self.c.outer), self.c.m.size, self.c.n.size]
        blocks = [*(1 for _ in self.c.outer), self.block.chunk, self.block.strip]
        self.e.parallel_blocks(sizes, blocks, self._iteration, self.work)

    def _iteration(self, numbers: list[Index], active: list[int]) -> None:
        e, c, block, source = self.e, self.c, self.block, self.a
        *outer, chunk, strip = numbers
        *_, rows, columns = active
        row, column = e.mul(chunk, block.chunk), e.mul(strip, block.strip)
        first, raw = e.add(self.start(0, outer), e.mul(row, c.m.strides[0])), self._raw_start(outer, column)
        place = self.place(outer, row, column)
        self.a, panel = self._scratch(-(-rows // block.rows) * self._copied.panel), self._scratch(self.panels.panel)

        def multiply(results: KernelResults, origin: Place, k_range: Range | None) -> None:
            self._copy_rows(source, first, rows, k_range)
            self._all_panels(_Tile(0, 0, origin, rows, columns), raw, panel, results, k_range)

        c_sums = self.results.adding()
        if not block.blocks_k(c):
            multiply(self.results, place, None)
        elif c_sums is not None:
            multiply(self.results, place, (0, block.depth))
            self._over_blocks(block.depth, functools.partial(multiply, c_sums, place[-1:]))
        else:
            buffer, sums = self.partial_sums(rows, columns)
            self.move(rows, columns, self.results, place, sums, sums.origin)
            self._over_blocks(0, functools.partial(multiply, sums, sums.origin))
            self.move(rows, columns, sums, sums.origin, self.results, place)
            memref.dealloc(buffer)
        memref.dealloc(panel)
        memref.dealloc(self.a)
        self.a = source

    def _over_blocks(self, first: int, body: Callable[[Range], None]) -> None:
        """Emits `body` for each block of K from step `first` on."""
        e, size = self.e, self.c.k[0].size

        def block(lower: Index, _: list[Any]) -> Sequence[Any]:
            body((lower, e.minimum(e.add(lower, self.block.depth), size)))
            return ()

        e.loop(first, size, self.block.depth, block)

    def _scratch(self, elements: int) -> Any:
        return memref.alloc(self.scratch_type(elements), [], [], alignment=ALIGNMENT)

    @property
    def panels(self) -> Panels:
        return self._of_depth(super().panels)

    @property
    def _copied(self) -> Panels:
        """The copy of A, as panels of the rows of a block."""
        (k,), width = self.c.k, -(-self.block.rows // self.lanes) * self.lanes
        rows = Panels(
            (), (self.c.m.size, self.c.m.strides[0]), ((k.size, k.strides[0]),), width, self.lanes, self.c.unsigned[0]
        )
        return self._of_depth(rows)

    def _of_depth(self, panels: Panels) -> Panels:
        """Returns `panels` of the steps of K in a block, all of which have the layout of the first."""
        ((_, stride),) = panels.k
        return replace(panels, k=((self.block.depth, stride),))

    def _copy_rows(self, source: Any, first: Index, rows: int, k_range: Range | None) -> None:
        e, copied = self.e, self._copied

        def block(number: Index, active: int) -> None:
            here = e.add(first, e.mul(number, self.block.rows * self.c.m.strides[0]))
            there = e.add(e.mul(number, copied.panel), self._before(k_range, copied.columns))
            pack_panel(e, copied, source, here, self.a, there, active, k_range)

        for_blocks(e, rows, self.block.rows, block)

    def _before(self, k_range: Range | None, columns: int) -> Index:
        """Returns the offset at which a panel of all of K would begin, if the steps in `k_range` begin at 0."""
        return 0 if k_range is None else self.e.mul(k_range[0], -columns)

    def _all_panels(
        self, tile: _Tile, raw: Index, panel: Any, results: KernelResults, k_range: Range | None
    ) -> None:  # fmt: skip
        e, columns, step = self.e, self.block.columns, self.c.n.strides[1]
        start = self._before(k_range, columns)

        def one(number: Index, active: int) -> None:
            column = e.mul(number, columns)
            pack_panel(e, self.panels, self.b, e.add(raw, e.mul(column, step)), panel, start, active, k_range)
            here = replace(
                tile,
                a=self._before(k_range, self._copied.columns),
                b=start,
                place=results.advance(tile.place, self.n_loop, column),
                columns=active,
            )
            if k_range is None:
                self._finished_by_blocks(here, panel)
            else:
                self._all_rows(here, panel, results, k_range)

        for_blocks(e, tile.columns, columns, one)

    def _start_of_rows(self, start: Index, number: Index, row: Index) -> Index:
        return self.e.add(start, self.e.mul(number, self._copied.panel))

    @property
    def _row_step(self) -> int:
        return 1

    def _steps_of_a(self) -> list[int]:
        return [self._copied.columns]

    def _fetches_rows(self, tile: _Tile, k_range: Range | None) -> bool:
        return False


KERNELS: dict[str, Any] = {"dot": DotProducts, "stream": StreamedRows}


def kernel_function(
    name: str, types: Sequence[Any], contraction: Contraction, blocking: GemmBlocking, spec: ResultSpec
) -> func.FuncOp:
    """Emits a private function (A, B, buffers of `spec`) at the insertion point; callers pass memrefs of `types`.

    A and B are the op's first and second operand. The one that the register block reads in vectors has the shape
    `panels_of(contraction, blocking).shape` if `blocking.source` is "packed". Strides in `spec` are along
    `contraction.loops`.
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        first, second, *buffers = flat_operands(entry.arguments, types)
        a, b = (second, first) if contraction.swapped else (first, second)
        e = KernelEmitter(entry)
        results = KernelResults(e, spec, buffers, blocking.lanes, ir.Type.parse(contraction.element))
        default = PackedGemm if blocking.packs_a else BlockedGemm
        KERNELS.get(blocking.source, default)(e, a, b, results, contraction, blocking).emit()
    return function
