"""One MLIR function per convolution: which kernel it gets, and how its weights are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.bindings import func, ir, memref
from buddy.compiler.kernels.access import flatten
from buddy.compiler.kernels.conv import blocking, depthwise, implicit_gemm
from buddy.compiler.kernels.conv.shape import Convolution
from buddy.compiler.kernels.emit import Emitter
from buddy.compiler.kernels.packing import ALIGNMENT, Panels, pack_all
from buddy.compiler.target import Target


@dataclass(frozen=True)
class Kernel:
    """A convolution with its blocking. `zero` says that C starts from zeros; else the products are added to it."""

    conv: Convolution
    blocking: blocking.Blocking | depthwise.Blocking
    zero: bool

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
        text = f"{self.conv.describe()}: {self.blocking.describe()}"
        return text if self.zero else text + ", adds to C"

    def function(self, name: str, types: Sequence[Any], packed: bool) -> func.FuncOp:
        """A private function (A, B, C) -> () at the insertion point; `types` are those of its memref arguments.

        B has the shape `panels.shape` when `packed`; else the function packs it, at each call.
        """
        function = func.FuncOp(name, (list(types), []), visibility="private")
        entry = function.add_entry_block()
        with ir.InsertionPoint(entry):
            end = func.ReturnOp([])
        with ir.InsertionPoint(end):
            e = Emitter(entry)
            a, b, c = (flatten(value) for value in entry.arguments)
            scratch = None if packed else self._packed_here(e, b)
            flats = (a, b if scratch is None else flatten(scratch), c)
            self._emit(e, flats)
            if scratch is not None:
                memref.dealloc(scratch)
        return function

    def _packed_here(self, e: Emitter, weights: Any) -> Any:
        type_ = ir.MemRefType.get(list(self.panels.shape), weights.type.element_type)
        scratch = memref.alloc(type_, [], [], alignment=ALIGNMENT)
        pack_all(e, self.panels, weights, flatten(scratch))
        return scratch

    def _emit(self, e: Emitter, flats: Sequence[Any]) -> None:
        if isinstance(self.blocking, depthwise.Blocking):
            depthwise.Depthwise(e, flats, self.conv, self.blocking, self.zero).emit()
        else:
            implicit_gemm.ImplicitGemm(e, flats, self.conv, self.blocking, self.zero).emit()


def choose(conv: Convolution, target: Target, zero: bool) -> Kernel:
    """The kernel for `conv` on `target`."""
    found = depthwise.choose(conv, target) if conv.depthwise else blocking.choose(conv, target)
    return Kernel(conv, found, zero)
