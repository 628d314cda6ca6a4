"""The kernels of direct convolution: depthwise on vectors of channels, and implicit GEMM.

A block of output pixels by output channels stays in registers during the reduction over the window and the input
channels. A step of implicit GEMM multiplies broadcast input elements by vectors of packed weights; a step of a
depthwise convolution multiplies vectors of input channels by a vector of packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from buddy.compiler.mlir.bindings import ir, vector
from buddy.compiler.passes.kernels.access import row_major_strides
from buddy.compiler.passes.kernels.contraction import byte_width, convert_elements, emit_multiply_add
from buddy.compiler.passes.kernels.conv.shape import ConvBlocking, Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, block_counts, estimate_nanoseconds, for_blocks
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets
from buddy.compiler.passes.kernels.packing import Panels
from buddy.compiler.support.target import Target


class ConvKernel:
    """Emits one convolution of the flat image `a` by the flat packed weights `b`. Offsets are in elements."""

    def __init__(self, e: KernelEmitter, a: ir.Value, b: ir.Value, results: KernelResults, conv: Convolution) -> None:
        self.e, self.a, self.b, self.results, self.conv = e, a, b, results, conv
        self.vector, self.lanes = results.vector, results.lanes

    def emit(self) -> None:
        """Emits the convolution at the insertion point."""
        raise NotImplementedError

    def advance(self, offsets: ResultOffsets, **steps: Index) -> ResultOffsets:
        """Returns `offsets` advanced by `steps` along the loops of the results: `line`, `pixel` and `column`.

        `column` is the last loop, along which vectors are stored.
        """
        numbers = {"line": -3, "pixel": -2, "column": -1}
        for name, index in steps.items():
            offsets = self.results.advance(offsets, numbers[name], index)
        return offsets

    def broadcast_element(self, offset: Index) -> ir.Value:
        """Loads an element of the image into every lane."""
        element = convert_elements(self.e.load_scalar(self.a, offset), self.vector.element_type, self.conv.unsigned[0])
        return vector.broadcast(self.vector, element)

    def load_vector(self, flat: ir.Value, offset: Index, active: int | None = None) -> ir.Value:
        """Loads a vector of the image or of the weights, and converts it to the accumulator type."""
        unsigned = self.conv.unsigned[0 if flat == self.a else 1]
        return convert_elements(self.e.load(flat, offset, self.lanes, active), self.vector.element_type, unsigned)


# ---- depthwise -------------------------------------------------------------------------------------------------------

# Output pixels that are accumulated at once: more would leave no registers for weights and input.
_MAX_PIXELS = 8
# Windows with more elements use loops: unrolled, their code would be long.
MAX_UNROLLED_WINDOW = 64
# Lines of outputs of narrow elements that are accumulated at once: an element of several windows is widened less often.
_NARROW_LINES = 2
# The least vector registers for the sums of several lines, a line of the image, and weights.
_REGISTERS_OF_LINES = 32


@dataclass(frozen=True)
class DepthwiseBlocking:
    """`lines` x `pixels` neighbouring outputs by `lanes` channels stay in registers over the whole window."""

    pixels: int
    lanes: int
    lines: int = 1

    def describe(self) -> str:
        block = f"{self.lines}x{self.pixels}" if self.lines > 1 else str(self.pixels)
        return f"{block} pixels by {self.lanes} channels in registers, channel by channel"


def choose_depthwise(conv: Convolution, target: Target) -> DepthwiseBlocking:
    """Returns the blocking for `target`; lines of narrow elements share what they read."""
    lanes, pixels = target.lanes(byte_width(conv.element)), pixels_of_block(conv, _MAX_PIXELS)
    has_registers = target.vector_registers >= _REGISTERS_OF_LINES
    shares_lines = conv.is_narrow and conv.depth <= MAX_UNROLLED_WINDOW and has_registers
    return DepthwiseBlocking(pixels, lanes, min(_NARROW_LINES, conv.lines.size) if shares_lines else 1)


def pixels_of_block(conv: Convolution, largest: int) -> int:
    """Returns the smallest block of up to `largest` pixels with which a line has the fewest blocks.

    A smaller block at the end of the line counts as two, since it needs separate code.
    """
    size = conv.pixels.size
    return min(
        range(1, min(largest, size) + 1), key=lambda block: (sum(n + 1 for _, n in block_counts(size, block)), block)
    )


def depthwise_panels(conv: Convolution, blocking: DepthwiseBlocking) -> Panels:
    """Returns the packing of the weights: [channels / lanes, window, lanes], in elements of the sums."""
    (channels,) = conv.groups
    window = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    n, lanes, unsigned = (channels.size, channels.strides[1]), blocking.lanes, conv.unsigned[1]
    return Panels((), n, window, lanes, lanes, unsigned, element=conv.element)


class Depthwise(ConvKernel):
    """Emits a depthwise convolution with weights packed by `depthwise_panels`."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        results: KernelResults,
        conv: Convolution,
        blocking: DepthwiseBlocking,
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.block = blocking
        self.panels = self.choose_panels()

    def choose_panels(self) -> Panels:
        """Returns the packing of the weights."""
        return depthwise_panels(self.conv, self.block)

    def emit(self) -> None:
        """Emits blocks of lines, which threads share."""
        e, conv = self.e, self.conv
        outer = [*conv.images, conv.lines]
        loaded_bytes = conv.flops // 2 * byte_width(conv.input_element)

        def emit_lines(numbers: list[Index], active: list[int]) -> None:
            indices = [*numbers[:-1], e.mul(numbers[-1], self.block.lines)]
            a, offsets = e.dot(indices, [loop.strides[0] for loop in outer]), self.results.origin
            for loop, index in enumerate(indices):
                offsets = self.results.advance(offsets, loop, index)
            for_blocks(
                e, conv.groups[0].size, self.lanes,
                lambda n, channels: self._emit_channels(a, offsets, n, active[-1], channels),
            )  # fmt: skip

        e.parallel_blocks(
            [loop.size for loop in outer], [*(1 for _ in conv.images), self.block.lines], emit_lines,
            estimate_nanoseconds(flop=conv.flops, moved=loaded_bytes),
        )  # fmt: skip

    def _emit_channels(self, a: Index, first_offsets: ResultOffsets, number: Index, lines: int, active: int) -> None:
        """Emits `lines` lines, from offset `a` of A, for vector `number` of channels, of which `active` are valid."""
        e, pixels = self.e, self.conv.pixels
        channel, b = e.mul(number, self.lanes), e.mul(number, self.panels.panel_elements)

        def emit_block(block_number: Index, count: int) -> None:
            pixel = e.mul(block_number, self.block.pixels)
            start = e.dot([channel, pixel], [1, pixels.strides[0]], a)
            block_offsets = self.advance(first_offsets, pixel=pixel, column=channel)
            offsets = [self.advance(block_offsets, line=i, pixel=j) for i in range(lines) for j in range(count)]
            sums = [self.results.initial(result_offsets, 0, active) for result_offsets in offsets]
            sums = self._accumulate(start, b, sums, active, lines)
            self.results.finish_all(
                [(total, result_offsets, 0, active) for total, result_offsets in zip(sums, offsets, strict=True)]
            )

        for_blocks(e, pixels.size, self.block.pixels, emit_block)

    def _accumulate(self, a: Index, b: Index, sums: list[ir.Value], active: int, lines: int) -> list[ir.Value]:
        """Returns the sums of all pixels of a block of `lines` lines after the whole window."""
        if self.conv.depth <= MAX_UNROLLED_WINDOW:
            return self._accumulate_unrolled(a, b, sums, active, lines)
        return self._accumulate_in_loops(a, b, sums, active, 0)

    def _accumulate_in_loops(self, a: Index, b: Index, sums: list[ir.Value], active: int, depth: int) -> list[ir.Value]:
        """Emits the window's loops from number `depth` on."""
        e, loops = self.e, self.conv.k
        if depth == len(loops):
            weight = self.load_vector(self.b, b)
            starts = [e.add(a, i * self.conv.pixels.strides[0]) for i in range(len(sums))]
            return [
                emit_multiply_add(self.load_vector(self.a, start, active), weight, total)
                for start, total in zip(starts, sums, strict=True)
            ]
        b_stride = self.lanes * prod(loop.size for loop in loops[depth + 1 :])

        def emit_iteration(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
            next_a = e.add(a, e.mul(k, loops[depth].strides[0]))
            return self._accumulate_in_loops(next_a, e.add(b, e.mul(k, b_stride)), carried, active, depth + 1)

        return e.loop(0, loops[depth].size, 1, emit_iteration, sums)

    def _accumulate_unrolled(
        self, a: Index, b: Index, sums: list[ir.Value], active: int, lines: int
    ) -> list[ir.Value]:  # fmt: skip
        """Emits the window unrolled: an input vector is loaded once for all overlapping windows.

        The windows of all lines read one line of the image before the next one, so that few vectors of it are live.
        """
        e, conv, sums = self.e, self.conv, list(sums)
        pixels = len(sums) // lines
        loaded: dict[int, Any] = {}
        taps = product(*(range(loop.size) for loop in conv.k))
        starts = [sum(index * loop.strides[0] for index, loop in zip(tap, conv.k, strict=True)) for tap in taps]
        # (offset in the image, line of the block, number of the tap) of each step.
        steps = [
            (start + line * conv.lines.strides[0], line, number)
            for line in range(lines)
            for number, start in enumerate(starts)
        ]
        for start, line, number in sorted(steps, key=lambda step: step[0] // max(1, conv.lines.strides[0])):
            weight = self.load_vector(self.b, e.add(b, number * self.lanes))
            for i in range(pixels):
                offset = start + i * conv.pixels.strides[0]
                if offset not in loaded:
                    loaded[offset] = self.load_vector(self.a, e.add(a, offset), active)
                sums[line * pixels + i] = emit_multiply_add(loaded[offset], weight, sums[line * pixels + i])
        return sums


# ---- implicit GEMM ---------------------------------------------------------------------------------------------------


def gemm_panels(conv: Convolution, blocking: ConvBlocking) -> Panels:
    """Returns the packing of the weights: [group..., panel, k, column]."""
    outer = tuple((loop.size, loop.strides[1]) for loop in conv.groups)
    ks = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    return Panels(outer, (conv.n.size, conv.n.strides[1]), ks, blocking.columns, blocking.lanes)


class ImplicitGemm(ConvKernel):
    """Emits a convolution as a matrix product of image windows by weights that are packed by `gemm_panels`."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        results: KernelResults,
        conv: Convolution,
        blocking: ConvBlocking,
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.block = blocking
        self.panels = self.choose_panels()

    def choose_panels(self) -> Panels:
        """Returns the packing of the weights."""
        return gemm_panels(self.conv, self.block)

    def emit(self) -> None:
        """Emits blocks of lines by groups of panels, which threads share."""
        conv, block = self.conv, self.block
        loops = [*conv.groups, conv.n, *conv.images, conv.lines]
        sizes, blocks = [loop.size for loop in loops], [1] * len(loops)
        blocks[len(conv.groups)], blocks[-1] = block.columns * block.panels, block.lines
        self.e.parallel_blocks(sizes, blocks, self._emit_lines, estimate_nanoseconds(flop=conv.flops))

    def _emit_lines(self, numbers: list[Index], active: list[int]) -> None:
        """Emits a block of lines of one image and group, for as many panels of weights as fit into cache."""
        e, conv, block, group_loops = self.e, self.conv, self.block, len(self.conv.groups)
        panel_group, first_line = numbers[group_loops], e.mul(numbers[-1], block.lines)
        outer = [*numbers[:group_loops], *numbers[group_loops + 1 : -1]]
        a = e.dot([*outer, first_line], [loop.strides[0] for loop in (*conv.groups, *conv.images, conv.lines)])
        group_strides = self.panels.outer_strides[:group_loops]
        b = e.dot([*numbers[:group_loops], panel_group], [*group_strides, block.panels * self.panels.panel_elements])
        offsets = self.results.origin
        for loop, index in enumerate(outer):
            offsets = self.results.advance(offsets, loop, index)
        offsets = self.advance(offsets, line=first_line, column=e.mul(panel_group, block.panels * block.columns))

        def emit_panel(number: Index, columns: int) -> None:
            panel_offsets = self.advance(offsets, column=e.mul(number, block.columns))
            self._emit_pixels(
                a, e.add(b, e.mul(number, self.panels.panel_elements)), panel_offsets, active[-1], columns
            )

        for_blocks(e, active[group_loops], block.columns, emit_panel)

    def _emit_pixels(self, a: Index, b: Index, offsets: ResultOffsets, lines: int, columns: int) -> None:
        """Emits all pixels of `lines` lines, for the `columns` of one panel."""
        e, pixels = self.e, self.conv.pixels

        def emit_block(number: Index, count: int) -> None:
            first = e.mul(number, self.block.pixels)
            start = e.add(a, e.mul(first, pixels.strides[0]))
            self._emit_block(start, b, self.advance(offsets, pixel=first), (lines, count), columns)

        for_blocks(e, pixels.size, self.block.pixels, emit_block)

    def _emit_block(self, a: Index, b: Index, offsets: ResultOffsets, size: tuple[int, int], columns: int) -> None:
        """Emits a block of `size` (lines, pixels) by `columns` channels, in registers during the whole reduction."""
        conv, lanes = self.conv, self.lanes
        positions = list(product(range(size[0]), range(size[1])))
        position_offsets = [line * conv.lines.strides[0] + pixel * conv.pixels.strides[0] for line, pixel in positions]
        vector_columns = range(0, columns, lanes)
        vectors = [
            (self.advance(offsets, line=line, pixel=pixel), column)
            for line, pixel in positions
            for column in vector_columns
        ]
        sums = [self.results.initial(vector_offsets, column, columns - column) for vector_offsets, column in vectors]
        sums = self._accumulate(a, b, position_offsets, len(vector_columns), sums)
        self.results.finish_all(
            [
                (total, vector_offsets, column, columns - column)
                for (vector_offsets, column), total in zip(vectors, sums, strict=True)
            ]
        )

    def _accumulate(
        self, a: Index, b: Index, position_offsets: list[int], vectors: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Returns the sums after the whole reduction, from offsets `a` and `b`: for each position, `vectors` vectors.

        `position_offsets` has the offset in the image of each position of the block.
        """
        e, loops = self.e, self.conv.merged_k
        b_strides = row_major_strides([loop.size for loop in loops], self.block.columns)

        def emit_loops(depth: int, a: Index, b: Index, sums: list[ir.Value]) -> list[ir.Value]:
            if depth == len(loops):
                return self._add_products(a, b, position_offsets, vectors, sums)

            def emit_iteration(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
                next_a = e.add(a, e.mul(k, loops[depth].strides[0]))
                return emit_loops(depth + 1, next_a, e.add(b, e.mul(k, b_strides[depth])), carried)

            return e.loop(0, loops[depth].size, 1, emit_iteration, sums)

        return emit_loops(0, a, b, sums)

    def _add_products(
        self, a: Index, b: Index, position_offsets: list[int], vectors: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Returns the sums after one step: an input element per position times `vectors` vectors of weights."""
        weights = [self.load_vector(self.b, self.e.add(b, j * self.lanes)) for j in range(vectors)]
        result = []
        for i, offset in enumerate(position_offsets):
            element = self.broadcast_element(self.e.add(a, offset))
            result += [emit_multiply_add(element, weight, sums[i * vectors + j]) for j, weight in enumerate(weights)]
        return result
