"""Checks which convolutions F(m x m, 3 x 3) supports, estimates its speedup, and chooses its blocks of tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from buddy.compiler.passes.kernels import blocking as gemm
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction, byte_width
from buddy.compiler.passes.kernels.conv.shape import BLOCKS_TO_SHARE, Convolution
from buddy.compiler.passes.kernels.conv.winograd.transforms import (
    EXACT_TILE_SIZE,
    MAX_EXACT_CHANNELS,
    TILE_SIZES,
    WINDOW,
)
from buddy.compiler.passes.kernels.dot_instructions import INSTRUCTIONS, VPDPBUSD, VPDPWSSD, VPMADDWD, DotInstruction
from buddy.compiler.passes.kernels.emit import ceil_div, round_up
from buddy.compiler.support.target import Target

# The share of the L2 cache for the transformed input of a block of tiles.
_L2_SHARE_OF_INPUT = 0.5

# Vectors of output channels in a register block: more leave too few rows.
_MAX_VECTORS = 4

# Cost model. The unit is the time of a vector multiply-add.
# A multiply-add in a register-blocked matrix product, with its overhead.
_PRODUCT_COST = 1.15
# If weights are packed in each call: the transform of a vector of weights at one point, and the packing of a vector for
# direct convolution.
_WEIGHT_TRANSFORM_COST, _WEIGHT_PACKING_COST = 12.0, 8.0


@dataclass(frozen=True)
class _Costs:
    """The costs of data that are not products.

    `input_transform` and `output_transform` are those of a vector of channels at one point of a tile, and `weight_byte`
    that of a byte of weights, if all weights exceed the L2 cache.
    """

    input_transform: float
    output_transform: float
    weight_byte: float


_FLOAT_COSTS = _Costs(2.5, 4.5, 0.1)
# Measured on a Zen 5 with 56x56x64, 28x28x128, 14x14x256 and 7x7x512 pixels and channels.
_BYTE_COSTS = _Costs(8.5, 7.0, 0.05)


@dataclass(frozen=True)
class WinogradBlocking:
    """A block has `tiles` tiles of `tile_size` x `tile_size` outputs, which are transformed and multiplied at once.

    `gemm` is the blocking of the matrix product (tile, input channel) by (input channel, output channel) at each point.
    If it multiplies by an instruction for narrow elements, transformed inputs and weights are rounded to these. Input
    channels are divided into `parts`, whose products are summed apart.
    """

    tile_size: int
    tiles: int
    gemm: gemm.GemmBlocking
    parts: int = 1

    @property
    def lanes(self) -> int:
        return self.gemm.lanes

    def element(self, conv: Convolution) -> str:
        """Returns the type of transformed inputs and weights."""
        return self.gemm.instruction.element if self.gemm.instruction else conv.element

    @property
    def points(self) -> int:
        """Returns the number of elements of a transformed tile: each is one product per pair of channels."""
        return (self.tile_size + WINDOW - 1) ** 2

    def point_stride(self, columns: int) -> int:
        """Returns the distance in elements between the `tiles` x `columns` values of consecutive points.

        It includes an extra vector: a transform reads all points of a tile, which would share few sets of the cache if
        their distance were a power of two.
        """
        return self.tiles * columns + self.lanes

    def describe(self) -> str:
        """Returns the text of a remark."""
        kind = f"winograd {self.tile_size}x{self.tile_size}"
        return f"{kind} in blocks of {self.tiles} tiles, {self.gemm.rows}x{self.gemm.columns} register block" + (
            f", {self.gemm.dot}" if self.gemm.dot else ""
        )


def check_supported(conv: Convolution) -> None:
    """Raises `UnsupportedError` if Winograd's algorithm does not apply.

    It needs floats, whose transforms and products are in the type of the sums, or bytes, of which weights are signed;
    no groups, contiguous channels, and a window of 3x3 without stride or dilation.
    """
    if conv.groups:
        raise UnsupportedError("it has groups")
    if conv.element not in ("f32", "f64") and not multiplies_bytes(conv):
        raise UnsupportedError(f"its sums are of type {conv.element}")
    if conv.unsigned[1]:
        raise UnsupportedError("its weights are unsigned")
    k_extents = [(loop.size, loop.strides[0]) for loop in conv.k]
    if k_extents[:2] != [(WINDOW, conv.lines.strides[0]), (WINDOW, conv.pixels.strides[0])]:
        raise UnsupportedError("its window is not 3x3 with neighbours one step apart")
    if len(k_extents) != 3 or k_extents[2][1] != 1:
        raise UnsupportedError("it has no contiguous channels")


def multiplies_bytes(conv: Convolution) -> bool:
    """True if `conv` multiplies bytes, and adds the products in 32 bits."""
    return (conv.input_element, conv.element) == ("i8", "i32")


def check_exact(conv: Convolution, tile_size: int, target: Target) -> None:
    """Raises `UnsupportedError` if the sums of bytes cannot be computed exactly from tiles on `target`."""
    if tile_size != EXACT_TILE_SIZE:
        raise UnsupportedError(f"bytes need tiles of {EXACT_TILE_SIZE}x{EXACT_TILE_SIZE}")
    if _dot_instruction(conv, tile_size, target) is None:
        raise UnsupportedError("no instruction multiplies pairs of 16-bit integers, or channels form no pairs")


def tiles_of(conv: Convolution, tile_size: int) -> tuple[int, ...]:
    """Returns the number of tiles along each of `conv.images`, lines and pixels."""
    tiles_in_plane = (ceil_div(loop.size, tile_size) for loop in (conv.lines, conv.pixels))
    return (*(loop.size for loop in conv.images), *tiles_in_plane)


def _dot_instruction(conv: Convolution, tile_size: int, target: Target) -> DotInstruction | None:
    """Returns the instruction of `target` for transformed values: 16-bit integers, or floats of the inputs' type.

    Rounding to bfloat16 costs tiles of 4 x 4 too many digits. Tiles of AMX multiply at such a rate that the transforms
    would cost more than the products that they save.
    """
    if multiplies_bytes(conv):
        return _instruction_of_pairs(conv, target)
    if conv.element != "f32" or not conv.is_narrow or tile_size != min(TILE_SIZES):
        return None
    factors = (conv.input_element, conv.input_element)
    for name in target.dot_instructions:
        instruction = INSTRUCTIONS[name]
        if instruction.multiplies(factors, conv.element, conv.unsigned):
            is_usable = not instruction.on_tiles and conv.k[2].size % instruction.group == 0
            return instruction if is_usable else None
    return None


def _instruction_of_pairs(conv: Convolution, target: Target) -> DotInstruction | None:
    """Returns the instruction of `target` that multiplies pairs of 16-bit integers.

    Returns `None` if the target lacks one, if channels do not form pairs, or if `target` multiplies bytes on tiles.
    """
    names = [name for name in target.dot_instructions if INSTRUCTIONS[name].sums == conv.element]
    fastest = names[0] if names else ""
    # Processors that have the one for bytes also have the one for pairs.
    instruction = {VPDPBUSD.name: VPDPWSSD, VPMADDWD.name: VPMADDWD}.get(fastest)
    return instruction if instruction and conv.k[2].size % instruction.group == 0 else None


def _weight_bytes(conv: Convolution, tile_size: int, element: str) -> int:
    """Returns the bytes of the transformed weights of type `element`, without the padding of panels."""
    return conv.n.size * conv.k[2].size * (tile_size + WINDOW - 1) ** 2 * byte_width(element)


def estimate_speedup(conv: Convolution, tile_size: int, target: Target, packed: bool, direct_rate: int) -> float:
    """Returns the estimated speedup over direct convolution; weights are `packed` before the calls, or in each call.

    `direct_rate` is the number of products for which direct convolution takes as long as for a multiply-add of floats.
    """
    lanes, points = target.lanes(byte_width(conv.element)), (tile_size + WINDOW - 1) ** 2
    tiles, output_vectors = math.prod(tiles_of(conv, tile_size)), ceil_div(conv.n.size, lanes)
    input_vectors = padded_channels(conv, lanes) // input_lanes(conv, lanes)
    # The number of vectors of windows of weights that each call packs or transforms.
    windows = 0 if packed else conv.k[2].size * output_vectors
    instruction = _dot_instruction(conv, tile_size, target)
    element, group = (instruction.element, instruction.group) if instruction else (conv.element, 1)
    products = tiles * points * conv.k[2].size * output_vectors / group
    costs = _BYTE_COSTS if multiplies_bytes(conv) else _FLOAT_COSTS
    weight_bytes = _weight_bytes(conv, tile_size, element)
    winograd_cost = _product_cost(products, weight_bytes, costs.weight_byte, target)
    transform_cost = costs.input_transform * input_vectors + costs.output_transform * output_vectors
    winograd_cost += tiles * points * transform_cost
    winograd_cost += _WEIGHT_TRANSFORM_COST * points * windows
    direct_products = conv.flops // (2 * conv.n.size) * output_vectors / direct_rate
    direct_weight_bytes = (
        conv.depth * conv.n.size * byte_width(conv.element if direct_rate == 1 else conv.input_element)
    )
    direct_cost = _product_cost(direct_products, direct_weight_bytes, costs.weight_byte, target)
    direct_cost += _WEIGHT_PACKING_COST * WINDOW**2 * windows
    return direct_cost / winograd_cost


def _product_cost(products: float, weight_bytes: int, byte_cost: float, target: Target) -> float:
    """Returns the cost of `products` vector multiply-adds that read `weight_bytes` bytes of weights."""
    return _PRODUCT_COST * products + (byte_cost * weight_bytes if weight_bytes > target.l2 else 0)


def choose_winograd_blocking(conv: Convolution, tile_size: int, target: Target) -> WinogradBlocking:
    """Returns the blocking with the least estimated time; computes whole blocks with whole panels of weights."""
    lanes = target.lanes(byte_width(conv.element))
    candidates = list(_candidates(conv, tile_size, lanes, target))
    return min(candidates, key=lambda block: (_cost(conv, block), -block.gemm.rows))


def _candidates(conv: Convolution, tile_size: int, lanes: int, target: Target) -> Iterator[WinogradBlocking]:
    """Yields blockings for each register block that fits, with the fewest blocks of tiles that fit into the cache.

    Three or more blocks are rounded up to a multiple of `BLOCKS_TO_SHARE`.
    """
    total, points = math.prod(tiles_of(conv, tile_size)), (tile_size + WINDOW - 1) ** 2
    instruction = _dot_instruction(conv, tile_size, target)
    element, dot = (instruction.element, instruction.name) if instruction else (conv.element, "")
    parts = _exact_parts(conv, instruction.group) if instruction and multiplies_bytes(conv) else 1
    tile_bytes = points * padded_channels(conv, lanes) * byte_width(element)
    tiles_in_cache = int(_L2_SHARE_OF_INPUT * target.l2) // tile_bytes
    count = ceil_div(total, max(1, tiles_in_cache))
    count = count if count <= 2 else round_up(count, BLOCKS_TO_SHARE)
    for vectors in range(1, min(_MAX_VECTORS, ceil_div(conv.n.size, lanes)) + 1):
        for rows in range(1, min(total, (target.vector_registers - 1 - vectors) // vectors) + 1):
            tiles = ceil_div(total, count * rows) * rows
            block = gemm.GemmBlocking(rows, vectors, lanes, conv.k[2].size // parts, "packed", dot=dot)
            yield WinogradBlocking(tile_size, tiles, block, parts)


def _exact_parts(conv: Convolution, group: int) -> int:
    """Returns the least number of equal parts of the input channels, in groups, whose sums of bytes are exact."""
    groups = conv.k[2].size // group
    return next(n for n in range(1, groups + 1) if groups % n == 0 and groups // n * group <= MAX_EXACT_CHANNELS)


def _cost(conv: Convolution, block: WinogradBlocking) -> float:
    """Returns the cycles per input channel and point."""
    blocks = ceil_div(math.prod(tiles_of(conv, block.tile_size)), block.tiles)
    panels = ceil_div(conv.n.size, block.gemm.columns)
    return blocks * panels * block.tiles / block.gemm.rows * gemm.block_cycles(block.gemm.rows, block.gemm.vectors)


def input_lanes(conv: Convolution, lanes: int) -> int:
    """Returns the channels in a vector of transformed inputs, of which sums have `lanes`: twice as many integers."""
    return 2 * lanes if multiplies_bytes(conv) else lanes


def padded_channels(conv: Convolution, lanes: int) -> int:
    """Returns the input channels, rounded up to whole vectors of transformed inputs."""
    return round_up(conv.k[2].size, input_lanes(conv, lanes))


def tile_products(conv: Convolution, block: WinogradBlocking) -> Contraction:
    """Returns the contraction of a block of tiles with one part of a panel of weights.

    At each point it is a matrix product: (tile, input channel) by (input channel, output channel).
    """
    channels, columns = padded_channels(conv, block.lanes), block.gemm.columns
    point_strides = block.point_stride(channels), 0, block.point_stride(columns)
    point = Loop(block.points, point_strides, False, (0,), (True, True, True))
    m = Loop(block.tiles, (channels, 0, columns), False, (1,), (True, False, True))
    n = Loop(columns, (0, 1, 1), False, (2,), (False, True, True))
    k = Loop(conv.k[2].size // block.parts, (1, columns, 0), True, (3,), (True, True, False))
    factors = (block.element(conv), block.element(conv))
    return Contraction(conv.element, (point,), m, n, (k,), False, factors, conv.element)
