"""Depthwise convolution of narrow elements by an instruction that multiplies pairs of them.

A lane has the elements of one channel in two lines of the image that follow each other in the window. Two loads and an
interleaving take the place of two widenings, and one instruction that of two multiply-adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.passes.kernels.contraction import byte_width
from buddy.compiler.passes.kernels.conv.direct import MAX_UNROLLED_WINDOW, Depthwise, DepthwiseBlocking, pixels_of_block
from buddy.compiler.passes.kernels.conv.shape import Convolution, find_dot_instruction
from buddy.compiler.passes.kernels.dot_instructions import (
    INSTRUCTIONS,
    WORD_BYTES,
    DotInstruction,
    as_elements,
    as_words,
)
from buddy.compiler.passes.kernels.emit import Index
from buddy.compiler.passes.kernels.packing import Panels
from buddy.compiler.support.target import Target

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
