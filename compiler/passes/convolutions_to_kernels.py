"""`convolutions-to-kernels`: convolutions on channels-last memrefs become calls of kernels, weights packed ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import func, ir
from buddy.compiler.kernels.access import UnsupportedError
from buddy.compiler.kernels.contraction import is_contraction, reads_loops
from buddy.compiler.kernels.conv.kernel import Kernel, choose
from buddy.compiler.kernels.conv.shape import analyse
from buddy.compiler.kernels.memory import zero_fill_before
from buddy.compiler.kernels.packing import Panels
from buddy.compiler.kernels.walk import collect, unique_symbol
from buddy.compiler.kernels.weights import PackedWeights, drop_dead_views
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
        rewriter = _Rewriter(root, context, PackedWeights(root) if self.pack_weights else None)
        for op in [op for op in collect(root) if op.name == "linalg.generic"]:
            if is_contraction(op) and not reads_loops(op):
                try:
                    rewriter.rewrite(op)
                except UnsupportedError as reason:
                    context.remark(self.name, op.location, f"convolution left as it is: {reason}")
        rewriter.finish()


class _Rewriter:
    def __init__(self, root: Any, context: PassContext, weights: PackedWeights | None) -> None:
        self.root, self.context, self.weights = root, context, weights
        self.functions: dict[object, tuple[str, Any, list[Any]]] = {}  # key -> name, function, locations of its calls
        self.packed_for: dict[Panels, list[Any]] = {}  # locations of the convolutions that read them

    def rewrite(self, op: Any) -> None:
        conv = analyse(op)
        if conv.is_product:
            raise UnsupportedError("it is a plain matrix product")
        fill = zero_fill_before(op, op.operands[2])
        kernel = choose(conv, self.context.target, fill is not None)
        if fill is not None:
            fill.erase()
        operands, raw = list(op.operands), op.operands[1]
        place = self.weights.parameter(raw) if self.weights else None
        if self.weights is not None and place is not None:
            self.packed_for.setdefault(kernel.panels, []).append(op.location)
            operands[1] = self.weights.packed(place, kernel.panels)
        name = self._function(op.location, kernel, [value.type for value in operands], place is not None)
        with ir.InsertionPoint(op), op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), operands)
        packing = "" if place is not None else ", at each call"
        self.context.remark(ConvolutionsToKernels.name, op.location, kernel.describe() + packing)
        op.erase()
        drop_dead_views(raw)

    def _function(self, location: Any, kernel: Kernel, types: list[Any], packed: bool) -> str:
        key = (tuple(str(type_) for type_ in types), kernel, packed)
        if key not in self.functions:
            name = unique_symbol(self.root, kernel.symbol)
            with ir.InsertionPoint(self.root.regions[0].blocks[0]), location:
                self.functions[key] = (name, kernel.function(name, types, packed), [])
        name, _, locations = self.functions[key]
        locations.append(location)
        return name

    def finish(self) -> None:
        written = self.weights.finish() if self.weights is not None else {}
        for _, function, locations in self.functions.values():
            self._locate(function, locations)
        for panels, functions in written.items():
            for function in functions:
                self._locate(function, self.packed_for[panels])

    def _locate(self, function: Any, locations: list[Any]) -> None:
        """A function shared by several ops comes from all of them."""
        union = self.context.locations.union(locations)
        for op in [function.operation, *collect(function.operation)]:
            op.location = union
