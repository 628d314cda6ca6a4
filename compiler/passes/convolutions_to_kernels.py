"""`convolutions-to-kernels`: replaces convolutions on channels-last memrefs by calls of kernels with packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.calls import KernelCalls, check_pack_limit
from buddy.compiler.passes.kernels.contraction import has_plain_indices, is_contraction
from buddy.compiler.passes.kernels.conv.selection import (
    BlockedConvolution,
    choose_direct,
    choose_winograd,
    choose_winograd_gradient,
    emit_conv_function,
)
from buddy.compiler.passes.kernels.conv.shape import Convolution, analyse_convolution
from buddy.compiler.passes.kernels.conv.winograd.blocking import multiplies_bytes
from buddy.compiler.passes.kernels.conv.winograd.transforms import EXACT_TILE_SIZE, TILE_SIZES
from buddy.compiler.passes.kernels.neighbours import find_neighbours
from buddy.compiler.passes.kernels.weights import drop_dead_views
from buddy.compiler.protocol.pass_facts import DEFAULT_PACK_LIMIT

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir

# The minimum estimated speedup over direct convolution for which `auto` uses Winograd, which needs more memory.
_MIN_SPEEDUP = 1.15
_WINOGRAD_VALUES = ("auto", "never", *(str(tile_size) for tile_size in TILE_SIZES))


@register
@dataclass(frozen=True)
class ConvolutionsToKernels(MlirPass):
    """Emits one kernel function per distinct convolution.

    With `pack_weights`, parameters are packed before the program is called. Weights of more than `pack_limit` MiB are
    not packed (0: no limit), because the copies take as much memory again.

    `winograd` is the tile size of Winograd's algorithm for 3x3 windows, 2 or 4; "never" disables it. "auto" uses size 2
    where it is estimated to be faster, including the transform of the weights if each call makes it. The error of size
    2 is about that of direct convolution, and that of size 4 about three times as large. A tile whose sums are not all
    finite is computed by direct convolution, so that infinities and NaN appear in the right outputs.

    On bfloat16 and a target with an instruction for its products on vectors, size 2 rounds transformed images and
    weights to bfloat16: sums in float32 then differ by 0.4 % of their root mean square, 2.4 times as much as by the
    rounding of the result to bfloat16.

    Bytes that are multiplied by signed bytes use size 4, with products of 16-bit integers; the sums are exact. "2" does
    not apply to them. Packed weights are eight times as large as the weights.

    Gradients of 3x3 kernels without stride, dilation and groups are computed from tiles of 2x2 positions, with an error
    like that of direct convolution, whatever the tile size. "never" disables that too.

    Elements that are narrower than the sums, such as bfloat16 and bytes, are copied in patches, a chunk of output
    positions at a time, and multiplied as by `contractions-to-kernels`, with its instructions. Pairs of bfloat16 are
    read in place if the copies would take as long as the products: with few contiguous elements, for few channels.

    Gradients of kernels in groups of few channels keep the sums of a block of taps in registers, and read both operands
    in place, with channels last or first. Any other convolution whose channels are not the last dim, and one that is a
    plain matrix product, is left to `contractions-to-kernels`.
    """

    name: ClassVar[str] = "convolutions-to-kernels"
    summary: ClassVar[str] = (
        "replace convolutions on channels-last memrefs by implicit matrix products, Winograd's or depthwise kernels"
    )

    pack_weights: bool = True
    pack_limit: int = DEFAULT_PACK_LIMIT
    winograd: str = "auto"

    def __post_init__(self) -> None:
        check_pack_limit(self.name, self.pack_limit)
        if self.winograd not in _WINOGRAD_VALUES:
            values = ", ".join(_WINOGRAD_VALUES)
            raise ValueError(f"{self.name}: winograd must be one of {values}, not {self.winograd!r}")

    def run(self, root: ir.Operation, context: PassContext) -> None:
        calls = KernelCalls(root, context.locations, self.pack_weights, self.pack_limit)
        # The list is complete before the first rewrite, which may erase neighbouring ops.
        generics = [op for op in nested_ops(root) if op.name == "linalg.generic" and not len(op.results)]
        for op in [op for op in generics if is_contraction(op) and not has_plain_indices(op)]:
            try:
                self._rewrite(op, calls, context)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"convolution unchanged: {reason}")
        calls.finish()

    def _rewrite(self, op: ir.Operation, calls: KernelCalls, context: PassContext) -> None:
        """Replaces `op`, and the ops that its kernel absorbs, by a call. Raises `UnsupportedError` with the reason."""
        conv = analyse_convolution(op)
        if conv.is_product:
            raise UnsupportedError("it is a plain matrix product")
        fused = find_neighbours(op, conv, _unsplit)
        image, weights, result = op.operands
        parameter, spec = calls.packable_parameter(weights), fused.spec
        chosen, notes = self._choose(conv, parameter is not None, context)
        weight_arguments, packing = [weights], chosen.weight_packing
        are_packed_before = parameter is not None and packing is not None
        if parameter is not None and packing is not None:
            weight_arguments = [calls.packed(parameter, packing, op.location)]
            if chosen.reads_unpacked_weights:
                weight_arguments.append(weights)
        elif packing is not None:
            notes = ["packed at each call", *notes]
        location = context.locations.union([op.location, *fused.locations])
        calls.call(
            op, (chosen, spec.key, not are_packed_before), chosen.symbol + ("_epilogue" if spec.epilogue else ""),
            [image, *weight_arguments, *spec.buffers(result)], location,
            lambda name, types: emit_conv_function(name, types, chosen, spec, are_packed_before),
        )  # fmt: skip
        context.remark(self.name, location, ", ".join([chosen.describe(), *notes, *fused.notes]))
        op.erase()
        fused.erase()
        drop_dead_views(weights)

    def _choose(
        self, conv: Convolution, are_packed_before: bool, context: PassContext
    ) -> tuple[BlockedConvolution, list[str]]:
        """Returns the kernel, and notes for the remark.

        Unless `are_packed_before`, each call packs the weights, which takes time.
        """
        if self.winograd == "never" or conv.depthwise:
            return choose_direct(conv, context.target), []
        with suppress(UnsupportedError):
            return choose_winograd_gradient(conv, context.target, _MIN_SPEEDUP if self.winograd == "auto" else 0), []
        if not conv.channels_last:
            return choose_direct(conv, context.target), []
        try:
            if self.winograd != "auto":
                return choose_winograd(conv, context.target, int(self.winograd), 0, are_packed_before), []
            tile_size = EXACT_TILE_SIZE if multiplies_bytes(conv) else min(TILE_SIZES)
            return choose_winograd(conv, context.target, tile_size, _MIN_SPEEDUP, are_packed_before), []
        except UnsupportedError as reason:
            return choose_direct(conv, context.target), [f"not winograd: {reason}"]


def _unsplit(conv: Convolution, _boundaries: Sequence[int]) -> Convolution:
    """Returns `conv` unchanged: lines and pixels are separate loops already."""
    return conv
