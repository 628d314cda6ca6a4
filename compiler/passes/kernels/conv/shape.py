"""Classifies the loops of a convolution, and chooses the blocking of its implicit GEMM for a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, layout_of, loop_sizes, loops_of, merge_loops
from buddy.compiler.passes.kernels.contraction import (
    byte_width,
    element_types,
    indexing_maps,
    sum_type,
    unsigned_inputs,
)
from buddy.compiler.passes.kernels.dot_instructions import INSTRUCTIONS, DotInstruction
from buddy.compiler.passes.kernels.emit import block_counts, ceil_div
from buddy.compiler.support.target import FMA_LATENCY, Target

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir

# `Loop.used` of parallel loops by their role: which of A, B and C they index.
_IMAGE, _CHANNEL, _GROUP = (True, False, True), (False, True, True), (True, True, True)
# The number of blocks of a kernel is a multiple of this, so that threads get equal shares; with one or two blocks,
# threads share the work on each.
BLOCKS_TO_SHARE = 8
_UNIT_LOOP = Loop(1, (0, 0, 0), False, (), (False, False, False))


@dataclass(frozen=True)
class Convolution:
    """`C[group, image, line, pixel, n] += sum over k of A[group, image, line, pixel, k] * B[group, k, n]`.

    Each loop has the strides of (A, B, C), in elements; A is the padded input, B the weights. Neighbouring lines and
    pixels read overlapping parts of A. Loops that an op lacks have size 1. `images` has the batch, and the spatial dims
    beyond two. `k` has the loops over the input channels and the window, by decreasing stride in A. A and B have the
    element type `input_element`, and sums the type `element`. `unsigned` says for A and B whether their integers are
    unsigned.
    """

    element: str
    input_element: str
    groups: tuple[Loop, ...]
    images: tuple[Loop, ...]
    lines: Loop
    pixels: Loop
    n: Loop
    k: tuple[Loop, ...]
    unsigned: tuple[bool, bool] = (False, False)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Returns the loops over C; vectors are along the last one."""
        if self.depthwise:
            return (*self.images, self.lines, self.pixels, *self.groups)
        return (*self.groups, *self.images, self.lines, self.pixels, self.n)

    @property
    def depth(self) -> int:
        """Returns the number of products per element of C."""
        return math.prod(loop.size for loop in self.k)

    @property
    def flops(self) -> int:
        """Returns the number of multiplications and additions."""
        outer = math.prod(loop.size for loop in (*self.groups, *self.images))
        return 2 * outer * self.lines.size * self.pixels.size * self.n.size * self.depth

    @property
    def depthwise(self) -> bool:
        """True if each channel has its own window; channels are then the contiguous dim of A and C."""
        return self.n.size == 1 and len(self.groups) == 1 and self.groups[0].strides[::2] == (1, 1)

    @property
    def channels_last(self) -> bool:
        """True if output channels are the last dim of C, as most kernels need them."""
        return self.n.size == 1 or self.n.strides[2] == 1

    @property
    def is_narrow(self) -> bool:
        """True if sums are wider than the elements that are multiplied."""
        return self.input_element != self.element

    @property
    def is_product(self) -> bool:
        """True if the convolution is a batch of matrix products, without a window: it has one loop over rows of A."""
        return self.lines.size == 1 and len(self.k) <= 1 and not self.depthwise

    @property
    def merged_k(self) -> tuple[Loop, ...]:
        """Returns `k`, with neighbouring loops merged that are contiguous in A, as packed weights always are."""
        merged: list[Loop] = []
        for loop in self.k:
            if merged and merged[-1].strides[0] == loop.strides[0] * loop.size:
                loop = replace(loop, size=merged.pop().size * loop.size)
            merged.append(loop)
        return tuple(merged)

    def describe(self) -> str:
        """Returns the text of a remark, such as "56x56 pixels, 64 channels over 64x3x3"."""
        window = "x".join(str(loop.size) for loop in self.k) or "1"
        groups = "".join(f", {loop.size} groups" for loop in self.groups)
        return f"{self.lines.size}x{self.pixels.size} pixels, {self.n.size} channels over {window}{groups}"


def analyse_convolution(op: ir.Operation) -> Convolution:
    """Returns the convolution that `op` (a contraction on memrefs) computes.

    Raises `UnsupportedError` for dynamic shapes, empty buffers, and loops of other ops.
    """
    maps = indexing_maps(op)
    layouts = [layout_of(value.type) for value in op.operands]
    reductions = ["reduction" in str(kind) for kind in op.attributes["iterator_types"]]
    sizes = loop_sizes(len(reductions), maps, layouts)
    if 0 in sizes:
        raise UnsupportedError("no elements")
    loops = merge_loops(loops_of(sizes, reductions, maps, layouts))
    image, weights, _ = element_types(op)
    if image != weights:
        raise UnsupportedError(f"its operands have different elements: {image} and {weights}")
    return replace(_assign_roles(loops, sum_type(op) or "", image), unsigned=unsigned_inputs(op))


def _assign_roles(loops: Sequence[Loop], element: str, input_element: str) -> Convolution:
    """Returns the convolution with each loop in its role. Raises `UnsupportedError` for loops of other ops."""
    parallel = [loop for loop in loops if not loop.reduction]
    rows = _by_stride(loop for loop in parallel if loop.used == _IMAGE)
    channels = [loop for loop in parallel if loop.used == _CHANNEL]
    groups = tuple(loop for loop in parallel if loop.used == _GROUP)
    if len(rows) + len(channels) + len(groups) < len(parallel) or len(channels) > 1:
        raise UnsupportedError("its loops are not those of a convolution")
    *images, lines, pixels = [_UNIT_LOOP, _UNIT_LOOP, *rows]
    n = channels[0] if channels else _UNIT_LOOP
    outer = tuple(loop for loop in images if loop.size > 1)
    k = _by_stride(loop for loop in loops if loop.reduction)
    return Convolution(element, input_element, groups, outer, lines, pixels, n, tuple(k))


def _by_stride(loops: Iterable[Loop]) -> list[Loop]:
    """Sorts `loops` by their stride in A, the largest first."""
    return sorted(loops, key=lambda loop: -loop.strides[0])


def find_dot_instruction(conv: Convolution, target: Target) -> DotInstruction | None:
    """Returns the first instruction of `target` on vectors that multiplies the elements of `conv` as they are."""
    elements = (conv.input_element, conv.input_element)
    for name in target.dot_instructions:
        instruction = INSTRUCTIONS[name]
        is_plain = not (instruction.on_tiles or instruction.widens or instruction.needs_offset(conv.unsigned))
        if is_plain and instruction.multiplies(elements, conv.element, conv.unsigned):
            return instruction
    return None


# ---- blocking of the implicit GEMM -----------------------------------------------------------------------------------


# Lines of output positions, and vectors of output channels, in a register block.
_MAX_LINES, _MAX_VECTORS = 4, 4

# The share of the L2 cache for panels of weights; the other half is for the image.
_L2_SHARE_OF_WEIGHTS = 0.5


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
        """Returns the number of output channels in a register block."""
        return self.vectors * self.lanes

    def describe(self) -> str:
        rows = f"{self.lines}x{self.pixels}" if self.lines > 1 else str(self.pixels)
        return f"{rows} pixels by {self.columns} channels in registers"


def choose_conv_blocking(conv: Convolution, target: Target) -> ConvBlocking:
    """Returns the blocking with the least estimated time."""
    # A vector is not wider than the channels: two narrow vectors per cycle are as fast as a wide one that is half used.
    lanes = min(target.lanes(byte_width(conv.element)), 1 << (conv.n.size - 1).bit_length())
    candidates = list(_candidates(conv, lanes, target))
    lines, pixels, vectors = min(candidates, key=lambda block: (_cost(conv, lanes, *block), block))
    panel_bytes = max(1, conv.depth * vectors * lanes * byte_width(conv.input_element))
    panels = max(1, int(_L2_SHARE_OF_WEIGHTS * target.l2) // panel_bytes)
    return ConvBlocking(lines, pixels, vectors, lanes, panels)


def _candidates(conv: Convolution, lanes: int, target: Target) -> Iterator[tuple[int, int, int]]:
    """Yields (lines, pixels, vectors) of blocks whose sums, weights and broadcast input fit into the registers.

    The input of a block fits into the L1 cache.
    """
    for vectors in range(1, min(_MAX_VECTORS, ceil_div(conv.n.size, lanes)) + 1):
        max_positions = max(1, min((target.vector_registers - 1 - vectors) // vectors, _pixels_in_l1(conv, target)))
        for lines in range(1, min(_MAX_LINES, conv.lines.size, max_positions) + 1):
            for pixels in range(1, min(conv.pixels.size, max_positions // lines) + 1):
                yield lines, pixels, vectors


def _pixels_in_l1(conv: Convolution, target: Target) -> int:
    """Returns how many pixels have a cache line each in the L1 cache, in addition to weights and results."""
    pixel_distance = conv.pixels.strides[0] * byte_width(conv.input_element)
    return max(FMA_LATENCY, target.lines_in_l1(pixel_distance))


def _cost(conv: Convolution, lanes: int, lines: int, pixels: int, vectors: int) -> float:
    """Returns the cycles per step of the reduction for one image, including remainder blocks."""
    return sum(
        line_count * pixel_count * column_count * _cycles(line_size * pixel_size, column_size)
        for line_size, line_count in block_counts(conv.lines.size, lines)
        for pixel_size, pixel_count in block_counts(conv.pixels.size, pixels)
        for column_size, column_count in block_counts(ceil_div(conv.n.size, lanes), vectors)
    )


def _cycles(rows: int, vectors: int) -> float:
    """Returns the cycles per step for one block: the maximum of multiply-adds, loads and accumulator latency.

    Two elements of the input, or one vector of weights, are loaded per cycle. The last term is an estimate of the
    overhead per load; it prefers blocks with fewer loads.
    """
    return max(rows * vectors, rows * 0.5 + vectors, FMA_LATENCY) + 0.05 * (rows + 2 * vectors)
