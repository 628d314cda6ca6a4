"""The convolution kernels: depthwise on vectors of channels, and implicit GEMM.

A block of output pixels by output channels stays in registers during the reduction over the window and the input
channels; each step multiplies broadcast input elements by a vector of packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from buddy.compiler.mlir.bindings import vector
from buddy.compiler.passes.kernels.contraction import bytes_of, converted, multiply_add
from buddy.compiler.passes.kernels.conv.shape import ConvBlocking, Convolution
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks, nanoseconds, split
from buddy.compiler.passes.kernels.epilogue import KernelResults, Place
from buddy.compiler.passes.kernels.packing import Panels, row_major
from buddy.compiler.support.target import Target


class ConvKernel:
    """One convolution of the flat image `a` by the packed weights `b`. Offsets are in elements."""

    def __init__(self, e: KernelEmitter, a: Any, b: Any, results: KernelResults, conv: Convolution) -> None:
        self.e, self.a, self.b, self.results, self.conv = e, a, b, results, conv
        self.vector, self.lanes = results.vector, results.lanes

    def emit(self) -> None:
        raise NotImplementedError

    def advance(self, place: Place, **steps: Index) -> Place:
        """Returns `place` advanced along the loops that `steps` names: `line`, `pixel` or `column`, the last one."""
        numbers = {"line": -3, "pixel": -2, "column": -1}
        for name, index in steps.items():
            place = self.results.advance(place, numbers[name], index)
        return place

    def element(self, offset: Index) -> Any:
        """Loads an element of the image into every lane."""
        element = converted(self.e.load_scalar(self.a, offset), self.vector.element_type, self.conv.unsigned[0])
        return vector.broadcast(self.vector, element)

    def factors(self, flat: Any, offset: Index, active: int | None = None) -> Any:
        """Loads a vector of the image or of the weights."""
        unsigned = self.conv.unsigned[0 if flat == self.a else 1]
        return converted(self.e.load(flat, offset, self.lanes, active), self.vector.element_type, unsigned)


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


def depthwise_panels(conv: Convolution, blocking: DepthwiseBlocking) -> Panels:
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
        self.block, self.panels = blocking, depthwise_panels(conv, blocking)

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


def gemm_panels(conv: Convolution, blocking: ConvBlocking) -> Panels:
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
        self.block, self.panels = blocking, gemm_panels(conv, blocking)

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
