"""Chooses the blocking of a convolution for a target: pixels and channels in registers, panels of weights in cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from buddy.compiler.passes.kernels.arithmetic import bytes_of
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.emit import split
from buddy.compiler.support.target import CACHE_LINE, CACHE_WAYS, FMA_LATENCY, Target

MAX_LINES, MAX_VECTORS = 4, 4

# The share of the L2 cache for panels of weights; the other half is for the image.
WEIGHTS_IN_L2 = 0.5


@dataclass(frozen=True)
class ConvBlocking:
    """`lines` x `pixels` output positions by `vectors * lanes` channels stay in registers over the whole reduction.

    `panels` of weights, each as wide as the block, are processed before the next lines of the image.
    """

    lines: int
    pixels: int
    vectors: int
    lanes: int
    panels: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def describe(self) -> str:
        rows = f"{self.lines}x{self.pixels}" if self.lines > 1 else str(self.pixels)
        return f"{rows} pixels by {self.columns} channels in registers"


def choose(conv: Convolution, target: Target) -> ConvBlocking:
    """Returns the blocking with the least estimated time."""
    # No wider than the channels: two narrow vectors per cycle are as good as a wide one that is half used.
    lanes = min(target.lanes(bytes_of(conv.element)), 1 << (conv.n.size - 1).bit_length())
    candidates = list(_candidates(conv, lanes, target))
    lines, pixels, vectors = min(candidates, key=lambda block: (_cost(conv, lanes, *block), block))
    panel = max(1, conv.depth * vectors * lanes * bytes_of(conv.factor))
    panels = max(1, int(WEIGHTS_IN_L2 * target.l2) // panel)
    return ConvBlocking(lines, pixels, vectors, lanes, panels)


def _candidates(conv: Convolution, lanes: int, target: Target) -> Iterator[tuple[int, int, int]]:
    """Yields blocks whose accumulators, weights and broadcast input fit into registers, and their input into cache."""
    for vectors in range(1, min(MAX_VECTORS, -(-conv.n.size // lanes)) + 1):
        most = max(1, min((target.vector_registers - 1 - vectors) // vectors, _pixels_in_l1(conv, target)))
        for lines in range(1, min(MAX_LINES, conv.lines.size, most) + 1):
            for pixels in range(1, min(conv.pixels.size, most // lines) + 1):
                yield lines, pixels, vectors


def _pixels_in_l1(conv: Convolution, target: Target) -> int:
    """Returns the pixels of which the L1 cache keeps a line each, with some room for weights and results.

    Pixels with a distance of a power of two share few of its sets.
    """
    way = max(1, target.l1 // CACHE_WAYS)
    apart = max(1, conv.pixels.strides[0] * bytes_of(conv.factor))
    return max(FMA_LATENCY, way // max(CACHE_LINE, math.gcd(way, apart)) * CACHE_WAYS * 3 // 4)


def _cost(conv: Convolution, lanes: int, lines: int, pixels: int, vectors: int) -> float:
    """Returns the cycles per step of the reduction for one image, including remainder blocks."""
    return sum(
        line_count * pixel_count * column_count * _cycles(line_size * pixel_size, column_size)
        for line_size, line_count in split(conv.lines.size, lines)
        for pixel_size, pixel_count in split(conv.pixels.size, pixels)
        for column_size, column_count in split(-(-conv.n.size // lanes), vectors)
    )


def _cycles(rows: int, vectors: int) -> float:
    """Returns the cycles of one block: the most of multiply-adds, loads and accumulator latency."""
    return max(rows * vectors, rows * 0.5 + vectors, FMA_LATENCY) + 0.05 * (rows + 2 * vectors)
