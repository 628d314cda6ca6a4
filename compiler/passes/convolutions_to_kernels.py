"""`convolutions-to-kernels`: convolutions on channels-last memrefs become calls of kernels, weights packed ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.kernels.access import UnsupportedError
from buddy.compiler.kernels.calls import KernelCalls
from buddy.compiler.kernels.contraction import is_contraction, reads_loops
from buddy.compiler.kernels.conv.kernel import choose, kernel_function
from buddy.compiler.kernels.conv.shape import Convolution, analyse
from buddy.compiler.kernels.stages import neighbours
from buddy.compiler.kernels.walk import collect
from buddy.compiler.kernels.weights import drop_dead_views
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class ConvolutionsToKernels(MlirPass):
    """One kernel function per distinct convolution; `pack-weights` moves the packing of parameters out of the call.

    A convolution that is a plain matrix product, and one whose channels are not the last dim, is left for
    `contractions-to-kernels`.
    """

    name: ClassVar[str] = "convolutions-to-kernels"
    summary: ClassVar[str] = (
        "convolutions on channels-last memrefs become implicit matrix products or depthwise kernels"
    )

    pack_weights: bool = True

    def run(self, root: Any, context: PassContext) -> None:
        calls = KernelCalls(root, context.locations, self.pack_weights)
        # All chosen before the first is rewritten: a kernel takes ops around it away.
        generics = [op for op in collect(root) if op.name == "linalg.generic" and not len(op.results)]
        for op in [op for op in generics if is_contraction(op) and not reads_loops(op)]:
            try:
                _rewrite(op, calls, context)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"convolution left as it is: {reason}")
        calls.finish()


def _rewrite(op: Any, calls: KernelCalls, context: PassContext) -> None:
    conv = analyse(op)
    if conv.is_product:
        raise UnsupportedError("it is a plain matrix product")
    found = neighbours(op, conv, _uncut)
    chosen, spec = choose(conv, context.target), found.spec
    image, raw, result = op.operands
    place = calls.parameter(raw)
    weights = raw if place is None else calls.packed(place, chosen.panels, op.location)
    location = context.locations.union([op.location, *found.locations])
    calls.call(
        op, (chosen, spec.key, place is None), chosen.symbol + ("_epilogue" if spec.epilogue else ""),
        [image, weights, *spec.buffers(result)], location,
        lambda name, types: kernel_function(name, types, chosen, spec, place is not None),
    )  # fmt: skip
    packing = () if place is not None else ("packed at each call",)
    text = ", ".join([chosen.describe(), *packing, *found.notes])
    context.remark(ConvolutionsToKernels.name, location, text)
    op.erase()
    found.erase()
    drop_dead_views(raw)


def _uncut(conv: Convolution, _boundaries: Sequence[int]) -> Convolution:
    """Lines and pixels are loops by themselves already."""
    return conv
