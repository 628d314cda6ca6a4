"""Emits convolutions whose window is larger than their result, in groups of few channels.

Examples are the gradients of the weights of depthwise and grouped convolutions: their results are a few taps (elements
of the forward window), each the sum of many products. Both operands are read in place, once for a block of taps, whose
sums stay in registers. Vectors are along the channels, or along the last loop of the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from buddy.compiler.mlir.bindings import ir, vector
from buddy.compiler.passes.kernels.access import Loop
from buddy.compiler.passes.kernels.contraction import byte_width, convert_elements, emit_add, emit_multiply_add
from buddy.compiler.passes.kernels.conv.direct import ConvKernel
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, estimate_nanoseconds, reduce_lanes
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets
from buddy.compiler.support.target import FMA_LATENCY, Target

# Registers in addition to the sums: vectors of the two operands, and the next ones, which are loaded early.
_OTHER_REGISTERS = 6
# Steps of the reduction's last loop that are unrolled with vectors of channels, so that neighbouring taps share loads.
_UNROLLED_STEPS = 4
# Output channels of a group; more fill the vectors of an implicit GEMM.
MAX_CHANNELS = 8
# Steps in the image along the last loop of the reduction with which vectors of it are read.
READ_STEPS = (1, 2)


@dataclass(frozen=True)
class TapBlocking:
    """The sums that stay in registers over the whole reduction, for `lanes` channels or products at once.

    These are the sums of `images` x `lines` x `pixels` taps, along the last loop over images and the loops over lines
    and pixels, by `columns` output channels. Vectors are along channels, or (not `along_channels`) along the last loop
    of the reduction.
    """

    images: int
    lines: int
    pixels: int
    columns: int
    lanes: int
    along_channels: bool

    @property
    def taps(self) -> int:
        return self.images * self.lines * self.pixels

    @property
    def cycles(self) -> float:
        """Returns the cycles of one step: the maximum of multiply-adds, loads and latency, plus an overhead per load.

        Loads of the image cross cache lines, which takes two cycles. The overhead is an estimate.
        """
        products, loads = self.taps * self.columns, 2 * self.taps + self.columns
        return max(products, loads, FMA_LATENCY) + 0.05 * loads

    def describe(self) -> str:
        """Returns the text of a remark."""
        block = f"{self.images}x" * (self.images > 1) + f"{self.lines}x{self.pixels} taps"
        block += f" by {self.columns} channels" * (self.columns > 1)
        lane_contents = "channels" if self.along_channels else "products of a channel"
        return f"{block} in registers, {self.lanes} {lane_contents} at once, weights read in place"


def choose_taps(conv: Convolution, target: Target) -> TapBlocking | None:
    """Returns the blocking with the least estimated time, or `None` if the kernel does not apply to `conv`."""
    vector_loop = _vector_loop(conv)
    if vector_loop is None:
        return None
    lanes = min(target.lanes(byte_width(conv.element)), 1 << (vector_loop.size - 1).bit_length())
    registers = max(1, target.vector_registers - _OTHER_REGISTERS)
    sizes = [conv.images[-1].size if conv.images else 1, conv.lines.size, conv.pixels.size, conv.n.size]
    images, lines, pixels, columns = (range(1, min(size, registers) + 1) for size in sizes)
    blocks = [
        TapBlocking(*block, lanes=lanes, along_channels=vector_loop is conv.groups[0])
        for block in product(images, lines, pixels, columns)
        if prod(block) <= registers
    ]

    def cost(block: TapBlocking) -> tuple[float, int]:
        """Returns the cycles of a step for all sums, where a block at an end takes as long as a whole one."""
        block_sizes = (block.images, block.lines, block.pixels, block.columns)
        count = prod(ceil_div(size, block_size) for size, block_size in zip(sizes, block_sizes, strict=True))
        return count * block.cycles, -block.taps * block.columns

    return min(blocks, key=cost)


def _vector_loop(conv: Convolution) -> Loop | None:
    """Returns the loop along which the kernel has vectors, or `None` if the kernel does not apply to `conv`.

    The kernel applies to groups of few output channels, whose window is larger than the result. Vectors are along the
    groups, if these have one channel and both operands are contiguous along them; or along the last loop of the
    reduction, if the weights are contiguous along it, and the image is too or has a step of two.
    """
    if len(conv.groups) != 1 or conv.n.size > MAX_CHANNELS or not conv.k:
        return None
    (groups,), last = conv.groups, conv.k[-1]
    taps = prod(loop.size for loop in (*conv.images, conv.lines, conv.pixels))
    if conv.depth <= taps or (conv.n.size > 1 and last.size < conv.pixels.size):
        return None
    if conv.depthwise:
        return groups if groups.strides[1] == 1 else None
    return last if last.strides[1] == 1 and last.strides[0] in READ_STEPS else None


class TapSums(ConvKernel):
    """Emits the convolution in blocks of taps. The weights `b` are not packed."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        results: KernelResults,
        conv: Convolution,
        blocking: TapBlocking,
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.block = blocking

    def emit(self) -> None:
        """Emits the blocks of taps, which threads share."""
        conv, block = self.conv, self.block
        images = [(loop, 1) for loop in conv.images[:-1]] + [(loop, block.images) for loop in conv.images[-1:]]
        rows = [*images, (conv.lines, block.lines), (conv.pixels, block.pixels)]
        # In the order of the loops of the results, see `Convolution.loops`.
        loops = [*rows, *((loop, block.lanes) for loop in conv.groups)]
        if not block.along_channels:
            loops = [*((loop, 1) for loop in conv.groups), *rows, (conv.n, block.columns)]

        def emit_block(numbers: list[Index], active: list[int]) -> None:
            firsts = [self.e.mul(number, size) for number, (_, size) in zip(numbers, loops, strict=True)]
            a, b = (self.e.dot(firsts, [loop.strides[operand] for loop, _ in loops]) for operand in (0, 1))
            offsets = self.results.origin
            for number, index in enumerate(firsts):
                offsets = self.results.advance(offsets, number, index)
            # `active` ends with the counts of images, lines, pixels and channels.
            taps = (active[-4] if images else 1, active[-3], active[-2])
            self._emit_taps(a, b, offsets, taps, active[-1])

        sizes, blocks = [loop.size for loop, _ in loops], [size for _, size in loops]
        self.e.parallel_blocks(sizes, blocks, emit_block, estimate_nanoseconds(flop=conv.flops))

    def _emit_taps(self, a: Index, b: Index, offsets: ResultOffsets, taps: tuple[int, int, int], active: int) -> None:
        """Emits a block of `taps` (images, lines, pixels), at offsets `a` and `b`, for `active` channels."""
        conv, along_channels = self.conv, self.block.along_channels
        image = conv.images[-1] if conv.images else None
        positions = list(product(*map(range, taps)))
        strides = [image.strides[0] if image else 0, conv.lines.strides[0], conv.pixels.strides[0]]
        starts = [sum(i * stride for i, stride in zip(position, strides, strict=True)) for position in positions]
        columns = 1 if along_channels else active
        *outer, last = conv.k

        def emit_loops(loops: Sequence[Loop], a: Index, b: Index, sums: list[ir.Value]) -> list[ir.Value]:
            if not loops:
                return (
                    self._add_pixels(last, a, b, starts, sums, active)
                    if along_channels
                    else self._add_vectors(last, a, b, starts, sums, columns)
                )
            loop, e = loops[0], self.e
            return e.loop(
                0, loop.size, 1,
                lambda k, carried: emit_loops(
                    loops[1:], e.add(a, e.mul(k, loop.strides[0])), e.add(b, e.mul(k, loop.strides[1])), carried
                ),
                sums,
            )  # fmt: skip

        sums = emit_loops(outer, a, b, [self.e.zero(self.vector)] * (len(positions) * columns))
        for number, total in enumerate(sums):
            position, column = divmod(number, columns)
            image_number, line, pixel = positions[position]
            tap_offsets = offsets
            if image is not None:
                tap_offsets = self.results.advance(tap_offsets, -4, image_number)
            tap_offsets = self.advance(tap_offsets, line=line, pixel=pixel, column=column)
            value, lanes = (total, active) if along_channels else (self._summed(total), 1)
            self.results.finish(emit_add(value, self.results.initial(tap_offsets, 0, lanes)), tap_offsets, 0, lanes)

    def _summed(self, sums: ir.Value) -> ir.Value:
        """Returns a vector with the sum of all lanes in its first lane."""
        return vector.insert(reduce_lanes(sums, emit_add), self.e.zero(self.vector), [], [0])

    def _add_pixels(
        self, loop: Loop, a: Index, b: Index, starts: list[int], sums: list[ir.Value], active: int
    ) -> list[ir.Value]:
        """Returns the sums after the loop, with vectors of channels; neighbouring taps share loaded vectors."""
        e = self.e

        def steps(count: int) -> Callable[[Index, list[ir.Value]], Sequence[ir.Value]]:
            def emit_steps(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
                sums, loaded = list(carried), dict[int, ir.Value]()
                step_a, step_b = e.add(a, e.mul(k, loop.strides[0])), e.add(b, e.mul(k, loop.strides[1]))
                for step in range(count):
                    weight = self.load_vector(self.b, e.add(step_b, step * loop.strides[1]), active)
                    for tap, start in enumerate(starts):
                        offset = start + step * loop.strides[0]
                        if offset not in loaded:
                            loaded[offset] = self.load_vector(self.a, e.add(step_a, offset), active)
                        sums[tap] = emit_multiply_add(loaded[offset], weight, sums[tap])
                return sums

            return emit_steps

        unrolled_end = loop.size // _UNROLLED_STEPS * _UNROLLED_STEPS
        sums = e.loop(0, unrolled_end, _UNROLLED_STEPS, steps(_UNROLLED_STEPS), sums)
        remaining_steps = loop.size - unrolled_end
        if not remaining_steps:
            return sums
        return e.loop(unrolled_end, loop.size, remaining_steps, steps(remaining_steps), sums)

    def _add_vectors(
        self, loop: Loop, a: Index, b: Index, starts: list[int], sums: list[ir.Value], columns: int
    ) -> list[ir.Value]:
        """Returns the sums of `columns` output channels for each tap after the loop, with vectors along it."""
        e, lanes = self.e, self.lanes

        def step(count: int) -> Callable[[Index, list[ir.Value]], Sequence[ir.Value]]:
            def emit_step(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
                step_a, step_b = e.add(a, e.mul(k, loop.strides[0])), e.add(b, k)
                weights = [
                    self.load_vector(self.b, e.add(step_b, column * self.conv.n.strides[1]), count)
                    for column in range(columns)
                ]
                totals = []
                for number, start in enumerate(starts):
                    image = self._load_image(e.add(step_a, start), loop.strides[0], count)
                    pairs = zip(weights, carried[number * columns :], strict=False)
                    totals += [emit_multiply_add(image, weight, total) for weight, total in pairs]
                return totals

            return emit_step

        remainder = loop.size % lanes
        sums = e.loop(0, loop.size - remainder, lanes, step(lanes), sums)
        return list(step(remainder)(loop.size - remainder, sums)) if remainder else sums

    def _load_image(self, offset: Index, stride: int, active: int) -> ir.Value:
        """Loads `active` elements of the image with a stride of 1 or 2; other lanes are zeros."""
        if stride == 1:
            return self.load_vector(self.a, offset, active)
        value = self.e.load_every_other(self.a, offset, self.lanes, active)
        return convert_elements(value, self.vector.element_type, self.conv.unsigned[0])
