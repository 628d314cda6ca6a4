"""Winograd's gradient of a 3x3 kernel: transforms of both operands, a matrix product per point, transform of the sums.

Lines of tiles are processed in strips, over which the sums are accumulated. If the taps of a vector of output channels
are not all finite, they are computed by direct convolution instead.
"""

from __future__ import annotations

import functools
from itertools import product

from buddy.compiler.mlir.bindings import arith, ir, memref, scf
from buddy.compiler.passes.kernels.access import subrange
from buddy.compiler.passes.kernels.contraction import byte_width
from buddy.compiler.passes.kernels.conv.shape import BLOCKS_TO_SHARE
from buddy.compiler.passes.kernels.conv.winograd.gradient_blocking import (
    TILE_SIZE,
    GradientBlocking,
    KernelGradient,
    TransformedOperand,
    tile_products,
    transformed_operands,
)
from buddy.compiler.passes.kernels.conv.winograd.kernel import CheckedKernel
from buddy.compiler.passes.kernels.conv.winograd.transforms import WINDOW, Matrix, apply_on_both_sides, transforms
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, estimate_nanoseconds, for_blocks
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultSpec
from buddy.compiler.passes.kernels.gemm import kernel_class
from buddy.compiler.passes.kernels.packing import ALIGNMENT


class WinogradGradient(CheckedKernel):
    """Emits the gradient of a kernel, from the flat image `a` and the flat gradient `b` of the convolution's result."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        results: KernelResults,
        gradient: KernelGradient,
        blocking: GradientBlocking,
    ) -> None:
        super().__init__(e, a, b, b, results, gradient.conv)
        self.gradient, self.block = gradient, blocking
        self.matrices = transforms(WINDOW, TILE_SIZE)
        self.lines, self.line_tiles = gradient.tiles
        self.operands = transformed_operands(gradient, blocking.strip * self.line_tiles, self.lanes)
        self.products = tile_products(gradient, blocking.strip * self.line_tiles, blocking.chunk, self.lanes)

    def emit(self) -> None:
        """Emits chunks of input channels, or strips of tiles, see `GradientBlocking`."""
        transformed = [self._allocate(operand.elements) for operand in self.operands]
        if self.block.strips == 1:
            self._transform_operands(0, transformed)
            self._emit_chunks(transformed)
        else:
            self._emit_strips(transformed)
        for buffer in transformed:
            memref.dealloc(buffer)

    def _allocate(self, elements: int) -> ir.Value:
        type_ = ir.MemRefType.get([elements], self.vector.element_type)
        return memref.alloc(type_, [], [], alignment=ALIGNMENT)

    @property
    def _sum_elements(self) -> int:
        """Returns the elements of a buffer for the sums of a chunk."""
        point = self.products.outer[0]
        return point.size * point.strides[2]

    def _emit_chunks(self, transformed: list[ir.Value]) -> None:
        """Emits the sums of each chunk of input channels, which are transformed at once."""
        e, channels, chunk = self.e, self.gradient.channels.size, self.block.chunk
        work = estimate_nanoseconds(flop=self.products.flops * channels / chunk)

        def emit_chunk(number: Index, active: int) -> None:
            sums, first = self._allocate(self._sum_elements), e.mul(number, chunk)
            self._multiply(transformed, first, active, sums, adds=False)
            self._transform_sums(sums, first, active)
            memref.dealloc(sums)

        if ceil_div(channels, chunk) >= BLOCKS_TO_SHARE:
            e.parallel_blocks([channels], [chunk], lambda numbers, active: emit_chunk(numbers[0], active[0]), work)
        else:
            for_blocks(e, channels, chunk, emit_chunk)

    def _emit_strips(self, transformed: list[ir.Value]) -> None:
        """Emits the sums of all input channels, strip by strip."""
        e, channels, sums = self.e, self.gradient.channels.size, self._allocate(self._sum_elements)

        def clear(offset: Index) -> None:
            e.store(e.zero(self.vector), sums, offset)

        def emit_strip(number: Index) -> None:
            self._transform_operands(number, transformed)
            self._multiply(transformed, 0, channels, sums, adds=True)

        e.for_each(0, self._sum_elements, self.lanes, clear)
        e.for_each(0, self.block.strips, 1, emit_strip)
        self._transform_sums(sums, 0, channels)
        memref.dealloc(sums)

    # ---- operands ----------------------------------------------------------------------------------------------------

    def _transform_operands(self, strip: Index, transformed: list[ir.Value]) -> None:
        """Transforms strip number `strip` of the image and of the gradient."""
        matrices = (self.matrices.of_input, self.matrices.of_weights)
        for source, operand, matrix, target in zip((self.a, self.b), self.operands, matrices, transformed, strict=True):
            emit = self._transform_channels if operand.operand.has_channels_last else self._transform_pixels
            emit(source, operand, matrix, strip, target)

    def _transform_channels(
        self, source: ir.Value, operand: TransformedOperand, matrix: Matrix, strip: Index, target: ir.Value
    ) -> None:
        """Transforms a strip of an operand with channels last, in vectors of channels."""
        e, shape, extent, tiles = self.e, operand.operand, len(matrix[0]), self.line_tiles

        def transform_tile(line: Index, starts: list[Index], valid: list[ir.Value | None], tile: Index) -> None:
            offsets = [e.mul(tile, TILE_SIZE * shape.pixel_stride)]
            offsets += [e.add(offsets[0], i * shape.pixel_stride) for i in range(1, extent)]
            count = extent
            if isinstance(tile, int):
                count = min(extent, shape.pixels - tile * TILE_SIZE)
            row = e.mul(e.add(e.mul(line, tiles), tile), operand.tile_stride)

            def transform_vector(number: Index, active: int) -> None:
                channel = e.mul(number, self.lanes)
                grid = [
                    [
                        self._masked(e.load(source, e.dot([start, offset, channel], [1] * 3), self.lanes, active), mask)
                        if pixel < count else e.zero(self.vector)
                        for pixel, offset in enumerate(offsets)
                    ]
                    for start, mask in zip(starts, valid, strict=True)
                ]  # fmt: skip
                self._store_points(grid, matrix, operand, target, e.add(row, channel))

            for_blocks(e, shape.channels[0], self.lanes, transform_vector)

        def transform_line(numbers: list[Index]) -> None:
            (line,) = numbers
            starts, valid = self._lines(operand, strip, line, extent)
            whole_tiles = self.gradient.pixels.size // TILE_SIZE

            def transform(tile: Index) -> None:
                transform_tile(line, starts, valid, tile)

            e.for_each(0, whole_tiles, 1, transform)
            if whole_tiles < tiles:
                transform_tile(line, starts, valid, whole_tiles)

        e.parallel([self.block.strip], transform_line, self._transform_work(operand))

    def _transform_pixels(
        self, source: ir.Value, operand: TransformedOperand, matrix: Matrix, strip: Index, target: ir.Value
    ) -> None:
        """Transforms a strip of an operand with contiguous pixels, in vectors of the tiles of a line."""
        e, shape, extent, tiles = self.e, operand.operand, len(matrix[0]), self.line_tiles
        lanes = min(self.lanes, 1 << (tiles - 1).bit_length())
        type_ = ir.VectorType.get([lanes], self.vector.element_type)
        # A last tile of one pixel is in the last vector, which has a part of the tiles or all of them.
        whole_vectors = self.gradient.pixels.size // TILE_SIZE // lanes
        remaining_tiles = tiles - whole_vectors * lanes

        def transform_line(line: Index, channel: Index) -> None:
            starts, valid = self._lines(operand, strip, line, extent)
            starts = [e.add(start, e.mul(channel, shape.channels[1])) for start in starts]
            row = e.add(e.mul(channel, operand.channel_stride), e.mul(line, tiles))

            def transform_tiles(number: Index, active: int) -> None:
                first = e.mul(number, lanes)

                def load(start: Index, pixel: int) -> ir.Value:
                    offset = e.add(e.add(start, e.mul(first, TILE_SIZE)), pixel)
                    count = active
                    if isinstance(first, int):
                        count = min(active, ceil_div(shape.pixels - pixel - first * TILE_SIZE, TILE_SIZE))
                    return e.load_every_other(source, offset, lanes, count) if count > 0 else e.zero(type_)

                grid = [
                    [self._masked(load(start, pixel), mask) for pixel in range(extent)]
                    for start, mask in zip(starts, valid, strict=True)
                ]
                self._store_points(grid, matrix, operand, target, e.add(row, first))

            def transform_whole(number: Index) -> None:
                transform_tiles(number, lanes)

            e.for_each(0, whole_vectors, 1, transform_whole)
            if remaining_tiles:
                transform_tiles(whole_vectors, remaining_tiles)

        def transform_channel(numbers: list[Index]) -> None:
            # In order: the lanes after the last tile of a line are overwritten by the next line.
            def transform(line: Index) -> None:
                transform_line(line, numbers[0])

            e.for_each(0, self.block.strip, 1, transform)

        e.parallel([shape.channels[0]], transform_channel, self._transform_work(operand))

    def _transform_work(self, operand: TransformedOperand) -> float:
        """Returns a rough time of the transform of a strip on one thread in nanoseconds."""
        return estimate_nanoseconds(moved=operand.elements * byte_width(self.conv.element))

    def _lines(
        self, operand: TransformedOperand, strip: Index, line: Index, extent: int
    ) -> tuple[list[Index], list[ir.Value | None]]:
        """Returns the offsets of the lines that line `line` of tiles in a strip reads, and whether they exist.

        Whether a line of the gradient exists is an i1, or `None` if it always does. The offset of a line that does not
        exist is that of another line. It needs no test for a line of the image, which is multiplied by zeros of the
        gradient.
        """
        e, gradient, shape = self.e, self.gradient, operand.operand
        is_gradient = extent == TILE_SIZE
        number = e.add(e.mul(strip, self.block.strip), line)
        overflows = self.block.strips * self.block.strip > self.lines
        last = self.lines - 1
        image, row = e.divide(e.minimum(number, last) if overflows else number, self.lines // gradient.images.size)
        starts, valid = list[Index](), list[ir.Value | None]()
        for i in range(extent):
            line_number = e.add(e.mul(row, TILE_SIZE), i)
            is_partial = gradient.lines.size % TILE_SIZE != 0 and i == extent - 1
            tests = list[ir.Value]()
            if is_gradient and is_partial:
                tests.append(self._is_less(line_number, shape.lines))
            if is_gradient and overflows:
                tests.append(self._is_less(number, self.lines))
            if is_partial:
                line_number = e.minimum(line_number, shape.lines - 1)
            starts.append(e.dot([image, line_number], [shape.image_stride, shape.line_stride]))
            valid.append(functools.reduce(arith.andi, tests) if tests else None)
        return starts, valid

    def _is_less(self, left: Index, right: int) -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.ult, self.e.value(left), self.e.value(right))

    def _masked(self, value: ir.Value, is_valid: ir.Value | None) -> ir.Value:
        """Returns `value`, or zeros if `is_valid` is an i1 that is false."""
        return value if is_valid is None else arith.select(is_valid, value, self.e.zero(value.type))

    def _store_points(
        self,
        grid: list[list[ir.Value]],
        matrix: Matrix,
        operand: TransformedOperand,
        target: ir.Value,
        first_offset: Index,
    ) -> None:
        """Stores the transform of `grid` at all points; `first_offset` is the offset of the first one."""
        values = [value for row in apply_on_both_sides(self.e, matrix, grid) for value in row]
        for point, value in enumerate(values):
            self.e.store(value, target, self.e.add(first_offset, point * operand.point_stride))

    # ---- sums --------------------------------------------------------------------------------------------------------

    def _multiply(self, transformed: list[ir.Value], first: Index, active: int, sums: ir.Value, *, adds: bool) -> None:
        """Multiplies a strip for the `active` input channels from `first` on, and stores or adds to `sums`."""
        e, (a, b), operand = self.e, transformed, self.operands[0]
        products = tile_products(self.gradient, self.products.k[0].size, active, self.lanes)
        if operand.operand.channels[0] > active:
            size = operand.elements - (operand.operand.channels[0] - active) * operand.channel_stride
            a = subrange(a, e.value(e.mul(first, operand.channel_stride)), size)
        spec = ResultSpec(tuple(loop.strides[2] for loop in products.loops), accumulate=adds, padded=True)
        results = KernelResults(e, spec, [sums], self.block.gemm.lanes, self.vector.element_type)
        kernel_class(self.block.gemm)(e, a, b, results, products, self.block.gemm).emit()

    def _transform_sums(self, sums: ir.Value, first: Index, active: int) -> None:
        """Transforms the sums of the `active` input channels from `first` on to the taps of the kernel's gradient."""
        e, gradient = self.e, self.gradient
        products = tile_products(gradient, self.products.k[0].size, active, self.lanes)
        point_stride, row = products.outer[0].strides[2], products.m.strides[2]
        matrix = self.matrices.of_output
        size = len(matrix[0])

        def transform_channel(numbers: list[Index]) -> None:
            channel = e.add(first, numbers[0])
            start = e.mul(channel, gradient.channels.strides[0])
            offsets = self.results.advance(self.results.origin, gradient.loop_numbers[0], channel)

            def transform_vector(number: Index, lanes: int) -> None:
                column = e.mul(number, self.lanes)
                source = e.add(e.mul(numbers[0], row), column)
                points = [e.load(sums, e.add(source, i * point_stride), self.lanes) for i in range(size**2)]
                grid = [points[i : i + size] for i in range(0, size**2, size)]
                values = [value for line in apply_on_both_sides(e, matrix, grid) for value in line]
                self._finish(values, start, self.advance(offsets, column=column), column, lanes)

            for_blocks(e, self.conv.n.size, self.lanes, transform_vector)

        e.parallel(
            [active],
            transform_channel,
            estimate_nanoseconds(moved=size**2 * active * row * byte_width(self.conv.element)),
        )

    def _finish(
        self, values: list[ir.Value], start: Index, offsets: tuple[Index, ...], column: Index, active: int
    ) -> None:
        """Stores the taps of `active` output channels from `column` on, or direct sums if they are not all finite.

        `start` is the offset of the input channel in the image, `offsets` that of the first tap in the results.
        """
        e, gradient = self.e, self.gradient
        steps = gradient.lines.strides[0], gradient.pixels.strides[0]
        taps = list(product(range(WINDOW), repeat=2))

        def tap_offsets(line: Index, pixel: Index) -> tuple[Index, ...]:
            line_offsets = self.results.advance(offsets, gradient.loop_numbers[1], line)
            return self.results.advance(line_offsets, gradient.loop_numbers[2], pixel)

        def emit_directly(indices: list[Index]) -> None:
            self.store(self.direct_sums(e.dot(indices, steps, start), column, active), tap_offsets(*indices), active)

        branch = scf.IfOp(self.are_finite(values), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            for tap, value in zip(taps, values, strict=True):
                self.store(value, tap_offsets(*tap), active)
            scf.yield_([])
        with ir.InsertionPoint(branch.else_block):
            e.nest([WINDOW, WINDOW], emit_directly)
            scf.yield_([])
