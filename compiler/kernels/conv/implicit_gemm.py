"""Convolution as a matrix product whose rows are read out of the image: no im2col buffer is ever made.

A block of output pixels by output channels stays in registers while the reduction walks the window and the channels of
the input; each step multiplies broadcast input elements by a vector of packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from buddy.compiler.bindings import ir, vector
from buddy.compiler.kernels.conv.blocking import Blocking
from buddy.compiler.kernels.conv.shape import Convolution
from buddy.compiler.kernels.emit import Emitter, Index, for_blocks, nanoseconds
from buddy.compiler.kernels.packing import Panels, row_major


def panels_of(conv: Convolution, blocking: Blocking) -> Panels:
    """The packed weights: [group..., panel, k, column]."""
    outer = tuple((loop.size, loop.strides[1]) for loop in conv.groups)
    ks = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    return Panels(outer, (conv.n.size, conv.n.strides[1]), ks, blocking.columns, blocking.lanes)


class ImplicitGemm:
    """Emission of one kernel on (A, packed B, C), all flat. Offsets are in elements."""

    def __init__(self, e: Emitter, flats: Sequence[Any], conv: Convolution, blocking: Blocking, zero: bool) -> None:
        self.e, self.conv, self.block, self.zero = e, conv, blocking, zero
        self.a, self.b, self.c = flats
        self.panels = panels_of(conv, blocking)
        self.vector = ir.VectorType.get([blocking.lanes], self.c.type.element_type)

    def emit(self) -> None:
        conv, block = self.conv, self.block
        ones = [1] * len(conv.groups), [1] * len(conv.images)
        sizes = [*(x.size for x in conv.groups), conv.n.size, *(x.size for x in conv.images), conv.lines.size]
        blocks = [*ones[0], block.columns * block.panels, *ones[1], block.lines]
        self.e.parallel_blocks(sizes, blocks, self._band, nanoseconds(flop=conv.flops))

    def _band(self, numbers: list[Index], active: list[int]) -> None:
        """A block of lines of one image and group by a cacheful of panels."""
        e, conv, block, groups = self.e, self.conv, self.block, len(self.conv.groups)
        batch, band = numbers[groups], numbers[-1]
        b = e.dot([*numbers[:groups], batch], [*self.panels.outer_strides, block.panels * self.panels.panel])
        outer = [*numbers[:groups], *numbers[groups + 1 : -1], band]
        loops = [
            *conv.groups,
            *conv.images,
            replace(conv.lines, strides=tuple(block.lines * s for s in conv.lines.strides)),
        ]
        a, c = (e.dot(outer, [loop.strides[i] for loop in loops]) for i in (0, 2))
        c = e.add(c, e.mul(batch, block.panels * block.columns))

        def panel(number: Index, columns: int) -> None:
            here, there = e.add(b, e.mul(number, self.panels.panel)), e.add(c, e.mul(number, block.columns))
            self._pixels(a, here, there, active[-1], columns)

        for_blocks(e, active[groups], block.columns, panel)

    def _pixels(self, a: Index, b: Index, c: Index, lines: int, active: int) -> None:
        e, pixels = self.e, self.conv.pixels

        def block(number: Index, count: int) -> None:
            first = e.mul(number, self.block.pixels)
            here, there = e.add(a, e.mul(first, pixels.strides[0])), e.add(c, e.mul(first, pixels.strides[2]))
            self._block(here, b, there, lines, count, active)

        for_blocks(e, pixels.size, self.block.pixels, block)

    def _block(self, a: Index, b: Index, c: Index, lines: int, pixels: int, active: int) -> None:
        """`lines` x `pixels` positions by `active` channels, in registers from first to last."""
        e, conv = self.e, self.conv
        positions = [(line, pixel) for line in range(lines) for pixel in range(pixels)]
        reads = [line * conv.lines.strides[0] + pixel * conv.pixels.strides[0] for line, pixel in positions]
        writes = [line * conv.lines.strides[2] + pixel * conv.pixels.strides[2] for line, pixel in positions]
        columns = range(0, active, self.block.lanes)
        places = [(e.add(c, write + column), active - column) for write in writes for column in columns]
        sums = [self._initial(place, count) for place, count in places]
        for (place, count), value in zip(places, self._reduced(a, b, reads, len(columns), sums), strict=True):
            e.store(value, self.c, place, count)

    def _initial(self, place: Index, count: int) -> Any:
        return self.e.zero(self.vector) if self.zero else self.e.load(self.c, place, self.block.lanes, count)

    def _reduced(self, a: Index, b: Index, reads: list[int], vectors: int, sums: list[Any]) -> list[Any]:
        """The sums after the whole reduction."""
        e, loops = self.e, self.conv.walk
        steps = row_major([loop.size for loop in loops], self.block.columns)

        def level(depth: int, a: Index, b: Index, sums: list[Any]) -> list[Any]:
            if depth == len(loops):
                return self._step(a, b, reads, vectors, sums)

            def body(k: Index, inner: list[Any]) -> Sequence[Any]:
                here = e.add(a, e.mul(k, loops[depth].strides[0]))
                return level(depth + 1, here, e.add(b, e.mul(k, steps[depth])), inner)

            return e.loop(0, loops[depth].size, 1, body, sums)

        return level(0, a, b, sums)

    def _step(self, a: Index, b: Index, reads: list[int], vectors: int, sums: list[Any]) -> list[Any]:
        """One input element per position by a row of weights."""
        e, lanes = self.e, self.block.lanes
        weights = [e.load(self.b, e.add(b, j * lanes), lanes) for j in range(vectors)]
        result = []
        for i, offset in enumerate(reads):
            factor = vector.broadcast(self.vector, e.load_scalar(self.a, e.add(a, offset)))
            result += [vector.fma(factor, w, sums[i * vectors + j]) for j, w in enumerate(weights)]
        return result
