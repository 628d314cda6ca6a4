"""Checks which gradients of 3x3 kernels F(3 x 3, 2 x 2) supports, estimates its speedup, and chooses its blocking.

The gradient of a convolution's kernel is itself a convolution: its taps are the results, and the gradient of the
convolution's result is the window. Winograd's algorithm cuts this window into tiles of 2 x 2 positions, for which it
computes all 3 x 3 taps from 4 x 4 elements of the image, and the sum over tiles and batch becomes the reduction of a
matrix product at each of 16 points (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015).
"""

from __future__ import annotations

from dataclasses import dataclass

from buddy.compiler.passes.kernels import blocking as gemm
from buddy.compiler.passes.kernels.access import Loop, SizeAndStride, UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction, byte_width
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.conv.winograd.transforms import WINDOW
from buddy.compiler.passes.kernels.emit import ceil_div, round_up
from buddy.compiler.support.target import Target

# Lines and pixels of the positions in a tile. Tiles of 4 x 4 save more products and lose more digits.
TILE_SIZE = 2
# Lines and pixels of a tile of the image, and the number of its points.
_EXTENT = TILE_SIZE + WINDOW - 1
_POINTS = _EXTENT**2

# The shares of the L2 cache for the transformed operands of a strip, and for the sums that stay in it over all strips.
_L2_SHARE_OF_OPERANDS, _L2_SHARE_OF_SUMS = 0.5, 0.25
# If the sums do not stay in the L2 cache, strips are this many times as large as it is: each strip reads and writes all
# sums once, and the transformed operands still fit into the L3 cache of most machines. On a Zen 5, 4, 6 and 12 are
# equally fast within noise; 4 takes the least memory.
_L2_MULTIPLE_OF_OPERANDS = 4

# The minimum input channels of a chunk: each chunk reads the whole transformed gradient, and packs it if channels are
# not last, which takes as long as about eight multiply-adds for each vector. Measured on a Zen 4: with chunks of 16
# channels, the gradient for 256 channels takes 1.7 times as long.
_MIN_CHUNK = 128

# Cost model. The unit is the time of a vector multiply-add.
# A multiply-add in a register-blocked matrix product, with its overhead.
_PRODUCT_COST = 1.15
# The transform of a vector of either operand, or of sums, at one point.
_OPERAND_COST, _SUM_COST = 3.0, 6.0


@dataclass(frozen=True)
class Operand:
    """The image or the gradient of the result: the size and stride of its channels, and its other strides.

    `lines` and `pixels` are the numbers of those that exist, the padding of the image included.
    """

    channels: SizeAndStride
    image_stride: int
    line_stride: int
    pixel_stride: int
    lines: int
    pixels: int

    @property
    def has_channels_last(self) -> bool:
        return self.channels[1] == 1


@dataclass(frozen=True)
class KernelGradient:
    """A convolution that is the gradient of a 3x3 kernel: `C[c, v, w, o] += A[n, c, y + v, x + w] * B[n, o, y, x]`.

    `channels` is the loop over c, `images` over n, and `lines` and `pixels` those over y and x. `loop_numbers`
    has the positions in `conv.loops` of the loops over c, v and w.
    """

    conv: Convolution
    channels: Loop
    images: Loop
    lines: Loop
    pixels: Loop
    loop_numbers: tuple[int, int, int]

    @property
    def image(self) -> Operand:
        """Returns the first operand."""
        sizes = self.lines.size + WINDOW - 1, self.pixels.size + WINDOW - 1
        return self._operand(0, (self.channels.size, self.channels.strides[0]), *sizes)

    @property
    def gradient(self) -> Operand:
        """Returns the second operand, the gradient of the convolution's result."""
        n = self.conv.n
        return self._operand(1, (n.size, n.strides[1]), self.lines.size, self.pixels.size)

    def _operand(self, number: int, channels: SizeAndStride, lines: int, pixels: int) -> Operand:
        image, line, pixel = (loop.strides[number] for loop in (self.images, self.lines, self.pixels))
        return Operand(channels, image, line, pixel, lines, pixels)

    @property
    def tiles(self) -> tuple[int, int]:
        """Returns the lines of tiles in the whole batch, and the tiles in each."""
        return self.images.size * ceil_div(self.lines.size, TILE_SIZE), ceil_div(self.pixels.size, TILE_SIZE)


@dataclass(frozen=True)
class TransformedOperand:
    """The layout of the transformed tiles of a strip: [point, tile, channel] or [point, channel, tile].

    Channels are last if they are in the operand. Rows are whole vectors; a row of tiles has room for another vector.
    An extra vector follows each point: without it, points with a distance of a power of two would share few sets of the
    cache.
    """

    operand: Operand
    tiles: int
    lanes: int

    @property
    def _row_elements(self) -> int:
        """Returns the distance in elements between two tiles, or between two channels if these are not last."""
        size = self.operand.channels[0] if self.operand.has_channels_last else self.tiles + self.lanes
        return round_up(size, self.lanes)

    @property
    def channel_stride(self) -> int:
        return 1 if self.operand.has_channels_last else self._row_elements

    @property
    def tile_stride(self) -> int:
        return self._row_elements if self.operand.has_channels_last else 1

    @property
    def point_stride(self) -> int:
        rows = self.tiles if self.operand.has_channels_last else self.operand.channels[0]
        return rows * self._row_elements + self.lanes

    @property
    def elements(self) -> int:
        return _POINTS * self.point_stride


@dataclass(frozen=True)
class GradientBlocking:
    """Tiles are transformed in `strips` strips of `strip` lines of tiles, and multiplied for `chunk` input channels.

    With several strips there is one chunk, which has all channels; with several chunks there is one strip. `gemm` is
    the blocking of the matrix product (input channel, tile) by (tile, output channel) at each point.
    """

    strips: int
    strip: int
    chunk: int
    gemm: gemm.GemmBlocking

    @property
    def lanes(self) -> int:
        return self.gemm.lanes

    def describe(self) -> str:
        size = f"{TILE_SIZE}x{TILE_SIZE}"
        return f"winograd {size} in strips of {self.strip} lines of tiles, {self.gemm.describe()}"


def analyse_gradient(conv: Convolution) -> KernelGradient:
    """Returns `conv` as the gradient of a 3x3 kernel. Raises `UnsupportedError` for other convolutions.

    It needs floats, no groups, stride 1 and no dilation, and each operand has contiguous channels or pixels.
    """
    if conv.groups:
        raise UnsupportedError("it has groups")
    if conv.element not in ("f32", "f64") or conv.is_narrow:
        raise UnsupportedError(f"its operands are of type {conv.input_element}")
    rows = [(number, loop) for number, loop in enumerate(conv.loops[:-1]) if loop.size > 1]
    # Loops over taps, each with the loop over positions along the same dim.
    pairs = [
        ((number, row), k) for number, row in rows for k in conv.k
        if row.size == WINDOW and row.strides[0] == k.strides[0]
    ]  # fmt: skip
    inner, taps = [k for _, k in pairs], [number for (number, _), _ in pairs]
    channels = [row for row in rows if row[0] not in taps]
    images = [k for k in conv.k if k not in inner]
    if len(pairs) != 2 or inner[0] == inner[1] or len(channels) != 1 or len(images) > 1:
        raise UnsupportedError("it is not the gradient of a 3x3 window with neighbours one step apart")
    (lines, first), (pixels, second) = sorted(pairs, key=lambda pair: -pair[1].strides[0])
    if min(k.size for k in inner) <= WINDOW:
        raise UnsupportedError("its window has not more positions than taps: it may be a convolution of a small image")
    (number, loop), image = channels[0], images[0] if images else Loop(1, (0, 0, 0), True, (), (True, True, False))
    gradient = KernelGradient(conv, loop, image, first, second, (number, lines[0], pixels[0]))
    if any(1 not in (operand.channels[1], operand.pixel_stride) for operand in (gradient.image, gradient.gradient)):
        raise UnsupportedError("neither channels nor pixels are contiguous")
    return gradient


def estimate_speedup(gradient: KernelGradient, target: Target) -> float:
    """Returns the estimated speedup over direct convolution."""
    conv, lanes = gradient.conv, target.lanes(byte_width(gradient.conv.element))
    lines, tiles = gradient.tiles
    sums = gradient.channels.size * ceil_div(conv.n.size, lanes)
    direct = _PRODUCT_COST * WINDOW**2 * conv.depth * sums
    vectors = sum(
        ceil_div(operand.channels[0], lanes) * tiles
        if operand.has_channels_last
        else operand.channels[0] * ceil_div(tiles, lanes)
        for operand in (gradient.image, gradient.gradient)
    )
    cost = _PRODUCT_COST * lines * tiles * sums + _OPERAND_COST * lines * vectors + _SUM_COST * sums
    return direct / (_POINTS * cost)


def choose_gradient_blocking(gradient: KernelGradient, target: Target) -> GradientBlocking:
    """Returns the blocking of the strips, of the sums and of the products."""
    width, (lines, tiles) = byte_width(gradient.conv.element), gradient.tiles
    inputs, outputs = gradient.channels.size, gradient.conv.n.size
    line_bytes, row_bytes = _POINTS * tiles * (inputs + outputs) * width, _POINTS * outputs * width
    sum_limit = int(_L2_SHARE_OF_SUMS * target.l2)
    share = _L2_SHARE_OF_OPERANDS if inputs * row_bytes <= sum_limit else _L2_MULTIPLE_OF_OPERANDS
    strips = ceil_div(lines, max(1, int(share * target.l2) // line_bytes))
    strip = ceil_div(lines, strips)
    chunks = 1 if strips > 1 else ceil_div(inputs, max(_MIN_CHUNK, sum_limit // row_bytes))
    chunk = ceil_div(inputs, chunks)
    products = tile_products(gradient, strip * tiles, chunk, target.lanes(width))
    return GradientBlocking(ceil_div(lines, strip), strip, chunk, gemm.choose_gemm_blocking(products, target))


def transformed_operands(
    gradient: KernelGradient, tiles: int, lanes: int
) -> tuple[TransformedOperand, TransformedOperand]:
    """Returns the layouts of the image and of the gradient, for strips of `tiles` tiles."""
    return TransformedOperand(gradient.image, tiles, lanes), TransformedOperand(gradient.gradient, tiles, lanes)


def tile_products(gradient: KernelGradient, tiles: int, chunk: int, lanes: int) -> Contraction:
    """Returns the contraction of a strip of `tiles` tiles, for `chunk` input channels.

    At each point it is a matrix product: (input channel, tile) by (tile, output channel). Sums are [point, input
    channel, output channel], with output channels in whole vectors, and a vector after each point.
    """
    a, b = transformed_operands(gradient, tiles, lanes)
    element, columns = gradient.conv.element, round_up(gradient.conv.n.size, lanes)
    sums_stride = chunk * columns + lanes
    point = Loop(_POINTS, (a.point_stride, b.point_stride, sums_stride), False, (0,), (True, True, True))
    m = Loop(chunk, (a.channel_stride, 0, columns), False, (1,), (True, False, True))
    n = Loop(gradient.conv.n.size, (0, b.channel_stride, 1), False, (2,), (False, True, True))
    k = Loop(tiles, (a.tile_stride, b.tile_stride, 0), True, (3,), (True, True, False))
    return Contraction(element, (point,), m, n, (k,), False, (element, element), element)
