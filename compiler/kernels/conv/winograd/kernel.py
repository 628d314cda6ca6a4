"""Winograd's convolution, block by block of tiles: input transform, a matrix product per point, output transform.

What a block needs stays in the second-level cache. The output transform adds up the products of a tile with signs, so
an infinity would become NaN in outputs that do not even read it; a tile whose sums are not all finite is computed
again, product by product, before anything is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from buddy.compiler.bindings import arith, ir, memref, scf, vector
from buddy.compiler.kernels.arithmetic import add, bytes_of, multiply_add
from buddy.compiler.kernels.conv.base import Kernel
from buddy.compiler.kernels.conv.shape import Convolution
from buddy.compiler.kernels.conv.winograd.blocking import Blocking, padded, point_stride, products, tiles_of
from buddy.compiler.kernels.conv.winograd.transforms import WINDOW, Grid, on_both_sides, transforms
from buddy.compiler.kernels.conv.winograd.weights import TransformedWeights
from buddy.compiler.kernels.emit import Emitter, Index, for_blocks, nanoseconds
from buddy.compiler.kernels.epilogue import Place, Results, ResultSpec
from buddy.compiler.kernels.gemm.blocked import BlockedGemm
from buddy.compiler.kernels.packing import ALIGNMENT

# Blocks of tiles from which on threads share these; else they share what is done within each.
_ENOUGH = 8


def weights_of(conv: Convolution, blocking: Blocking) -> TransformedWeights:
    """The form of the weights that the kernel reads."""
    lines, pixels, channels = conv.k
    window = (lines.strides[1], pixels.strides[1])
    n, inner = (conv.n.size, conv.n.strides[1]), (channels.size, channels.strides[1])
    return TransformedWeights(blocking.outputs, n, inner, window, blocking.gemm.columns)


class Winograd(Kernel):
    """Emission of one kernel for weights `b` as `weights_of` says; `raw` are those of the program."""

    def __init__(
        self, e: Emitter, a: Any, b: Any, raw: Any, results: Results, conv: Convolution, blocking: Blocking
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.raw, self.block, self.columns = raw, blocking, blocking.gemm.columns
        self.matrices, self.tiles = transforms(blocking.outputs), tiles_of(conv, blocking.outputs)
        self.form = weights_of(conv, blocking)
        self.channels = padded(conv, self.lanes)

    def emit(self) -> None:
        e, total, size = self.e, math.prod(self.tiles), self.block.tiles
        if total // size >= _ENOUGH:
            e.parallel_blocks(
                [total], [size], lambda numbers, active: self._block(numbers[0], active[0]), self._work(1)
            )
        else:
            for_blocks(e, total, size, self._block)

    def _work(self, share: float) -> float:
        """Nanoseconds for a share of all tiles."""
        flop = self.conv.flops * self.block.points / (WINDOW * self.block.outputs) ** 2
        return nanoseconds(share * flop, share * math.prod(self.form.shape) * bytes_of(self.conv.element))

    def _block(self, number: Index, count: int) -> None:
        """The `count` tiles of block `number`: threads share the tiles, and then the channels out."""
        e, first, work = self.e, self.e.mul(number, self.block.tiles), self._work(count / math.prod(self.tiles))
        transformed = self._scratch(count, self.channels)

        def panel(numbers: list[Index], active: list[int]) -> None:
            sums, column = self._scratch(count, self.columns), e.mul(numbers[0], self.columns)
            self._multiply(transformed, numbers[0], sums, count, active[0])

            def tile(index: Index, _: list[Any]) -> Sequence[Any]:
                self._output_tile(e.add(first, index), index, count, sums, column, active[0])
                return ()

            e.loop(0, count, 1, tile)
            memref.dealloc(sums)

        moved = count * self.channels * self.block.points * bytes_of(self.conv.element)
        e.parallel(
            [count], lambda slot: self._input_tile(e.add(first, slot[0]), slot[0], count, transformed),
            nanoseconds(moved=moved),
        )  # fmt: skip
        e.parallel_blocks([self.conv.n.size], [self.columns], panel, work)
        memref.dealloc(transformed)

    def _scratch(self, tiles: int, columns: int) -> Any:
        size = self.block.points * point_stride(tiles, columns, self.lanes)
        return memref.alloc(ir.MemRefType.get([size], self.vector.element_type), [], [], alignment=ALIGNMENT)

    # ---- input -------------------------------------------------------------------------------------------------------

    def _input_tile(self, tile: Index, slot: Index, count: int, transformed: Any) -> None:
        """All channels of `tile` at all points, to the rows number `slot` of `transformed`."""
        e, apart = self.e, point_stride(count, self.channels, self.lanes)

        def part(where: list[Index], active: list[int]) -> None:
            here = self._start(where)

            def channels(number: Index, lanes: int) -> None:
                first = e.mul(number, self.lanes)
                grid = self._read(e.add(here, first), active, lanes)
                there = e.add(e.mul(slot, self.channels), first)
                size = len(self.matrices.of_input)
                rows = on_both_sides(e, self.matrices.of_input, grid, size, size)
                for point, value in enumerate(value for row in rows for value in row):
                    value = e.zero(self.vector) if value is None else value
                    e.store(value, transformed, e.add(there, point * apart))

            for_blocks(e, self.conv.k[2].size, self.lanes, channels)

        self._by_extent(tile, part)

    def _read(self, start: Index, active: list[int], lanes: int) -> Grid:
        """A vector of channels of each pixel that a tile of `active` lines and pixels reads; zeros beyond these."""
        size = self.block.outputs + WINDOW - 1
        strides = (self.conv.lines.strides[0], self.conv.pixels.strides[0])

        def vector_at(line: int, pixel: int) -> Any:
            if line >= active[0] + WINDOW - 1 or pixel >= active[1] + WINDOW - 1:
                return None
            return self.e.load(self.a, self.e.dot((line, pixel), strides, start), self.lanes, lanes)

        return [[vector_at(line, pixel) for pixel in range(size)] for line in range(size)]

    # ---- tiles -------------------------------------------------------------------------------------------------------

    def _by_extent(self, tile: Index, body: Callable[[list[Index], list[int]], None]) -> None:
        """`body(where, active)` for the tile with number `tile`.

        `where` are its image, line and pixel, counted in tiles, and `active` its lines and pixels within the image.
        """
        *images, line, pixel = self._digits(tile)
        sizes, steps = [self.conv.lines.size, self.conv.pixels.size], [self.block.outputs] * 2
        self.e.by_size(sizes, steps, [line, pixel], lambda numbers, active: body([*images, *numbers], active))

    def _digits(self, tile: Index) -> list[Index]:
        e, digits = self.e, list[Index]()
        for size in reversed(self.tiles[1:]):
            digit: Index
            if isinstance(tile, int):
                tile, digit = divmod(tile, size)
            else:
                tile, digit = arith.divui(tile, e.value(size)), arith.remui(tile, e.value(size))
            digits.insert(0, digit)
        return [tile, *digits]

    def _start(self, where: Sequence[Index]) -> Index:
        """Where in the image the tile at `where` starts."""
        *images, line, pixel = (loop.strides[0] for loop in (*self.conv.images, self.conv.lines, self.conv.pixels))
        return self.e.dot(where, [*images, line * self.block.outputs, pixel * self.block.outputs])

    def _place(self, where: Sequence[Index], column: Index) -> Place:
        """Where its results go, from `column` on."""
        *images, line, pixel = where
        place = self.results.origin
        for loop, index in enumerate(images):
            place = self.results.moved(place, loop, index)
        step = self.block.outputs
        return self.moved(place, line=self.e.mul(line, step), pixel=self.e.mul(pixel, step), column=column)

    # ---- products ----------------------------------------------------------------------------------------------------

    def _multiply(self, transformed: Any, panel: Index, sums: Any, count: int, columns: int) -> None:
        """The products of `count` tiles by a panel of weights, at all points, to `sums`."""
        e, contraction = self.e, products(self.conv, self.block, count, columns)
        size = math.prod(self.form.shape[1:])
        weights = _part(self.b, e.value(e.mul(panel, size)), size)
        spec = ResultSpec(tuple(loop.strides[2] for loop in contraction.loops))
        results = Results(e, spec, [sums], self.lanes, self.vector.element_type)
        BlockedGemm(e, transformed, weights, results, contraction, self.block.gemm).emit()

    # ---- output ------------------------------------------------------------------------------------------------------

    def _output_tile(self, tile: Index, slot: Index, count: int, sums: Any, column: Index, columns: int) -> None:
        """`columns` channels from `column` on of the results of `tile`, from row `slot` of the `sums` of all points."""
        e, apart, width = self.e, point_stride(count, self.columns, self.lanes), self.columns
        size = len(self.matrices.of_input)

        def part(where: list[Index], active: list[int]) -> None:
            here, place = self._start(where), self._place(where, column)

            def channels(number: Index, lanes: int) -> None:
                first = e.mul(number, self.lanes)
                there = e.add(e.mul(slot, width), first)
                points = [e.load(sums, e.add(there, point * apart), self.lanes) for point in range(size * size)]
                grid = [points[i * size : (i + 1) * size] for i in range(size)]
                values = on_both_sides(e, self.matrices.of_output, grid, *active)
                values = self._checked(values, here, e.add(column, first), active, lanes)
                for i, j in product(range(active[0]), range(active[1])):
                    to = self.moved(place, line=i, pixel=j, column=first)
                    value = values[i * active[1] + j]
                    if self.results.starts:
                        value = add(self.results.initial(to, 0, lanes), value)
                    self.results.finish(value, to, 0, lanes)

            for_blocks(e, columns, self.lanes, channels)

        self._by_extent(tile, part)

    def _checked(self, values: Grid, start: Index, column: Index, active: list[int], lanes: int) -> list[Any]:
        """The values of a tile, line by line: as they are when all are finite, else as the window's products add up."""
        flat = [value for row in values for value in row]
        total = flat[0]
        for value in flat[1:]:
            total = arith.addf(total, value)
        # Zero, or NaN where any of them is an infinity or NaN, or the sum overflows.
        difference = arith.subf(total, total)
        same = arith.cmpf(arith.CmpFPredicate.OEQ, difference, self.e.zero(self.vector))
        finite = vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.AND, same)
        branch = scf.IfOp(finite, [self.vector] * len(flat), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.yield_(flat)
        with ir.InsertionPoint(branch.else_block):
            scf.yield_(self._directly(start, column, active, lanes))
        return list(branch.results)

    def _directly(self, start: Index, column: Index, active: list[int], lanes: int) -> list[Any]:
        """The same values from the image and the weights of the program."""
        e, n = self.e, self.conv.n.strides[1]
        index = ir.VectorType.get([self.lanes], ir.IndexType.get())
        apart = arith.muli(vector.step(index), e.splat(index, n))
        mask, zero = e.mask(self.lanes, lanes), e.zero(self.vector)
        strides = (self.conv.lines.strides[0], self.conv.pixels.strides[0])
        reads = [e.dot((i, j), strides) for i, j in product(range(active[0]), range(active[1]))]

        def level(depth: int, a: Index, b: Index, sums: list[Any]) -> list[Any]:
            if depth == len(self.conv.k):
                weights = vector.gather(self.vector, self.raw, [e.value(b)], apart, mask, zero)
                return [
                    multiply_add(self.element(e.add(a, offset)), weights, value)
                    for offset, value in zip(reads, sums, strict=True)
                ]
            loop = self.conv.k[depth]

            def body(k: Index, inner: list[Any]) -> Sequence[Any]:
                here, there = (e.add(x, e.mul(k, stride)) for x, stride in zip((a, b), loop.strides[:2], strict=True))
                return level(depth + 1, here, there, inner)

            return e.loop(0, loop.size, 1, body, sums)

        return level(0, start, e.mul(column, n), [zero] * len(reads))


def _part(flat: Any, offset: Any, size: int) -> Any:
    """`size` elements of the 1-D memref `flat` from `offset` on."""
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    type_ = ir.Type.parse(f"memref<{size}x{flat.type.element_type}, strided<[1], offset: ?>>")
    return memref.reinterpret_cast(type_, flat, [offset], [], [], [dynamic], [size], [1])
