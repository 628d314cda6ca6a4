"""Winograd's convolution by blocks of tiles: input transform, a matrix product per point, output transform.

The data of a block stay in the L2 cache. Output transforms add and subtract the values of all points of a tile, so an
infinity would become NaN in results that do not depend on it, and sums of large numbers may overflow where the products
of the convolution do not. A tile whose sums are not all finite is therefore computed by direct convolution; the base
class for this also serves the gradient of a kernel.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from buddy.compiler.mlir.bindings import arith, ir, memref, scf, vector
from buddy.compiler.passes.kernels.access import Loop, subrange
from buddy.compiler.passes.kernels.contraction import byte_width, convert_elements, emit_add, emit_multiply_add
from buddy.compiler.passes.kernels.conv.direct import ConvKernel
from buddy.compiler.passes.kernels.conv.shape import BLOCKS_TO_SHARE, Convolution
from buddy.compiler.passes.kernels.conv.winograd.blocking import (
    WinogradBlocking,
    input_lanes,
    padded_channels,
    tile_products,
    tiles_of,
)
from buddy.compiler.passes.kernels.conv.winograd.transforms import (
    WINDOW,
    TransformedWeights,
    apply_on_both_sides,
)
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, estimate_nanoseconds, for_blocks
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets, ResultSpec
from buddy.compiler.passes.kernels.gemm.dot import DotGemm
from buddy.compiler.passes.kernels.gemm.kernel import BlockedGemm
from buddy.compiler.passes.kernels.packing import ALIGNMENT

# ---- sums that are not finite ----------------------------------------------------------------------------------------


class CheckedKernel(ConvKernel):
    """A kernel that convolves directly, with the flat `unpacked` weights, where its own sums are not finite."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        unpacked: ir.Value,
        results: KernelResults,
        conv: Convolution,
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.unpacked = unpacked

    def are_finite(self, values: list[ir.Value]) -> ir.Value:
        """Emits an i1 that is true if all values and their sum are finite."""
        total = functools.reduce(arith.addf, values)
        zero_or_nan = arith.subf(total, total)  # NaN for an infinity, and for NaN
        is_zero = arith.cmpf(arith.CmpFPredicate.OEQ, zero_or_nan, self.e.zero(self.vector))
        return vector.reduction(ir.IntegerType.get_signless(1), vector.CombiningKind.AND, is_zero)

    def store(self, value: ir.Value, offsets: ResultOffsets, active: int) -> None:
        """Adds the initial sums to `value` and stores it, through the epilogue if there is one."""
        if self.results.has_initial_sums:
            value = emit_add(self.results.initial(offsets, 0, active), value)
        self.results.finish(value, offsets, 0, active)

    def direct_sums(self, start: Index, column: Index, active: int) -> ir.Value:
        """Returns the sums of the window at offset `start` of the image, for `active` channels from `column` on."""
        e, channel_stride, mask = self.e, self.conv.n.strides[1], self.e.mask(self.lanes, active)
        weight_type = ir.VectorType.get([self.lanes], self.unpacked.type.element_type)
        index_type = ir.VectorType.get([self.lanes], ir.IndexType.get())
        channel_offsets = arith.muli(vector.step(index_type), e.splat(index_type, channel_stride))

        def add_product(number: Index, total: list[ir.Value]) -> list[ir.Value]:
            a, b = start, e.mul(column, channel_stride)
            for loop in reversed(self.conv.k):
                number, k = e.divide(number, loop.size)
                a_stride, b_stride, _ = loop.strides
                a, b = e.add(a, e.mul(k, a_stride)), e.add(b, e.mul(k, b_stride))
            weights = vector.gather(
                weight_type, self.unpacked, [e.value(b)], channel_offsets, mask, e.zero(weight_type)
            )
            wide = convert_elements(weights, self.vector.element_type)
            return [emit_multiply_add(self.broadcast_element(a), wide, total[0])]

        # One loop over the whole window: LLVM would unroll short loops to much code that rarely runs.
        return e.loop(0, self.conv.depth, 1, add_product, [e.zero(self.vector)])[0]


# ---- the convolution -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A tile: its offset in the image, its offsets in the results, and the number of its valid `lines` and `pixels`."""

    start: Index
    offsets: ResultOffsets
    lines: Index
    pixels: Index


def weight_packing(conv: Convolution, blocking: WinogradBlocking) -> TransformedWeights:
    """Returns the packing of the weights that the kernel reads."""
    lines, pixels, channels = conv.k
    window = (lines.strides[1], pixels.strides[1])
    n, inner = (conv.n.size, conv.n.strides[1]), (channels.size, channels.strides[1])
    columns, lanes = blocking.gemm.columns, blocking.lanes
    element, group, parts = blocking.element(conv), blocking.gemm.group, blocking.parts
    return TransformedWeights(blocking.tile_size, n, inner, window, columns, lanes, element, group, parts)


class Winograd(CheckedKernel):
    """Emits one convolution, for weights `b` packed by `weight_packing`; `unpacked` are the weights before packing."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        unpacked: ir.Value,
        results: KernelResults,
        conv: Convolution,
        blocking: WinogradBlocking,
    ) -> None:
        super().__init__(e, a, b, unpacked, results, conv)
        self.block, self.columns = blocking, blocking.gemm.columns
        self.packing, self.tiles = weight_packing(conv, blocking), tiles_of(conv, blocking.tile_size)
        self.matrices = self.packing.matrices
        self.input_lanes, self.channels = input_lanes(conv, self.lanes), padded_channels(conv, self.lanes)

    def emit(self) -> None:
        """Emits the blocks of tiles. Threads share the blocks if there are enough, otherwise the work on each."""
        e, count, work = self.e, ceil_div(math.prod(self.tiles), self.block.tiles), self._work()
        if count >= BLOCKS_TO_SHARE:
            e.parallel([count], lambda numbers: self._emit_block(numbers[0], work / count), work)
        else:
            for_blocks(e, count, 1, lambda number, _: self._emit_block(number, work / count))

    def _work(self) -> float:
        """Returns a rough time on one thread in nanoseconds."""
        flop = self.conv.flops * self.block.points / (WINDOW * self.block.tile_size) ** 2
        return estimate_nanoseconds(flop, math.prod(self.packing.shape) * byte_width(self.packing.element))

    def _emit_block(self, number: Index, work: float) -> None:
        """Emits block `number` of tiles, which takes `work` nanoseconds.

        Threads share the input transforms of its tiles, and then the panels of output channels.
        """
        e, first = self.e, self.e.mul(number, self.block.tiles)
        count = e.minimum(self.block.tiles, e.subtract(math.prod(self.tiles), first))
        transformed = self._scratch(self.channels, ir.Type.parse(self.packing.element))

        def emit_input_transform(slots: list[Index]) -> None:
            # A slot is the position of a tile in the block. Slots after the last tile transform it again; their results
            # are not used.
            number = e.minimum(e.add(first, slots[0]), math.prod(self.tiles) - 1)
            self._transform_input(self._tile(number), slots[0], transformed)

        transformed_bytes = self.block.tiles * self.block.points * self.channels * byte_width(self.packing.element)
        e.parallel([self.block.tiles], emit_input_transform, estimate_nanoseconds(moved=transformed_bytes))
        e.parallel(
            [self.packing.shape[0]], lambda numbers: self.emit_panel(transformed, numbers[0], first, count), work
        )
        memref.dealloc(transformed)

    def emit_panel(self, transformed: ir.Value, panel: Index, first: Index, count: Index) -> None:
        """Emits the results of a block for one panel of weights; the block has `count` tiles, from tile `first` on."""
        e = self.e
        sums = [self._scratch(self.columns, self.vector.element_type) for _ in range(self.block.parts)]
        for part, part_sums in enumerate(sums):
            self._multiply(transformed, panel, part, part_sums)

        def emit_tile(slot: Index) -> None:
            self._transform_output(self._tile(e.add(first, slot)), slot, sums, panel)

        e.for_each(0, count, 1, emit_tile)
        for part_sums in sums:
            memref.dealloc(part_sums)

    def _scratch(self, columns: int, element: ir.Type) -> ir.Value:
        """Allocates `columns` values of type `element` for each tile of a block, at all points."""
        size = self.block.points * self.block.point_stride(columns)
        return memref.alloc(ir.MemRefType.get([size], element), [], [], alignment=ALIGNMENT)

    # ---- tiles -------------------------------------------------------------------------------------------------------

    def _tile(self, number: Index) -> Tile:
        """Returns tile `number` of all tiles, in the order of images, lines and pixels."""
        e, conv, step = self.e, self.conv, self.block.tile_size
        *images, line, pixel = e.digits(number, self.tiles)
        first = (e.mul(line, step), e.mul(pixel, step))
        remaining = [
            e.subtract(loop.size, index) if loop.size % step else step
            for loop, index in zip((conv.lines, conv.pixels), first, strict=True)
        ]
        start = e.dot([*images, *first], [loop.strides[0] for loop in (*conv.images, conv.lines, conv.pixels)])
        offsets = self.results.origin
        for loop, index in enumerate((*images, *first)):
            offsets = self.results.advance(offsets, loop, index)
        return Tile(start, offsets, e.minimum(remaining[0], step), e.minimum(remaining[1], step))

    # ---- input -------------------------------------------------------------------------------------------------------

    def _transform_input(self, tile: Tile, slot: Index, transformed: ir.Value) -> None:
        """Transforms all channels of `tile` to row `slot` of `transformed`, at all points."""
        e, matrix, point_stride = self.e, self.matrices.of_input, self.block.point_stride(self.channels)
        pixels = self._input_offsets(tile.pixels, self.conv.pixels)
        lines = self._input_offsets(tile.lines, self.conv.lines)
        grid_offsets = [[e.add(line, pixel) for pixel in pixels] for line in lines]

        def transform_channels(number: Index, active: int) -> None:
            first = e.mul(number, self.input_lanes)
            start, target_start = e.add(tile.start, first), e.add(e.mul(slot, self.channels), first)
            grid = [[self.load_channels(e.add(start, offset), active) for offset in line] for line in grid_offsets]
            rows = apply_on_both_sides(e, matrix, grid)
            for point, value in enumerate(value for row in rows for value in row):
                narrow = convert_elements(value, transformed.type.element_type)
                e.store(narrow, transformed, e.add(target_start, point * point_stride))

        for_blocks(e, self.conv.k[2].size, self.input_lanes, transform_channels)

    def load_channels(self, offset: Index, active: int) -> ir.Value:
        """Loads a vector of input channels, of which the first `active` exist, in the type of the transform."""
        return self.load_vector(self.a, offset, active)

    def _input_offsets(self, active: Index, loop: Loop) -> list[Index]:
        """Returns the offsets of the lines or pixels that a tile reads.

        Only `active` lines or pixels of the tile are valid. For the others, the last valid offset is repeated; the
        results of these are not used.
        """
        e = self.e
        last = e.add(active, WINDOW - 2)
        return [e.mul(e.minimum(i, last), loop.strides[0]) for i in range(self.block.tile_size + WINDOW - 1)]

    # ---- products ----------------------------------------------------------------------------------------------------

    def part_weights(self, panel: Index, part: int) -> ir.Value:
        """Returns the flat weights of one part of the input channels in a panel."""
        e, size = self.e, self.packing.part_elements
        return subrange(self.b, e.value(e.mul(e.add(e.mul(panel, self.block.parts), part), size)), size)

    def _multiply(self, transformed: ir.Value, panel: Index, part: int, sums: ir.Value) -> None:
        """Multiplies one part of a block of transformed tiles by weights at all points; stores the result to `sums`."""
        e, contraction, weights = self.e, tile_products(self.conv, self.block), self.part_weights(panel, part)
        if part:
            start = part * contraction.k[0].size
            transformed = subrange(transformed, e.value(start), transformed.type.shape[0] - start)
        spec = ResultSpec(tuple(loop.strides[2] for loop in contraction.loops))
        results = KernelResults(e, spec, [sums], self.lanes, self.vector.element_type)
        kernel = DotGemm if self.block.gemm.instruction else BlockedGemm
        kernel(e, transformed, weights, results, contraction, self.block.gemm).emit()

    # ---- output ------------------------------------------------------------------------------------------------------

    def _transform_output(self, tile: Tile, slot: Index, sums: list[ir.Value], panel: Index) -> None:
        """Transforms row `slot` of `sums` at all points to the results of `tile`, for the channels of a panel.

        `sums` has a buffer for each part of the input channels.
        """
        e, width, lanes = self.e, self.columns, self.lanes
        full_vectors, remaining_channels = divmod(self.conv.n.size, lanes)
        first_vector = e.mul(panel, self.block.gemm.vectors)

        def emit_channels(number: Index, active: int) -> None:
            column = e.mul(e.add(first_vector, number), lanes)
            channels_tile = replace(tile, offsets=self.advance(tile.offsets, column=column))
            start = e.add(e.mul(slot, width), e.mul(number, lanes))
            values = self.add_parts([self._transform(part_sums, start) for part_sums in sums])
            self.finish_channels(channels_tile, values, column, number, active)

        def emit_full_vector(number: Index) -> None:
            emit_channels(number, lanes)

        remaining_vectors = e.subtract(full_vectors, first_vector)
        e.for_each(0, e.minimum(self.block.gemm.vectors, remaining_vectors), 1, emit_full_vector)
        if remaining_channels:
            is_last_panel = (full_vectors // self.block.gemm.vectors - 1, panel)  # the first is less than the second
            e.when([is_last_panel], lambda: emit_channels(remaining_vectors, remaining_channels))

    def add_parts(self, values: list[list[ir.Value]]) -> list[ir.Value]:
        """Returns the outputs of a tile, given those of each part of the input channels; there is only one part."""
        return values[0]

    def _transform(self, sums: ir.Value, start: Index) -> list[ir.Value]:
        """Returns a vector of channels per output of a tile, line by line; `start` is the offset of the first point."""
        e, size, point_stride = self.e, len(self.matrices.of_input), self.block.point_stride(self.columns)
        points = [e.load(sums, e.add(start, point * point_stride), self.lanes) for point in range(self.block.points)]
        rows = apply_on_both_sides(
            e, self.matrices.of_output, [points[i : i + size] for i in range(0, len(points), size)]
        )
        return [value for row in rows for value in row]

    def finish_channels(
        self, tile: Tile, values: list[ir.Value], column: Index, vector_number: Index, active: int
    ) -> None:
        """Stores the results `values` of `tile` for `active` channels from `column` on.

        These are vector `vector_number` of the panel. Computes them by direct convolution if they are not finite.
        """
        branch = scf.IfOp(self.are_finite(values), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            self.store_tile(tile, values, active)
            scf.yield_([])
        with ir.InsertionPoint(branch.else_block):
            self._finish_directly(tile, column, active)
            scf.yield_([])

    def store_tile(self, tile: Tile, values: list[ir.Value], active: int) -> None:
        """Stores the values that are within the image; only the first `active` lanes are valid."""
        positions = product(range(self.block.tile_size), repeat=2)
        for (line, pixel), value in zip(positions, values, strict=True):
            offsets = self.advance(tile.offsets, line=line, pixel=pixel)
            self.e.when([(line, tile.lines), (pixel, tile.pixels)], partial(self.store, value, offsets, active))

    # ---- sums that are not finite ------------------------------------------------------------------------------------

    def _finish_directly(self, tile: Tile, column: Index, active: int) -> None:
        """Computes and stores the results of `tile` for the channels from `column` on by direct convolution."""
        e, strides = self.e, (self.conv.lines.strides[0], self.conv.pixels.strides[0])

        def emit_pixel(indices: list[Index]) -> None:
            line, pixel = indices
            value = self.direct_sums(e.dot(indices, strides, tile.start), column, active)
            self.store(value, self.advance(tile.offsets, line=line, pixel=pixel), active)

        e.nest([tile.lines, tile.pixels], emit_pixel)
