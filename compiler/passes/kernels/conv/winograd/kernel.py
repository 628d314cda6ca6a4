"""Winograd's convolution by blocks of tiles: input transform, a matrix product per point, output transform.

The data of a block stay in the L2 cache. The output transform adds and subtracts the products of a tile, so an infinity
would become NaN in outputs that do not read it; a tile whose sums are not all finite is computed again by direct
products before its results are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, memref, scf, vector
from buddy.compiler.passes.kernels.access import Loop
from buddy.compiler.passes.kernels.contraction import add, bytes_of, multiply_add
from buddy.compiler.passes.kernels.conv.kernels import ConvKernel
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.conv.winograd.blocking import SHARES, WinogradBlocking, padded, products, tiles_of
from buddy.compiler.passes.kernels.conv.winograd.transforms import WINDOW, TransformedWeights, on_both_sides, transforms
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks, nanoseconds
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place, ResultSpec
from buddy.compiler.passes.kernels.gemm.kernel import BlockedGemm
from buddy.compiler.passes.kernels.packing import ALIGNMENT


@dataclass(frozen=True)
class _Tile:
    """The position of a tile in the image and in the results, and the number of its valid `lines` and `pixels`."""

    start: Index
    place: Place
    lines: Index
    pixels: Index


def weights_of(conv: Convolution, blocking: WinogradBlocking) -> TransformedWeights:
    """Returns the form of the weights that the kernel reads."""
    lines, pixels, channels = conv.k
    window = (lines.strides[1], pixels.strides[1])
    n, inner = (conv.n.size, conv.n.strides[1]), (channels.size, channels.strides[1])
    return TransformedWeights(blocking.outputs, n, inner, window, blocking.gemm.columns, blocking.lanes)


class Winograd(ConvKernel):
    """Emits one kernel for weights `b` in the form of `weights_of`; `raw` are the unpacked weights."""

    def __init__(
        self,
        e: KernelEmitter,
        a: Any,
        b: Any,
        raw: Any,
        results: KernelResults,
        conv: Convolution,
        blocking: WinogradBlocking,
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.raw, self.block, self.columns = raw, blocking, blocking.gemm.columns
        self.matrices, self.tiles = transforms(blocking.outputs), tiles_of(conv, blocking.outputs)
        self.form = weights_of(conv, blocking)
        self.channels = padded(conv, self.lanes)

    def emit(self) -> None:
        e, count, work = self.e, -(-math.prod(self.tiles) // self.block.tiles), self._work()
        if count >= SHARES:
            e.parallel([count], lambda numbers: self._block(numbers[0], work / count), work)
        else:
            for_blocks(e, count, 1, lambda number, _: self._block(number, work / count))

    def _work(self) -> float:
        """Returns the time on one thread in nanoseconds."""
        flop = self.conv.flops * self.block.points / (WINDOW * self.block.outputs) ** 2
        return nanoseconds(flop, math.prod(self.form.shape) * bytes_of(self.conv.element))

    def _block(self, number: Index, work: float) -> None:
        """Emits the tiles of block `number`: threads share the tiles, and then the output channels."""
        e, first = self.e, self.e.mul(number, self.block.tiles)
        count = e.minimum(self.block.tiles, e.subtract(math.prod(self.tiles), first))
        transformed = self._scratch(self.channels)

        def panel(numbers: list[Index]) -> None:
            sums = self._scratch(self.columns)
            self._multiply(transformed, numbers[0], sums)

            def tile(slot: Index, _: list[Any]) -> Sequence[Any]:
                self._output_tile(self._tile(e.add(first, slot)), slot, sums, numbers[0])
                return ()

            e.loop(0, count, 1, tile)
            memref.dealloc(sums)

        def into(slots: list[Index]) -> None:
            # Slots after the last tile compute it again; their results are not used.
            number = e.minimum(e.add(first, slots[0]), math.prod(self.tiles) - 1)
            self._input_tile(self._tile(number), slots[0], transformed)

        moved = self.block.tiles * self.block.points * self.channels * bytes_of(self.conv.element)
        e.parallel([self.block.tiles], into, nanoseconds(moved=moved))
        e.parallel([self.form.shape[0]], panel, work)
        memref.dealloc(transformed)

    def _scratch(self, columns: int) -> Any:
        size = self.block.points * self.block.apart(columns)
        return memref.alloc(ir.MemRefType.get([size], self.vector.element_type), [], [], alignment=ALIGNMENT)

    # ---- tiles -------------------------------------------------------------------------------------------------------

    def _tile(self, number: Index) -> _Tile:
        """Returns tile `number`, counted through images, lines and pixels."""
        e, conv, step = self.e, self.conv, self.block.outputs
        digits: list[Index] = []
        for size in reversed(self.tiles[1:]):
            number, digit = e.divide(number, size)
            digits.insert(0, digit)
        *images, line, pixel = number, *digits
        first = (e.mul(line, step), e.mul(pixel, step))
        left = [
            e.subtract(loop.size, index) if loop.size % step else step
            for loop, index in zip((conv.lines, conv.pixels), first, strict=True)
        ]
        start = e.dot([*images, *first], [loop.strides[0] for loop in (*conv.images, conv.lines, conv.pixels)])
        place = self.results.origin
        for loop, index in enumerate((*images, *first)):
            place = self.results.advance(place, loop, index)
        return _Tile(start, place, e.minimum(left[0], step), e.minimum(left[1], step))

    # ---- input -------------------------------------------------------------------------------------------------------

    def _input_tile(self, tile: _Tile, slot: Index, transformed: Any) -> None:
        """Transforms all channels of `tile` to rows `slot` of `transformed`, at all points."""
        e, matrix, apart = self.e, self.matrices.of_input, self.block.apart(self.channels)
        pixels = self._steps(tile.pixels, self.conv.pixels)
        starts = [[e.add(line, pixel) for pixel in pixels] for line in self._steps(tile.lines, self.conv.lines)]

        def channels(number: Index, lanes: int) -> None:
            first = e.mul(number, self.lanes)
            here, there = e.add(tile.start, first), e.add(e.mul(slot, self.channels), first)
            grid = [[e.load(self.a, e.add(here, start), self.lanes, lanes) for start in line] for line in starts]
            rows = on_both_sides(e, matrix, grid)
            for point, value in enumerate(value for row in rows for value in row):
                e.store(value, transformed, e.add(there, point * apart))

        for_blocks(e, self.conv.k[2].size, self.lanes, channels)

    def _steps(self, active: Index, loop: Loop) -> list[Index]:
        """Returns the offsets of the lines or pixels that a tile reads.

        Beyond those of its `active` outputs it reads the last one again; these results are not used.
        """
        e = self.e
        last = e.add(active, WINDOW - 2)
        return [e.mul(e.minimum(i, last), loop.strides[0]) for i in range(self.block.outputs + WINDOW - 1)]

    # ---- products ----------------------------------------------------------------------------------------------------

    def _multiply(self, transformed: Any, panel: Index, sums: Any) -> None:
        """Multiplies a block of tiles by a panel of weights, at all points; writes to `sums`."""
        e, contraction, size = self.e, products(self.conv, self.block), math.prod(self.form.shape[1:])
        weights = _part(self.b, e.value(e.mul(panel, size)), size)
        spec = ResultSpec(tuple(loop.strides[2] for loop in contraction.loops))
        results = KernelResults(e, spec, [sums], self.lanes, self.vector.element_type)
        BlockedGemm(e, transformed, weights, results, contraction, self.block.gemm).emit()

    # ---- output ------------------------------------------------------------------------------------------------------

    def _output_tile(self, tile: _Tile, slot: Index, sums: Any, panel: Index) -> None:
        """Writes the results of `tile` in the channels of a panel, from rows `slot` of `sums` at all points."""
        e, width, lanes = self.e, self.columns, self.lanes
        vectors, rest = divmod(self.conv.n.size, lanes)
        before = e.mul(panel, self.block.gemm.vectors)

        def channels(number: Index, active: int) -> None:
            column = e.mul(e.add(before, number), lanes)
            there = replace(tile, place=self.advance(tile.place, column=column))
            values = self._values(sums, e.add(e.mul(slot, width), e.mul(number, lanes)))
            branch = scf.IfOp(self._finite(values), has_else=True)
            with ir.InsertionPoint(branch.then_block):
                self._finish(there, values, active)
                scf.yield_([])
            with ir.InsertionPoint(branch.else_block):
                self._finish_directly(there, column, active)
                scf.yield_([])

        def whole(number: Index, _: list[Any]) -> Sequence[Any]:
            channels(number, lanes)
            return ()

        left = e.subtract(vectors, before)
        e.loop(0, e.minimum(self.block.gemm.vectors, left), 1, whole)
        if rest:
            e.when([(vectors // self.block.gemm.vectors - 1, panel)], lambda: channels(left, rest))

    def _values(self, sums: Any, start: Index) -> list[Any]:
        """Returns a vector of channels per result of a tile, line by line; `start` is the offset at the first point."""
        e, size, apart = self.e, len(self.matrices.of_input), self.block.apart(self.columns)
        points = [e.load(sums, e.add(start, point * apart), self.lanes) for point in range(self.block.points)]
        rows = on_both_sides(e, self.matrices.of_output, [points[i : i + size] for i in range(0, len(points), size)])
        return [value for row in rows for value in row]

    def _finite(self, values: list[Any]) -> Any:
        """True if all values and their sum are finite."""
        total = values[0]
        for value in values[1:]:
            total = arith.addf(total, value)
        zero_or_nan = arith.subf(total, total)
        same = arith.cmpf(arith.CmpFPredicate.OEQ, zero_or_nan, self.e.zero(self.vector))
        return vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.AND, same)

    def _finish(self, tile: _Tile, values: list[Any], lanes: int) -> None:
        """Stores the values that are within the image, through the epilogue if there is one."""
        positions = product(range(self.block.outputs), repeat=2)
        for (i, j), value in zip(positions, values, strict=True):
            to = self.advance(tile.place, line=i, pixel=j)
            self.e.when([(i, tile.lines), (j, tile.pixels)], partial(self._store, value, to, lanes))

    def _store(self, value: Any, place: Place, lanes: int) -> None:
        if self.results.starts:
            value = add(self.results.initial(place, 0, lanes), value)
        self.results.finish(value, place, 0, lanes)

    # ---- sums that are not finite ------------------------------------------------------------------------------------

    def _finish_directly(self, tile: _Tile, column: Index, lanes: int) -> None:
        """Stores the same results, from `column` on, computed from the image and the unpacked weights."""
        e, strides = self.e, (self.conv.lines.strides[0], self.conv.pixels.strides[0])

        def one(indices: list[Index]) -> None:
            line, pixel = indices
            value = self._windows(e.dot(indices, strides, tile.start), column, lanes)
            self._store(value, self.advance(tile.place, line=line, pixel=pixel), lanes)

        e.nest([tile.lines, tile.pixels], one)

    def _windows(self, start: Index, column: Index, lanes: int) -> Any:
        """Returns the direct sums of the window at `start` with each channel's weights, from `column` on."""
        e, n, mask, zero = self.e, self.conv.n.strides[1], self.e.mask(self.lanes, lanes), self.e.zero(self.vector)
        index = ir.VectorType.get([self.lanes], ir.IndexType.get())
        apart = arith.muli(vector.step(index), e.splat(index, n))

        def one(number: Index, total: list[Any]) -> list[Any]:
            here, there = start, e.mul(column, n)
            for loop in reversed(self.conv.k):
                number, k = e.divide(number, loop.size)
                here, there = (e.add(at, e.mul(k, step)) for at, step in zip((here, there), loop.strides, strict=False))
            weights = vector.gather(self.vector, self.raw, [e.value(there)], apart, mask, zero)
            return [multiply_add(self.element(here), weights, total[0])]

        # One loop over the whole window: short loops would be unrolled to much code that rarely runs.
        return e.loop(0, self.conv.depth, 1, one, [zero])[0]


def _part(flat: Any, offset: Any, size: int) -> Any:
    """Returns `size` elements of the 1-D memref `flat` from `offset` on."""
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    type_ = ir.Type.parse(f"memref<{size}x{flat.type.element_type}, strided<[1], offset: ?>>")
    return memref.reinterpret_cast(type_, flat, [offset], [], [], [dynamic], [size], [1])
