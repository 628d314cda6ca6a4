"""Convolutions of narrow elements that an instruction multiplies in groups, read from the image in place.

For few channels, a group consists of adjacent elements of the image. Copies of patches would take as long as the
products if the weights have few columns and few elements are contiguous, as in the first layer of a network.

For a depthwise convolution, a lane has the elements of one channel in two lines of the image that follow each other in
the window. Two loads and an interleaving replace two widenings, and one instruction replaces two multiply-adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.passes.kernels.access import Loop
from buddy.compiler.passes.kernels.contraction import byte_width
from buddy.compiler.passes.kernels.conv.direct import (
    MAX_UNROLLED_WINDOW,
    Depthwise,
    DepthwiseBlocking,
    ImplicitGemm,
    pixels_of_block,
)
from buddy.compiler.passes.kernels.conv.shape import (
    ConvBlocking,
    Convolution,
    choose_conv_blocking,
    find_dot_instruction,
)
from buddy.compiler.passes.kernels.dot_instructions import (
    INSTRUCTIONS,
    WORD_BYTES,
    DotInstruction,
    as_elements,
    as_words,
)
from buddy.compiler.passes.kernels.emit import Index, ceil_div
from buddy.compiler.passes.kernels.packing import Panels
from buddy.compiler.support.target import Target

# ---- few channels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InPlaceBlocking(ConvBlocking):
    """A register block whose products the instruction `dot` adds, group by group of each run of the image."""

    dot: str

    @property
    def instruction(self) -> DotInstruction:
        return INSTRUCTIONS[self.dot]

    def describe(self) -> str:
        return f"{super().describe()}, {self.dot} of elements in place"


def choose_in_place(conv: Convolution, target: Target) -> InPlaceBlocking | None:
    """Returns the blocking, or `None` if `target` has no such instruction, or if copies of patches cost less.

    A copy of a run takes a load and a store for each power of two in the sum that is its size. In place, the last group
    of a run is multiplied with all columns, even if it is not full.
    """
    instruction = find_dot_instruction(conv, target)
    run = math.prod(loop.size for loop in _loops_of_run(conv)[1])
    # Only pairs can be incomplete, see `InPlaceGemm._broadcast`.
    if instruction is None or run == 1 or instruction.group != 2:
        return None
    pieces, groups = run.bit_count(), ceil_div(run, instruction.group)
    block = choose_conv_blocking(conv, target)
    vectors = ceil_div(conv.n.size, block.lanes)
    if not instruction.has_vectors_of(block.lanes):
        return None
    if 2 * pieces < groups * vectors or (groups - run / instruction.group) * vectors >= pieces:
        return None
    return InPlaceBlocking(block.lines, block.pixels, block.vectors, block.lanes, block.panels, instruction.name)


def _loops_of_run(conv: Convolution) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """Returns the loops of the reduction over runs, and those over the elements of a run.

    The elements of a run are adjacent in the image.
    """
    outer, inner, size = list(conv.k), list[Loop](), 1
    while outer and outer[-1].strides[0] == size:
        inner.insert(0, outer.pop())
        size *= inner[0].size
    return tuple(outer), tuple(inner)


def in_place_panels(conv: Convolution, blocking: InPlaceBlocking) -> Panels:
    """Returns the packing of the weights: [group..., run..., panel, element / g, column, element % g]."""
    runs, elements = _loops_of_run(conv)
    outer = tuple((loop.size, loop.strides[1]) for loop in (*conv.groups, *runs))
    ks, group = tuple((loop.size, loop.strides[1]) for loop in elements), blocking.instruction.group
    n = (conv.n.size, conv.n.strides[1])
    return Panels(outer, n, ks, blocking.columns, blocking.lanes, conv.unsigned[1], group, group, conv.input_element)


class InPlaceGemm(ImplicitGemm):
    """Emits one convolution with weights packed by `in_place_panels`."""

    block: InPlaceBlocking

    def choose_panels(self) -> Panels:
        return in_place_panels(self.conv, self.block)

    def _accumulate(
        self, a: Index, b: Index, position_offsets: list[int], vectors: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Returns the sums after the whole reduction: loops over runs, each of which is unrolled in groups."""
        e, (runs, elements) = self.e, _loops_of_run(self.conv)
        b_strides = self.panels.outer_strides[len(self.conv.groups) :]
        size = math.prod(loop.size for loop in elements)

        def emit_loops(depth: int, a: Index, b: Index, sums: list[ir.Value]) -> list[ir.Value]:
            if depth == len(runs):
                return self._add_run(a, b, size, position_offsets, vectors, sums)

            def emit_iteration(k: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
                next_a = e.add(a, e.mul(k, runs[depth].strides[0]))
                return emit_loops(depth + 1, next_a, e.add(b, e.mul(k, b_strides[depth])), carried)

            return e.loop(0, runs[depth].size, 1, emit_iteration, sums)

        return emit_loops(0, a, b, sums)

    def _add_run(
        self, a: Index, b: Index, size: int, position_offsets: list[int], vectors: int, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Returns the sums after the products of one run of `size` elements for each position."""
        e, lanes, group = self.e, self.lanes, self.block.instruction.group
        for step in range(0, size, group):
            start, active = e.add(b, step * self.block.columns), min(group, size - step)
            weights = [e.load(self.b, e.add(start, j * lanes * group), lanes * group) for j in range(vectors)]
            new_sums: list[ir.Value] = []
            for i, offset in enumerate(position_offsets):
                elements = self._broadcast(e.add(a, offset + step), active)
                new_sums += [
                    self.block.instruction.emit(sums[i * vectors + j], elements, weight)
                    for j, weight in enumerate(weights)
                ]
            sums = new_sums
        return sums

    def _broadcast(self, offset: Index, active: int) -> ir.Value:
        """Loads a group of the image into every lane; of a pair, the second element is zero if only one is `active`.

        The element that follows in the image may be infinite, and its product by a weight of zero would be NaN. The
        single element is loaded as the second one of a pair that begins before it, in the same run. A shift moves it to
        the first place, which needs fewer instructions than the broadcast of 16 bits.
        """
        e, group, element = self.e, self.block.instruction.group, self.a.type.element_type
        word = as_words(e.load(self.a, e.add(offset, active - group), group), group)
        type_ = ir.VectorType.get([self.lanes], word.type.element_type)
        words = vector.broadcast(type_, vector.extract(word, [], [0]))
        if active < group:
            words = arith.shrui(words, e.splat(type_, 8 * WORD_BYTES // group))
        return as_elements(words, element)


# ---- depthwise -------------------------------------------------------------------------------------------------------


# Output pixels of a block: their sums, the weights of a line of the window and a pair fill 32 registers.
_MAX_PIXELS = 16


@dataclass(frozen=True)
class PairedBlocking(DepthwiseBlocking):
    """A block of one line, whose products the instruction `dot` adds: pairs of lines of the window at once."""

    dot: str = ""

    @property
    def instruction(self) -> DotInstruction:
        return INSTRUCTIONS[self.dot]

    def describe(self) -> str:
        return f"{super().describe()}, {self.dot} of pairs of lines"


def choose_pairs(conv: Convolution, target: Target) -> PairedBlocking | None:
    """Returns the blocking, or `None` if `target` has no such instruction, or if the window has no pairs of lines."""
    lanes, instruction = target.lanes(byte_width(conv.element)), find_dot_instruction(conv, target)
    if instruction is None or instruction.group != 2 or not instruction.has_vectors_of(lanes):
        return None
    if len(conv.k) != 2 or conv.k[0].size == 1 or conv.depth > MAX_UNROLLED_WINDOW:
        return None
    return PairedBlocking(pixels_of_block(conv, _MAX_PIXELS), lanes, dot=instruction.name)


def paired_panels(conv: Convolution, blocking: PairedBlocking) -> Panels:
    """Returns the packing of the weights: [column of the window, channels / lanes, pair of its lines, lanes, 2]."""
    (channels,), (lines, columns) = conv.groups, conv.k
    outer, window = ((columns.size, columns.strides[1]),), ((lines.size, lines.strides[1]),)
    n, lanes, group = (channels.size, channels.strides[1]), blocking.lanes, blocking.instruction.group
    return Panels(outer, n, window, lanes, lanes, group=group, multiple=group, element=conv.input_element)


class PairedDepthwise(Depthwise):
    """Emits a depthwise convolution with weights packed by `paired_panels`."""

    block: PairedBlocking

    def choose_panels(self) -> Panels:
        return paired_panels(self.conv, self.block)

    def _accumulate_unrolled(
        self, a: Index, b: Index, sums: list[ir.Value], active: int, lines: int
    ) -> list[ir.Value]:  # fmt: skip
        """Emits the window unrolled: each pair of the image is loaded once for all pixels, and used at once."""
        e, conv, sums, group = self.e, self.conv, list(sums), self.block.instruction.group
        (window_lines, window_columns), vector_size = conv.k, self.lanes * group
        for line in range(0, window_lines.size, group):
            starts = [
                e.dot([column, line], [*self.panels.outer_strides, self.lanes], b)
                for column in range(window_columns.size)
            ]
            weights = [e.load(self.b, start, vector_size) for start in starts]
            products: dict[int, list[tuple[int, int]]] = {}
            for column in range(window_columns.size):
                for pixel in range(len(sums)):
                    offset = column * window_columns.strides[0] + pixel * conv.pixels.strides[0]
                    products.setdefault(offset, []).append((pixel, column))
            for offset in sorted(products):
                start = e.add(a, line * window_lines.strides[0] + offset)
                pair = self._load_pair(start, active, min(group, window_lines.size - line))
                for pixel, column in products[offset]:
                    sums[pixel] = self.block.instruction.emit(sums[pixel], pair, weights[column])
        return sums

    def _load_pair(self, start: Index, active: int, lines: int) -> ir.Value:
        """Loads the elements of `active` channels in `lines` lines, interleaved; zeros stand for a second line."""
        e = self.e
        first = e.load(self.a, start, self.lanes, active)
        if lines > 1:
            second = e.load(self.a, e.add(start, self.conv.k[0].strides[0]), self.lanes, active)
            pair: ir.Value = vector.interleave(first, second)
            return pair
        words = as_words(first, 1)
        wide = ir.VectorType.get([self.lanes], ir.IntegerType.get_signless(8 * WORD_BYTES))
        return as_elements(arith.extui(wide, words), first.type.element_type)
