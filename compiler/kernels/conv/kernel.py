"""One MLIR function per convolution: which kernel it gets, and how its weights are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.bindings import func, ir, memref
from buddy.compiler.kernels.access import flatten
from buddy.compiler.kernels.conv import blocking, depthwise, implicit_gemm
from buddy.compiler.kernels.conv.shape import Convolution
from buddy.compiler.kernels.crossing import argument_types, flat_operands
from buddy.compiler.kernels.emit import Emitter
from buddy.compiler.kernels.epilogue import Results, ResultSpec
from buddy.compiler.kernels.packing import ALIGNMENT, Panels, pack_all
from buddy.compiler.target import Target


@dataclass(frozen=True)
class Chosen:
    """A convolution with its blocking."""

    conv: Convolution
    blocking: blocking.Blocking | depthwise.Blocking

    @property
    def panels(self) -> Panels:
        """How the weights are packed."""
        if isinstance(self.blocking, depthwise.Blocking):
            return depthwise.panels_of(self.conv, self.blocking)
        return implicit_gemm.panels_of(self.conv, self.blocking)

    @property
    def symbol(self) -> str:
        conv, verb = self.conv, "depthwise" if self.conv.depthwise else "conv"
        window = "x".join(str(loop.size) for loop in conv.k) or "1"
        channels = conv.groups[0].size if conv.depthwise else conv.n.size
        return f"{verb}_{conv.lines.size}x{conv.pixels.size}x{channels}_{window}"

    def describe(self) -> str:
        return f"{self.conv.describe()}: {self.blocking.describe()}"


def choose(conv: Convolution, target: Target) -> Chosen:
    """The kernel for `conv` on `target`."""
    return Chosen(conv, depthwise.choose(conv, target) if conv.depthwise else blocking.choose(conv, target))


def kernel_function(name: str, types: Sequence[Any], chosen: Chosen, spec: ResultSpec, packed: bool) -> func.FuncOp:
    """A private function (A, B, buffers of `spec`) at the insertion point; `crossing` passes memrefs of `types` to it.

    B has the shape `chosen.panels.shape` when `packed`; else the function packs it, at each call. Strides in `spec`
    are along `chosen.conv.loops`.
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        a, b, *buffers = flat_operands(entry.arguments, types)
        e, conv, block = Emitter(entry), chosen.conv, chosen.blocking
        results = Results(e, spec, buffers, block.lanes, ir.Type.parse(conv.element))
        scratch = None if packed else _packed_here(e, chosen.panels, b)
        weights = b if scratch is None else flatten(scratch)
        if isinstance(block, depthwise.Blocking):
            depthwise.Depthwise(e, a, weights, results, conv, block).emit()
        else:
            implicit_gemm.ImplicitGemm(e, a, weights, results, conv, block).emit()
        if scratch is not None:
            memref.dealloc(scratch)
    return function


def _packed_here(e: Emitter, panels: Panels, weights: Any) -> Any:
    type_ = ir.MemRefType.get(list(panels.shape), weights.type.element_type)
    scratch = memref.alloc(type_, [], [], alignment=ALIGNMENT)
    pack_all(e, panels, weights, flatten(scratch))
    return scratch
