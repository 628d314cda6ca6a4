"""`convolutions-to-kernels`: replaces convolutions on channels-last memrefs by calls of kernels with packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.calls import KernelCalls
from buddy.compiler.passes.kernels.contraction import is_contraction, reads_loops
from buddy.compiler.passes.kernels.conv.kernel import BlockedConvolution, choose, choose_winograd, kernel_function
from buddy.compiler.passes.kernels.conv.shape import Convolution, analyse
from buddy.compiler.passes.kernels.conv.winograd.transforms import OUTPUTS
from buddy.compiler.passes.kernels.stages import neighbours
from buddy.compiler.passes.kernels.weights import drop_dead_views

# The minimum estimated speedup for which `auto` uses Winograd, which needs more memory.
_MIN_GAIN = 1.15
_WINOGRAD = ("auto", "never", *(str(outputs) for outputs in OUTPUTS))


@register
@dataclass(frozen=True)
class ConvolutionsToKernels(MlirPass):
    """Emits one kernel function per distinct convolution; `pack-weights` moves the packing of weights out of the call.

    `winograd` is the tile size of Winograd's algorithm for 3x3 windows, 2 or 4; "never" disables it. "auto" uses size 2
    where it is faster, including the transform of weights if each call makes it. The error of size 2 is about that of
    direct products, and that of size 4 about three times as large. A tile whose sums are not all finite is computed by
    direct products, so that infinities and NaN appear in the right outputs.

    A convolution that is a plain matrix product, and one whose channels are not the last dim, is left to
    `contractions-to-kernels`.
    """

    name: ClassVar[str] = "convolutions-to-kernels"
    summary: ClassVar[str] = (
        "convolutions on channels-last memrefs become implicit matrix products, Winograd's or depthwise kernels"
    )

    pack_weights: bool = True
    winograd: str = "auto"

    def __post_init__(self) -> None:
        if self.winograd not in _WINOGRAD:
            raise ValueError(f"{self.name}: winograd is {', '.join(_WINOGRAD)}, not {self.winograd!r}")

    def run(self, root: Any, context: PassContext) -> None:
        calls = KernelCalls(root, context.locations, self.pack_weights)
        # Collect all before rewriting: a kernel absorbs neighbouring ops.
        generics = [op for op in collect(root) if op.name == "linalg.generic" and not len(op.results)]
        for op in [op for op in generics if is_contraction(op) and not reads_loops(op)]:
            try:
                self._rewrite(op, calls, context)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"convolution unchanged: {reason}")
        calls.finish()

    def _rewrite(self, op: Any, calls: KernelCalls, context: PassContext) -> None:
        conv = analyse(op)
        if conv.is_product:
            raise UnsupportedError("it is a plain matrix product")
        found = neighbours(op, conv, _uncut)
        image, raw, result = op.operands
        place, spec = calls.parameter(raw) if calls.packs else None, found.spec
        chosen, notes = self._choose(conv, place is not None, context)
        weights = [raw] if place is None else [calls.packed(place, chosen.form, op.location)]
        if place is not None and chosen.reads_raw:
            weights.append(raw)
        location = context.locations.union([op.location, *found.locations])
        calls.call(
            op, (chosen, spec.key, place is None), chosen.symbol + ("_epilogue" if spec.epilogue else ""),
            [image, *weights, *spec.buffers(result)], location,
            lambda name, types: kernel_function(name, types, chosen, spec, place is not None),
        )  # fmt: skip
        context.remark(self.name, location, ", ".join([chosen.describe(), *notes, *found.notes]))
        op.erase()
        found.erase()
        drop_dead_views(raw)

    def _choose(self, conv: Convolution, packed: bool, context: PassContext) -> tuple[BlockedConvolution, list[str]]:
        """Returns the kernel, and remarks on the choice."""
        notes = [] if packed else ["packed at each call"]
        if self.winograd == "never" or conv.depthwise:
            return choose(conv, context.target), notes
        try:
            if self.winograd != "auto":
                return choose_winograd(conv, context.target, int(self.winograd), 0, packed), notes
            return choose_winograd(conv, context.target, min(OUTPUTS), _MIN_GAIN, packed), notes
        except UnsupportedError as reason:
            return choose(conv, context.target), [*notes, f"not winograd: {reason}"]


def _uncut(conv: Convolution, _boundaries: Sequence[int]) -> Convolution:
    """Returns `conv` unchanged: lines and pixels are separate loops already."""
    return conv
