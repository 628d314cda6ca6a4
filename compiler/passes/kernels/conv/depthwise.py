"""Depthwise convolution on vectors of channels; each input pixel is read once for all windows of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from buddy.compiler.passes.kernels.arithmetic import bytes_of, multiply_add
from buddy.compiler.passes.kernels.conv.base import ConvKernel
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks, nanoseconds, split
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place
from buddy.compiler.passes.kernels.packing import Panels
from buddy.compiler.support.target import Target

# Output pixels that are accumulated at once: more would leave no registers for weights and input.
MAX_PIXELS = 8

# Larger windows use loops: unrolled, their code would be long.
MAX_UNROLLED = 64


@dataclass(frozen=True)
class DepthwiseBlocking:
    """`pixels` neighbouring outputs by `lanes` channels stay in registers over the whole window."""

    pixels: int
    lanes: int

    def describe(self) -> str:
        return f"{self.pixels} pixels by {self.lanes} channels in registers, channel by channel"


def choose(conv: Convolution, target: Target) -> DepthwiseBlocking:
    """Returns the widest block of pixels that results in the fewest blocks."""
    lanes = target.lanes(bytes_of(conv.element))
    most = min(MAX_PIXELS, conv.pixels.size)
    pixels = min(range(1, most + 1), key=lambda size: (sum(n + 1 for _, n in split(conv.pixels.size, size)), size))
    return DepthwiseBlocking(pixels, lanes)


def panels_of(conv: Convolution, blocking: DepthwiseBlocking) -> Panels:
    """Returns the form of the packed weights: [channels / lanes, window, lanes]."""
    (channels,) = conv.groups
    window = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    return Panels((), (channels.size, channels.strides[1]), window, blocking.lanes, blocking.lanes)


class Depthwise(ConvKernel):
    """Emits one kernel whose weights are packed as in `panels_of`."""

    def __init__(
        self, e: KernelEmitter, a: Any, b: Any, results: KernelResults, conv: Convolution, blocking: DepthwiseBlocking
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.block, self.panels = blocking, panels_of(conv, blocking)

    def emit(self) -> None:
        conv = self.conv
        outer = [*conv.images, conv.lines]
        read = conv.flops // 2 * bytes_of(conv.factor)

        def line(indices: list[Index]) -> None:
            a, place = self.e.dot(indices, [loop.strides[0] for loop in outer]), self.results.origin
            for loop, index in enumerate(indices):
                place = self.results.advance(place, loop, index)
            for_blocks(self.e, conv.groups[0].size, self.lanes, lambda n, active: self._line(a, place, n, active))

        self.e.parallel([loop.size for loop in outer], line, nanoseconds(flop=conv.flops, moved=read))

    def _line(self, a: Index, place: Place, number: Index, active: int) -> None:
        """Emits one line of `active` channels."""
        e, pixels = self.e, self.conv.pixels
        channel, b = e.mul(number, self.lanes), e.mul(number, self.panels.panel)

        def block(first: Index, count: int) -> None:
            pixel = e.mul(first, self.block.pixels)
            here = e.dot([channel, pixel], [1, pixels.strides[0]], a)
            there = self.advance(place, pixel=pixel, column=channel)
            places = [self.advance(there, pixel=i) for i in range(count)]
            sums = [self.results.initial(where, 0, active) for where in places]
            for where, value in zip(places, self._windows(here, b, sums, active), strict=True):
                self.results.finish(value, where, 0, active)

        for_blocks(e, pixels.size, self.block.pixels, block)

    def _windows(self, a: Index, b: Index, sums: list[Any], active: int) -> list[Any]:
        """Returns the sums of all pixels of a block."""
        if self.conv.depth <= MAX_UNROLLED:
            return self._unrolled(a, b, sums, active)
        return self._looped(a, b, sums, active, 0)

    def _looped(self, a: Index, b: Index, sums: list[Any], active: int, depth: int) -> list[Any]:
        """Emits the window's loops from number `depth` on."""
        e, loops = self.e, self.conv.k
        if depth == len(loops):
            weight = self.factors(self.b, b)
            reads = [e.add(a, i * self.conv.pixels.strides[0]) for i in range(len(sums))]
            return [multiply_add(self.factors(self.a, x, active), weight, s) for x, s in zip(reads, sums, strict=True)]
        step = self.lanes * prod(loop.size for loop in loops[depth + 1 :])

        def body(k: Index, inner: list[Any]) -> Sequence[Any]:
            here = e.add(a, e.mul(k, loops[depth].strides[0]))
            return self._looped(here, e.add(b, e.mul(k, step)), inner, active, depth + 1)

        return e.loop(0, loops[depth].size, 1, body, sums)

    def _unrolled(self, a: Index, b: Index, sums: list[Any], active: int) -> list[Any]:
        """Emits the window unrolled: an input element is read once for all overlapping windows."""
        e, conv, sums = self.e, self.conv, list(sums)
        read: dict[int, Any] = {}
        for number, position in enumerate(product(*(range(loop.size) for loop in conv.k))):
            weight = self.factors(self.b, e.add(b, number * self.lanes))
            start = sum(p * loop.strides[0] for p, loop in zip(position, conv.k, strict=True))
            for i in range(len(sums)):
                offset = start + i * conv.pixels.strides[0]
                if offset not in read:
                    read[offset] = self.factors(self.a, e.add(a, offset), active)
                sums[i] = multiply_add(read[offset], weight, sums[i])
        return sums
