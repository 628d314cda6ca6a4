"""Convolution as a matrix product whose rows are read from the image, without an im2col buffer.

A block of output pixels by output channels stays in registers during the reduction over the window and the input
channels; each step multiplies broadcast input elements by a vector of packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from buddy.compiler.passes.kernels.arithmetic import multiply_add
from buddy.compiler.passes.kernels.conv.base import ConvKernel
from buddy.compiler.passes.kernels.conv.blocking import ConvBlocking
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks, nanoseconds
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place
from buddy.compiler.passes.kernels.packing import Panels, row_major


def panels_of(conv: Convolution, blocking: ConvBlocking) -> Panels:
    """Returns the form of the packed weights: [group..., panel, k, column]."""
    outer = tuple((loop.size, loop.strides[1]) for loop in conv.groups)
    ks = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    return Panels(outer, (conv.n.size, conv.n.strides[1]), ks, blocking.columns, blocking.lanes)


class ImplicitGemm(ConvKernel):
    """Emits one kernel whose weights are packed as in `panels_of`."""

    def __init__(
        self, e: KernelEmitter, a: Any, b: Any, results: KernelResults, conv: Convolution, blocking: ConvBlocking
    ) -> None:
        super().__init__(e, a, b, results, conv)
        self.block, self.panels = blocking, panels_of(conv, blocking)

    def emit(self) -> None:
        conv, block = self.conv, self.block
        sizes = [*(x.size for x in conv.groups), conv.n.size, *(x.size for x in conv.images), conv.lines.size]
        blocks = [1 for _ in sizes]
        blocks[len(conv.groups)], blocks[-1] = block.columns * block.panels, block.lines
        self.e.parallel_blocks(sizes, blocks, self._band, nanoseconds(flop=conv.flops))

    def _band(self, numbers: list[Index], active: list[int]) -> None:
        """Emits a block of lines of one image and group by the panels that fit into cache."""
        e, conv, block, groups = self.e, self.conv, self.block, len(self.conv.groups)
        batch, first = numbers[groups], e.mul(numbers[-1], block.lines)
        outer = [*numbers[:groups], *numbers[groups + 1 : -1]]
        a = e.dot([*outer, first], [loop.strides[0] for loop in (*conv.groups, *conv.images, conv.lines)])
        b = e.dot([*numbers[:groups], batch], [*self.panels.outer_strides, block.panels * self.panels.panel])
        place = self.results.origin
        for loop, index in enumerate(outer):
            place = self.results.advance(place, loop, index)
        place = self.advance(place, line=first, column=e.mul(batch, block.panels * block.columns))

        def panel(number: Index, columns: int) -> None:
            there = self.advance(place, column=e.mul(number, block.columns))
            self._pixels(a, e.add(b, e.mul(number, self.panels.panel)), there, active[-1], columns)

        for_blocks(e, active[groups], block.columns, panel)

    def _pixels(self, a: Index, b: Index, place: Place, lines: int, columns: int) -> None:
        """Emits `lines` whole lines by the `columns` of one panel."""
        e, pixels = self.e, self.conv.pixels

        def block(number: Index, count: int) -> None:
            first = e.mul(number, self.block.pixels)
            here = e.add(a, e.mul(first, pixels.strides[0]))
            self._block(here, b, self.advance(place, pixel=first), (lines, count), columns)

        for_blocks(e, pixels.size, self.block.pixels, block)

    def _block(self, a: Index, b: Index, place: Place, size: tuple[int, int], columns: int) -> None:
        """Emits a block of positions by `columns` channels, in registers during the whole reduction."""
        conv, lanes = self.conv, self.lanes
        positions = list(product(range(size[0]), range(size[1])))
        reads = [line * conv.lines.strides[0] + pixel * conv.pixels.strides[0] for line, pixel in positions]
        firsts = range(0, columns, lanes)
        places = [(self.advance(place, line=i, pixel=j), first) for i, j in positions for first in firsts]
        sums = [self.results.initial(where, first, columns - first) for where, first in places]
        for (where, first), value in zip(places, self._reduced(a, b, reads, len(firsts), sums), strict=True):
            self.results.finish(value, where, first, columns - first)

    def _reduced(self, a: Index, b: Index, reads: list[int], vectors: int, sums: list[Any]) -> list[Any]:
        """Returns the sums after the whole reduction."""
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
        """Emits one step: an input element per position by a row of weights."""
        weights = [self.factors(self.b, self.e.add(b, j * self.lanes)) for j in range(vectors)]
        result = []
        for i, offset in enumerate(reads):
            factor = self.element(self.e.add(a, offset))
            result += [multiply_add(factor, w, sums[i * vectors + j]) for j, w in enumerate(weights)]
        return result
