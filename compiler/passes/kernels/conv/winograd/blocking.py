"""Decides which convolutions F(m x m, 3 x 3) supports and where it is faster, and chooses its blocks of tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from buddy.compiler.passes.kernels import blocking as gemm
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction, bytes_of
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.conv.winograd.transforms import WINDOW
from buddy.compiler.support.target import Target

# The share of the L2 cache for the transformed input of a block of tiles.
_INPUT_IN_L2 = 0.5

# Blocks of tiles for threads to share, or a multiple; with one or two blocks, threads share the work on each.
SHARES = 8

# Vectors of output channels in a register block: more leave too few rows.
MAX_VECTORS = 4

# Cost model, in cycles of a vector multiply-add each: the overhead factor of a register-blocked product, the cost of a
# vector of one point of a tile in the input and in the output transform, and the cost of a byte of weights that exceeds
# the core's caches.
_PRODUCTS, _TRANSFORM_IN, _TRANSFORM_OUT, _BYTE = 1.15, 2.5, 4.5, 0.1

# Cycles per vector of one point of the transformed weights, and per vector of weights that are only packed, if that is
# done in each call.
_TRANSFORM_WEIGHTS, _PACK = 12.0, 8.0


@dataclass(frozen=True)
class WinogradBlocking:
    """Tiles of `outputs` x `outputs` results; `tiles` of them are transformed, multiplied and transformed back at once.

    `gemm` is the blocking of the product of a block of tiles by channels.
    """

    outputs: int
    tiles: int
    gemm: gemm.GemmBlocking

    @property
    def lanes(self) -> int:
        return self.gemm.lanes

    @property
    def points(self) -> int:
        """Products per tile and pair of channels: one per element of the transformed tile."""
        return (self.outputs + WINDOW - 1) ** 2

    def apart(self, columns: int) -> int:
        """Returns the distance in elements between the `tiles` x `columns` values of consecutive points.

        It includes an extra vector: a transform reads all points of a tile, and powers of two share few sets of a
        cache.
        """
        return self.tiles * columns + self.lanes

    def describe(self) -> str:
        kind = f"winograd {self.outputs}x{self.outputs}"
        return f"{kind} in blocks of {self.tiles} tiles, {self.gemm.rows}x{self.gemm.columns} register block"


def check(conv: Convolution) -> None:
    """Raises `UnsupportedError` unless neighbouring outputs read overlapping windows of 3x3."""
    if conv.groups:
        raise UnsupportedError("it has groups")
    if conv.element not in ("f32", "f64") or conv.factor != conv.element:
        raise UnsupportedError(f"its elements are of type {conv.factor}")
    walk = [(loop.size, loop.strides[0]) for loop in conv.k]
    if walk[:2] != [(WINDOW, conv.lines.strides[0]), (WINDOW, conv.pixels.strides[0])]:
        raise UnsupportedError("its window is not 3x3 with neighbours one step apart")
    if len(walk) != 3 or walk[2][1] != 1:
        raise UnsupportedError("it has no contiguous channels")


def tiles_of(conv: Convolution, outputs: int) -> tuple[int, ...]:
    """Returns the number of tiles along each of `conv.images`, lines and pixels."""
    return (*(x.size for x in conv.images), -(-conv.lines.size // outputs), -(-conv.pixels.size // outputs))


def weight_bytes(conv: Convolution, outputs: int) -> int:
    """Returns the bytes of the transformed weights, without the padding of panels."""
    return conv.n.size * conv.k[2].size * (outputs + WINDOW - 1) ** 2 * bytes_of(conv.element)


def gain(conv: Convolution, outputs: int, target: Target, packed: bool) -> float:
    """Returns the estimated speedup over direct products; weights are `packed` ahead or in the call."""
    lanes, points = target.lanes(bytes_of(conv.element)), (outputs + WINDOW - 1) ** 2
    tiles, columns = math.prod(tiles_of(conv, outputs)), -(-conv.n.size // lanes)
    rows = padded(conv, lanes) // lanes
    multiplied = _multiplied(tiles * points * conv.k[2].size * columns, weight_bytes(conv, outputs), target)
    transformed = tiles * points * (_TRANSFORM_IN * rows + _TRANSFORM_OUT * columns)
    direct = conv.flops // (2 * conv.n.size) * columns
    size = conv.depth * conv.n.size * bytes_of(conv.element)
    windows = 0 if packed else conv.k[2].size * columns
    own = _multiplied(direct, size, target) + _PACK * WINDOW**2 * windows
    return own / (multiplied + transformed + _TRANSFORM_WEIGHTS * points * windows)


def _multiplied(products: int, size: int, target: Target) -> float:
    """Returns the cycles of this many vectors of products with `size` bytes of weights."""
    return _PRODUCTS * products + (_BYTE * size if size > target.l2 else 0)


def choose(conv: Convolution, outputs: int, target: Target) -> WinogradBlocking:
    """Returns the blocking with the least estimated time; computes whole blocks with whole panels of weights."""
    lanes = target.lanes(bytes_of(conv.element))
    candidates = list(_candidates(conv, outputs, lanes, target))
    return min(candidates, key=lambda block: (_cost(conv, block), -block.gemm.rows))


def _candidates(conv: Convolution, outputs: int, lanes: int, target: Target) -> Iterator[WinogradBlocking]:
    """Yields blockings whose register block fits, with the fewest blocks of tiles that fit in cache.

    A number of blocks that threads can share evenly is yielded too.
    """
    total, points = math.prod(tiles_of(conv, outputs)), (outputs + WINDOW - 1) ** 2
    room = int(_INPUT_IN_L2 * target.l2) // (points * padded(conv, lanes) * bytes_of(conv.element))
    count = -(-total // max(1, room))
    count = count if count <= 2 else -(-count // SHARES) * SHARES
    for vectors in range(1, min(MAX_VECTORS, -(-conv.n.size // lanes)) + 1):
        for rows in range(1, min(total, (target.vector_registers - 1 - vectors) // vectors) + 1):
            tiles = -(-total // (count * rows)) * rows
            yield WinogradBlocking(outputs, tiles, gemm.GemmBlocking(rows, vectors, lanes, conv.k[2].size, "packed"))


def _cost(conv: Convolution, block: WinogradBlocking) -> float:
    """Returns the cycles per input channel and point."""
    blocks = -(-math.prod(tiles_of(conv, block.outputs)) // block.tiles)
    panels = -(-conv.n.size // block.gemm.columns)
    return blocks * panels * block.tiles / block.gemm.rows * gemm.block_cycles(block.gemm.rows, block.gemm.vectors)


def padded(conv: Convolution, lanes: int) -> int:
    """Returns the input channels, rounded up to whole vectors."""
    return -(-conv.k[2].size // lanes) * lanes


def products(conv: Convolution, block: WinogradBlocking) -> Contraction:
    """Returns the products of a block of tiles by a panel of weights.

    Per point it is a matrix product: (tile, channel) by (channel, column).
    """
    rows, columns = padded(conv, block.lanes), block.gemm.columns
    point = Loop(block.points, (block.apart(rows), 0, block.apart(columns)), False, (0,), (True, True, True))
    m = Loop(block.tiles, (rows, 0, columns), False, (1,), (True, False, True))
    n = Loop(columns, (0, 1, 1), False, (2,), (False, True, True))
    k = Loop(conv.k[2].size, (1, columns, 0), True, (3,), (True, True, False))
    return Contraction(conv.element, (point,), m, n, (k,), False, conv.factor, conv.element)
