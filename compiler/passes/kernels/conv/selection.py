"""Selects the kernel of a convolution and the packing of its weights, and emits its MLIR function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.passes.kernels.access import UnsupportedError, flatten
from buddy.compiler.passes.kernels.calls import kernel_body
from buddy.compiler.passes.kernels.conv import direct, in_place, patches, shape, tap_sums
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.conv.winograd import blocking as winograd
from buddy.compiler.passes.kernels.conv.winograd import gradient_blocking as gradients
from buddy.compiler.passes.kernels.conv.winograd.exact_kernel import ExactWinograd
from buddy.compiler.passes.kernels.conv.winograd.gradient_kernel import WinogradGradient
from buddy.compiler.passes.kernels.conv.winograd.kernel import Winograd, weight_packing
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultSpec, rounds_pairs
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Packing
from buddy.compiler.passes.kernels.weights import packed_type
from buddy.compiler.support.target import Target


@dataclass(frozen=True)
class BlockedConvolution:
    """A convolution with its blocking, whose type selects the kernel.

    The kernels are: implicit GEMM, that of narrow elements in place, patches, depthwise (of pairs too), sums of
    taps, Winograd, and Winograd's gradient of a kernel.
    """

    conv: Convolution
    blocking: (
        shape.ConvBlocking
        | direct.DepthwiseBlocking
        | tap_sums.TapBlocking
        | patches.PatchBlocking
        | in_place.InPlaceBlocking
        | winograd.WinogradBlocking
        | gradients.GradientBlocking
    )

    @property
    def weight_packing(self) -> Packing | None:
        """Returns the packing of the weights that the kernel reads; `None` if it reads them in place."""
        if isinstance(self.blocking, tap_sums.TapBlocking | gradients.GradientBlocking):
            return None
        if isinstance(self.blocking, winograd.WinogradBlocking):
            return weight_packing(self.conv, self.blocking)
        if isinstance(self.blocking, in_place.PairedBlocking):
            return in_place.paired_panels(self.conv, self.blocking)
        if isinstance(self.blocking, direct.DepthwiseBlocking):
            return direct.depthwise_panels(self.conv, self.blocking)
        if isinstance(self.blocking, patches.PatchBlocking):
            return patches.patch_panels(self.conv, self.blocking)
        if isinstance(self.blocking, in_place.InPlaceBlocking):
            return in_place.in_place_panels(self.conv, self.blocking)
        return direct.gemm_panels(self.conv, self.blocking)

    @property
    def reads_unpacked_weights(self) -> bool:
        """True if the kernel reads the unpacked weights too."""
        return isinstance(self.blocking, winograd.WinogradBlocking) and not winograd.multiplies_bytes(self.conv)

    @property
    def dot(self) -> str:
        """Returns the name of the instruction that adds groups of products; "" for multiply-adds."""
        if isinstance(self.blocking, patches.PatchBlocking):
            return self.blocking.gemm.dot
        if isinstance(self.blocking, in_place.PairedBlocking | in_place.InPlaceBlocking):
            return self.blocking.dot
        return ""

    @property
    def symbol(self) -> str:
        """Returns the name of the kernel's function, such as `conv_56x56x64_3x3x64`."""
        conv, sums_taps = self.conv, isinstance(self.blocking, tap_sums.TapBlocking)
        kind = (
            "winograd" if isinstance(self.blocking, winograd.WinogradBlocking)
            else "winograd_gradient" if isinstance(self.blocking, gradients.GradientBlocking)
            else "tap_sums" if sums_taps
            else "depthwise" if conv.depthwise
            else "conv"
        )  # fmt: skip
        window = "x".join(str(loop.size) for loop in conv.k) or "1"
        channels = conv.groups[0].size if conv.depthwise or (sums_taps and conv.n.size == 1) else conv.n.size
        return f"{kind}_{conv.lines.size}x{conv.pixels.size}x{channels}_{window}"

    def describe(self) -> str:
        return f"{self.conv.describe()}: {self.blocking.describe()}"


def choose_direct(conv: Convolution, target: Target) -> BlockedConvolution:
    """Returns the blocking of the direct convolution (not Winograd's) on `target`.

    Raises `UnsupportedError` for a layout that no kernel supports.
    """
    if taps := tap_sums.choose_taps(conv, target):
        return BlockedConvolution(conv, taps)
    if not conv.channels_last:
        raise UnsupportedError("channels are not its last dim")
    if conv.depthwise:
        pairs = in_place.choose_pairs(conv, target)
        return BlockedConvolution(conv, pairs or direct.choose_depthwise(conv, target))
    if not conv.is_narrow:
        return BlockedConvolution(conv, shape.choose_conv_blocking(conv, target))
    return BlockedConvolution(conv, in_place.choose_in_place(conv, target) or patches.choose_patches(conv, target))


def choose_winograd(
    conv: Convolution, target: Target, tile_size: int, min_speedup: float, packed: bool
) -> BlockedConvolution:
    """Returns the blocking of Winograd's convolution with tiles of `tile_size` x `tile_size` outputs.

    `packed` means that weights are packed before the program is called, otherwise in each call. Raises
    `UnsupportedError` if Winograd's algorithm does not apply, or if its estimated speedup is below `min_speedup`.
    """
    winograd.check_supported(conv)
    if winograd.multiplies_bytes(conv):
        winograd.check_exact(conv, tile_size, target)
    direct_blocking = choose_direct(conv, target).blocking
    direct_rate = direct_blocking.products_per_step if isinstance(direct_blocking, patches.PatchBlocking) else 1
    _check_speedup(winograd.estimate_speedup(conv, tile_size, target, packed, direct_rate), min_speedup)
    return BlockedConvolution(conv, winograd.choose_winograd_blocking(conv, tile_size, target))


def choose_winograd_gradient(conv: Convolution, target: Target, min_speedup: float) -> BlockedConvolution:
    """Returns the blocking of Winograd's gradient of a 3x3 kernel.

    Raises `UnsupportedError` if `conv` is no such gradient, or if the estimated speedup is below `min_speedup`.
    """
    gradient = gradients.analyse_gradient(conv)
    _check_speedup(gradients.estimate_speedup(gradient, target), min_speedup)
    return BlockedConvolution(conv, gradients.choose_gradient_blocking(gradient, target))


def _check_speedup(speedup: float, min_speedup: float) -> None:
    """Raises `UnsupportedError` if the estimated `speedup` of Winograd's algorithm is below `min_speedup`."""
    if speedup < min_speedup:
        raise UnsupportedError(
            f"the estimated speedup over direct convolution is only {speedup:.2f} (minimum {min_speedup:g})"
        )


def emit_conv_function(
    name: str, types: Sequence[ir.Type], chosen: BlockedConvolution, spec: ResultSpec, packed: bool
) -> func.FuncOp:
    """Emits a private function (image, weights, buffers of `spec`); callers pass memrefs of `types`.

    If `packed`, the weights have the shape `chosen.weight_packing.shape`, and if `chosen.reads_unpacked_weights`, an
    argument with the unpacked weights follows them. Otherwise the weights are unpacked, and the function packs them in
    each call, unless it reads them in place. The strides in `spec` are those along `chosen.conv.loops`.
    """
    with kernel_body(name, types) as (function, e, operands):
        a, b, *buffers = operands
        unpacked = buffers.pop(0) if packed and chosen.reads_unpacked_weights else b
        conv, block = chosen.conv, chosen.blocking
        in_pairs = rounds_pairs(chosen.dot, block.lanes)
        results = KernelResults(e, spec, buffers, block.lanes, ir.Type.parse(conv.element), in_pairs)
        packing = chosen.weight_packing
        scratch = None if packed or packing is None else _pack_into_scratch(e, packing, b)
        weights = b if scratch is None else flatten(scratch)
        if isinstance(block, winograd.WinogradBlocking):
            kernel = ExactWinograd if winograd.multiplies_bytes(conv) else Winograd
            kernel(e, a, weights, unpacked, results, conv, block).emit()
        elif isinstance(block, gradients.GradientBlocking):
            WinogradGradient(e, a, weights, results, gradients.analyse_gradient(conv), block).emit()
        elif isinstance(block, in_place.PairedBlocking):
            in_place.PairedDepthwise(e, a, weights, results, conv, block).emit()
        elif isinstance(block, direct.DepthwiseBlocking):
            direct.Depthwise(e, a, weights, results, conv, block).emit()
        elif isinstance(block, tap_sums.TapBlocking):
            tap_sums.TapSums(e, a, weights, results, conv, block).emit()
        elif isinstance(block, patches.PatchBlocking):
            patches.PatchGemm(e, a, weights, results, conv, block).emit()
        elif isinstance(block, in_place.InPlaceBlocking):
            in_place.InPlaceGemm(e, a, weights, results, conv, block).emit()
        else:
            direct.ImplicitGemm(e, a, weights, results, conv, block).emit()
        if scratch is not None:
            memref.dealloc(scratch)
    return function


def _pack_into_scratch(e: KernelEmitter, packing: Packing, weights: ir.Value) -> ir.Value:
    """Emits the packing of `weights` into a new buffer; the caller frees the buffer."""
    scratch = memref.alloc(packed_type(packing, ir.MemRefType(weights.type)), [], [], alignment=ALIGNMENT)
    packing.emit_packing(e, weights, flatten(scratch))
    return scratch
