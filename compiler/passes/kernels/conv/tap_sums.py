"""The kernel of depthwise convolutions whose window is larger than their result: the gradient of a depthwise kernel.

Such a convolution has a sum of many products for each of a few taps. Both operands are read in place, once for a block
of taps, whose sums stay in registers. Vectors are along the channels, or along the last loop of the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from buddy.compiler.mlir.bindings import ir, vector
from buddy.compiler.passes.kernels.access import Loop
from buddy.compiler.passes.kernels.contraction import add, bytes_of, converted, multiply_add
from buddy.compiler.passes.kernels.conv.kernels import ConvKernel
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, nanoseconds, reduce_lanes
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultOffsets
from buddy.compiler.support.target import Target

# Registers beside the sums: vectors of the two operands, of which the next ones are loaded early.
_OTHER_REGISTERS = 6
# Steps of the reduction's last loop that are unrolled with vectors of channels, so that neighbouring taps share loads.
_UNROLLED_STEPS = 4


@dataclass(frozen=True)
class TapBlocking:
    """`lines` x `pixels` taps stay in registers over the whole reduction, for `lanes` channels or products at once."""

    lines: int
    pixels: int
    lanes: int
    along_channels: bool

    def describe(self) -> str:
        what = "channels" if self.along_channels else "products of a channel"
        return f"{self.lines}x{self.pixels} taps in registers, {self.lanes} {what} at once, weights read in place"


def choose_taps(conv: Convolution, target: Target) -> TapBlocking | None:
    """Returns the blocking for `conv`, or `None` if the kernel does not apply.

    It applies to one channel per group and more products per result than results per channel, if both operands are
    contiguous along the channels, or along the last loop of the reduction (the image also in steps of two).
    """
    if conv.n.size > 1 or len(conv.groups) != 1 or not conv.k:
        return None
    if conv.depth <= prod(loop.size for loop in (*conv.images, conv.lines, conv.pixels)):
        return None
    along_channels, last = conv.groups[0].strides == (1, 1, 1), conv.k[-1]
    if not along_channels and (conv.depthwise or last.strides[1] != 1 or last.strides[0] not in (1, 2)):
        return None
    vectorised = conv.groups[0].size if along_channels else last.size
    lanes = min(target.lanes(bytes_of(conv.element)), 1 << (vectorised - 1).bit_length())
    registers = max(1, target.vector_registers - _OTHER_REGISTERS)
    pixels = min(conv.pixels.size, registers)
    return TapBlocking(max(1, min(conv.lines.size, registers // pixels)), pixels, lanes, along_channels)


class TapSums(ConvKernel):
    """Emits the convolution in blocks of taps. `b` is unpacked."""

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
        conv, block = self.conv, self.block
        channels = conv.groups[0]
        outer: list[tuple[Loop, int]] = [*((loop, 1) for loop in conv.images)]
        outer += [(conv.lines, block.lines), (conv.pixels, block.pixels)]
        grouped = (channels, block.lanes if block.along_channels else 1)
        # In the order of the loops of the results, see `Convolution.loops`.
        loops = [*outer, grouped] if block.along_channels else [grouped, *outer]

        def emit_block(numbers: list[Index], active: list[int]) -> None:
            firsts = [self.e.mul(number, size) for number, (_, size) in zip(numbers, loops, strict=True)]
            a = self.e.dot(firsts, [loop.strides[0] for loop, _ in loops])
            b = self.e.dot(firsts, [loop.strides[1] for loop, _ in loops])
            offsets = self.results.origin
            for number, index in enumerate(firsts):
                offsets = self.results.advance(offsets, number, index)
            if block.along_channels:
                self._emit_taps(a, b, offsets, (active[-3], active[-2]), active[-1])
            else:
                self._emit_taps(a, b, offsets, (active[-2], active[-1]), 1)

        sizes, blocks = [loop.size for loop, _ in loops], [size for _, size in loops]
        self.e.parallel_blocks(sizes, blocks, emit_block, nanoseconds(flop=conv.flops))

    def _emit_taps(self, a: Index, b: Index, offsets: ResultOffsets, taps: tuple[int, int], active: int) -> None:
        """Emits a block of `taps` (lines, pixels), at offsets `a` and `b`, for `active` channels."""
        conv, positions = self.conv, list(product(range(taps[0]), range(taps[1])))
        starts = [line * conv.lines.strides[0] + pixel * conv.pixels.strides[0] for line, pixel in positions]
        sums = [self.e.zero(self.vector) for _ in positions]
        *outer, last = conv.k
        add_row = self._add_pixels if self.block.along_channels else self._add_vectors

        def emit_loops(loops: Sequence[Loop], a: Index, b: Index, sums: list[ir.Value]) -> list[ir.Value]:
            if not loops:
                return add_row(last, a, b, starts, sums, active)
            loop, e = loops[0], self.e
            return e.loop(
                0, loop.size, 1,
                lambda k, carried: emit_loops(
                    loops[1:], e.add(a, e.mul(k, loop.strides[0])), e.add(b, e.mul(k, loop.strides[1])), carried
                ),
                sums,
            )  # fmt: skip

        sums = emit_loops(outer, a, b, sums)
        for (line, pixel), total in zip(positions, sums, strict=True):
            place = self.advance(offsets, line=line, pixel=pixel)
            value = total if self.block.along_channels else self._summed(total)
            self.results.finish(add(value, self.results.initial(place, 0, active)), place, 0, active)

    def _summed(self, sums: ir.Value) -> ir.Value:
        """Returns a vector with the sum of all lanes in its first lane."""
        return vector.insert(reduce_lanes(sums, add), self.e.zero(self.vector), [], [0])

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
                        sums[tap] = multiply_add(loaded[offset], weight, sums[tap])
                return sums

            return emit_steps

        whole = loop.size // _UNROLLED_STEPS * _UNROLLED_STEPS
        sums = e.loop(0, whole, _UNROLLED_STEPS, steps(_UNROLLED_STEPS), sums)
        return (
            e.loop(whole, loop.size, loop.size - whole, steps(loop.size - whole), sums) if whole < loop.size else sums
        )

    def _add_vectors(
        self, loop: Loop, a: Index, b: Index, starts: list[int], sums: list[ir.Value], _: int
    ) -> list[ir.Value]:
        """Returns the sums after the loop, with vectors along it."""
        e, lanes = self.e, self.lanes

        def step(count: int) -> Callable[[Index, list[ir.Value]], Sequence[ir.Value]]:
            def emit_step(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
                weight = self.load_vector(self.b, e.add(b, k), count)
                step_a = e.add(a, e.mul(k, loop.strides[0]))
                vectors = [self._load_image(e.add(step_a, start), loop.strides[0], count) for start in starts]
                return [multiply_add(image, weight, total) for image, total in zip(vectors, carried, strict=True)]

            return emit_step

        rest = loop.size % lanes
        sums = e.loop(0, loop.size - rest, lanes, step(lanes), sums)
        return list(step(rest)(loop.size - rest, sums)) if rest else sums

    def _load_image(self, offset: Index, stride: int, active: int) -> ir.Value:
        """Loads `active` elements of the image with a stride of 1 or 2; other lanes are zeros."""
        if stride == 1:
            return self.load_vector(self.a, offset, active)
        value = self.e.load_every_other(self.a, offset, self.lanes, active)
        return converted(value, self.vector.element_type, self.conv.unsigned[0])
