"""Which convolutions F(m x m, 3 x 3) can compute, which of these sooner, and in blocks of how many tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from buddy.compiler.kernels import blocking as gemm
from buddy.compiler.kernels.access import Loop, UnsupportedError
from buddy.compiler.kernels.arithmetic import bytes_of
from buddy.compiler.kernels.contraction import Contraction
from buddy.compiler.kernels.conv.shape import Convolution
from buddy.compiler.kernels.conv.winograd.transforms import WINDOW
from buddy.compiler.target import Target

# The share of the second-level cache that the transformed input of a block of tiles may fill.
_INPUT_IN_L2 = 0.5

# Cycles, with a vector multiply-add each: by what a product by register blocks takes longer than that, what a vector of
# one point of a tile costs in the transform of the input and in that of the output, and what a byte of weights does
# that no cache of the core's own holds.
_PRODUCTS, _TRANSFORM_IN, _TRANSFORM_OUT, _BYTE = 1.15, 2.5, 4.5, 0.1


@dataclass(frozen=True)
class Blocking:
    """Tiles of `outputs` x `outputs` results; `tiles` of them are transformed, multiplied and transformed back at once.

    `gemm` is how a block of tiles by channels is multiplied.
    """

    outputs: int
    tiles: int
    gemm: gemm.Blocking

    @property
    def lanes(self) -> int:
        return self.gemm.lanes

    @property
    def points(self) -> int:
        """Products per tile and pair of channels: one per element of the transformed tile."""
        return (self.outputs + WINDOW - 1) ** 2

    def describe(self) -> str:
        kind = f"winograd {self.outputs}x{self.outputs}"
        return f"{kind} in blocks of {self.tiles} tiles, {self.gemm.rows}x{self.gemm.columns} register block"


def check(conv: Convolution) -> None:
    """Raises `UnsupportedError` where neighbouring outputs do not read overlapping windows of 3x3."""
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
    """The number of tiles along each of `conv.images`, lines and pixels."""
    return (*(x.size for x in conv.images), -(-conv.lines.size // outputs), -(-conv.pixels.size // outputs))


def weight_bytes(conv: Convolution, outputs: int) -> int:
    """Bytes of the transformed weights, without what fills up a panel."""
    return conv.n.size * conv.k[2].size * (outputs + WINDOW - 1) ** 2 * bytes_of(conv.element)


def gain(conv: Convolution, outputs: int, target: Target) -> float:
    """By what factor it should be faster than the window's own products."""
    lanes, points = target.lanes(bytes_of(conv.element)), (outputs + WINDOW - 1) ** 2
    tiles, columns = math.prod(tiles_of(conv, outputs)), -(-conv.n.size // lanes)
    rows = padded(conv, lanes) // lanes
    multiplied = _multiplied(tiles * points * conv.k[2].size * columns, weight_bytes(conv, outputs), target)
    transformed = tiles * points * (_TRANSFORM_IN * rows + _TRANSFORM_OUT * columns)
    direct = conv.flops // (2 * conv.n.size) * columns
    size = conv.depth * conv.n.size * bytes_of(conv.element)
    return _multiplied(direct, size, target) / (multiplied + transformed)


def _multiplied(products: int, size: int, target: Target) -> float:
    """Cycles of so many vectors of products with `size` bytes of weights."""
    return _PRODUCTS * products + (_BYTE * size if size > target.l2 else 0)


def choose(conv: Convolution, outputs: int, target: Target) -> Blocking:
    """The blocking for tiles of `outputs` x `outputs`."""
    width = bytes_of(conv.element)
    lanes, points = target.lanes(width), (outputs + WINDOW - 1) ** 2
    total = math.prod(tiles_of(conv, outputs))
    most = max(1, int(_INPUT_IN_L2 * target.l2) // (points * padded(conv, lanes) * width))
    tiles = -(-total // -(-total // most))
    found = Blocking(outputs, tiles, gemm.Blocking(1, 1, lanes, conv.k[2].size, "packed"))
    return replace(found, gemm=gemm.choose(products(conv, found, tiles, conv.n.size), target, "packed"))


def padded(conv: Convolution, lanes: int) -> int:
    """Channels of the input, rounded up to whole vectors."""
    return -(-conv.k[2].size // lanes) * lanes


def products(conv: Convolution, block: Blocking, tiles: int, columns: int) -> Contraction:
    """The products of `tiles` tiles by `columns` channels out, at every point: (tile, channel) by (channel, column)."""
    rows, lanes = padded(conv, block.lanes), block.lanes
    apart = [point_stride(tiles, rows, lanes), point_stride(tiles, block.gemm.columns, lanes)]
    point = Loop(block.points, (apart[0], 0, apart[1]), False, (0,), (True, True, True))
    m = Loop(tiles, (rows, 0, block.gemm.columns), False, (1,), (True, False, True))
    n = Loop(columns, (0, 1, 1), False, (2,), (False, True, True))
    k = Loop(conv.k[2].size, (1, block.gemm.columns, 0), True, (3,), (True, True, False))
    return Contraction(conv.element, (point,), m, n, (k,), False, conv.factor, conv.element)


def point_stride(tiles: int, columns: int, lanes: int) -> int:
    """Elements from one point's values to the next: a vector more than there are, since powers of two share few sets of
    a cache, and a transform walks all points of a tile."""
    return tiles * columns + lanes
