"""Depthwise convolution: vectors of channels, each pixel of the input read once for all windows of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from buddy.compiler.bindings import ir, vector
from buddy.compiler.kernels.conv.shape import Convolution
from buddy.compiler.kernels.emit import Emitter, Index, for_blocks, nanoseconds, split
from buddy.compiler.kernels.packing import Panels
from buddy.compiler.target import Target

# Output pixels whose sums are held at once: more would leave no registers for weights and input.
MAX_PIXELS = 8

# Windows of more elements are walked by loops: unrolled, they would be long code.
MAX_UNROLLED = 64


@dataclass(frozen=True)
class Blocking:
    """`pixels` neighbouring outputs by `lanes` channels stay in registers over the whole window."""

    pixels: int
    lanes: int

    def describe(self) -> str:
        return f"{self.pixels} pixels by {self.lanes} channels in registers, channel by channel"


def choose(conv: Convolution, target: Target) -> Blocking:
    """The widest block of pixels that leaves the fewest blocks."""
    lanes = target.lanes(4 if conv.element == "f32" else 8)
    most = min(MAX_PIXELS, conv.pixels.size)
    pixels = min(range(1, most + 1), key=lambda size: (sum(n + 1 for _, n in split(conv.pixels.size, size)), size))
    return Blocking(pixels, lanes)


def panels_of(conv: Convolution, blocking: Blocking) -> Panels:
    """The packed weights: [channels / lanes, window, lanes]."""
    (channels,) = conv.groups
    window = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    return Panels((), (channels.size, channels.strides[1]), window, blocking.lanes, blocking.lanes)


class Depthwise:
    """Emission of one kernel on (A, packed B, C), all flat. Offsets are in elements."""

    def __init__(self, e: Emitter, flats: Sequence[Any], conv: Convolution, blocking: Blocking, zero: bool) -> None:
        self.e, self.conv, self.block, self.zero = e, conv, blocking, zero
        self.a, self.b, self.c = flats
        self.panels = panels_of(conv, blocking)
        self.vector = ir.VectorType.get([blocking.lanes], self.c.type.element_type)

    def emit(self) -> None:
        conv = self.conv
        outer = [*conv.images, conv.lines]
        moved = 4 * conv.groups[0].size * conv.lines.size * conv.pixels.size * (1 + conv.depth)
        for loop in conv.images:
            moved *= loop.size

        def line(indices: list[Index]) -> None:
            a, c = (self.e.dot(indices, [loop.strides[i] for loop in outer]) for i in (0, 2))
            for_blocks(self.e, conv.groups[0].size, self.block.lanes, lambda n, active: self._channels(a, c, n, active))

        self.e.parallel([loop.size for loop in outer], line, nanoseconds(flop=conv.flops, moved=moved))

    def _channels(self, a: Index, c: Index, number: Index, active: int) -> None:
        """One line of `active` channels."""
        e, pixels = self.e, self.conv.pixels
        channel, b = e.mul(number, self.block.lanes), e.mul(number, self.panels.panel)

        def block(first: Index, count: int) -> None:
            pixel = e.mul(first, self.block.pixels)
            here = e.dot([channel, pixel], [1, pixels.strides[0]], a)
            there = e.dot([channel, pixel], [1, pixels.strides[2]], c)
            places = [e.add(there, i * pixels.strides[2]) for i in range(count)]
            sums = [self._initial(place, active) for place in places]
            for place, value in zip(places, self._windows(here, b, sums, active), strict=True):
                e.store(value, self.c, place, active)

        for_blocks(e, pixels.size, self.block.pixels, block)

    def _initial(self, place: Index, active: int) -> Any:
        return self.e.zero(self.vector) if self.zero else self.e.load(self.c, place, self.block.lanes, active)

    def _windows(self, a: Index, b: Index, sums: list[Any], active: int) -> list[Any]:
        """The sums of all pixels of a block."""
        e, loops = self.e, self.conv.k
        if self.conv.depth <= MAX_UNROLLED:
            return self._unrolled(a, b, sums, active)

        def level(depth: int, a: Index, b: Index, sums: list[Any]) -> list[Any]:
            if depth == len(loops):
                weight = e.load(self.b, b, self.block.lanes)
                reads = [e.add(a, i * self.conv.pixels.strides[0]) for i in range(len(sums))]
                return [vector.fma(self._read(x, active), weight, s) for x, s in zip(reads, sums, strict=True)]
            step = self.block.lanes
            for loop in loops[depth + 1 :]:
                step *= loop.size

            def body(k: Index, inner: list[Any]) -> Sequence[Any]:
                here = e.add(a, e.mul(k, loops[depth].strides[0]))
                return level(depth + 1, here, e.add(b, e.mul(k, step)), inner)

            return e.loop(0, loops[depth].size, 1, body, sums)

        return level(0, a, b, sums)

    def _unrolled(self, a: Index, b: Index, sums: list[Any], active: int) -> list[Any]:
        """Windows overlap: an element of the input is read once for all of the sums that it joins."""
        e, conv, sums = self.e, self.conv, list(sums)
        read: dict[int, Any] = {}
        window = product(*(range(loop.size) for loop in conv.k))
        for number, position in enumerate(window):
            weight = e.load(self.b, e.add(b, number * self.block.lanes), self.block.lanes)
            start = sum(p * loop.strides[0] for p, loop in zip(position, conv.k, strict=True))
            for i in range(len(sums)):
                offset = start + i * conv.pixels.strides[0]
                if offset not in read:
                    read[offset] = self._read(e.add(a, offset), active)
                sums[i] = vector.fma(read[offset], weight, sums[i])
        return sums

    def _read(self, offset: Index, active: int) -> Any:
        return self.e.load(self.a, offset, self.block.lanes, active)
