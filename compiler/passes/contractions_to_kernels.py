"""`contractions-to-kernels`: contractions on memrefs become calls of register-blocked kernels, weights packed ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import func, ir
from buddy.compiler.kernels import crossing
from buddy.compiler.kernels.access import UnsupportedError
from buddy.compiler.kernels.blocking import Blocking, Source, choose
from buddy.compiler.kernels.contraction import NAMED, Contraction, analyse, is_contraction
from buddy.compiler.kernels.gemm import Start, kernel_function
from buddy.compiler.kernels.memory import zero_fill_before
from buddy.compiler.kernels.packing import Panels, panels_of
from buddy.compiler.kernels.walk import collect, unique_symbol
from buddy.compiler.kernels.weights import PackedWeights, drop_dead_views
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class ContractionsToKernels(MlirPass):
    """One kernel function per distinct contraction; `pack-weights` moves the packing of parameters out of the call."""

    name: ClassVar[str] = "contractions-to-kernels"
    summary: ClassVar[str] = "matmuls and other contractions on memrefs become calls of register-blocked kernels"

    pack_weights: bool = True

    def run(self, root: Any, context: PassContext) -> None:
        rewriter = _Rewriter(root, context, PackedWeights(root) if self.pack_weights else None)
        for op in [op for op in collect(root) if op.name.startswith("linalg.")]:
            try:
                if is_contraction(op):
                    rewriter.rewrite(op)
                elif op.name in NAMED:
                    raise UnsupportedError("kernels exist for f32 and f64 without casts")
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} left as it is: {reason}")
        rewriter.finish()


class _Rewriter:
    def __init__(self, root: Any, context: PassContext, weights: PackedWeights | None) -> None:
        self.root, self.context, self.weights = root, context, weights
        self.kernels: dict[object, tuple[str, Any, list[Any]]] = {}  # key -> name, function, locations of its calls
        self.packed_for: dict[Panels, list[Any]] = {}  # locations of the contractions that read them

    def rewrite(self, op: Any) -> None:
        contraction = analyse(op)
        operands = list(op.operands)
        number = 0 if contraction.swapped else 1
        place = self.weights.parameter(operands[number]) if self.weights else None
        source: Source | None = "packed" if place is not None else None
        blocking = choose(contraction, self.context.target, source)
        raw = operands[number]
        if self.weights is not None and place is not None:
            panels = panels_of(contraction, blocking)
            self.packed_for.setdefault(panels, []).append(op.location)
            operands[number] = self.weights.packed(place, panels)
        start = self._start(op, contraction, blocking)
        name = self._kernel(op.location, [value.type for value in operands], contraction, blocking, start)
        with ir.InsertionPoint(op), op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), crossing.arguments(operands))
        self.context.remark(ContractionsToKernels.name, op.location, _describe(contraction, blocking, start))
        op.erase()
        drop_dead_views(raw)

    def _start(self, op: Any, contraction: Contraction, blocking: Blocking) -> Start:
        """ "zero" when C was filled with zeros just before, which is then left out."""
        if len(contraction.k) == 1 and blocking.depth < contraction.k[0].size:
            return "accumulate"
        fill = zero_fill_before(op, op.operands[2])
        if fill is None:
            return "accumulate"
        fill.erase()
        return "zero"

    def _kernel(
        self, location: Any, types: list[Any], contraction: Contraction, blocking: Blocking, start: Start
    ) -> str:
        key = (tuple(str(type_) for type_ in types), contraction, blocking, start)
        if key not in self.kernels:
            name = unique_symbol(self.root, _name(contraction, start))
            with ir.InsertionPoint(self.root.regions[0].blocks[0]), location:
                function = kernel_function(name, types, contraction, blocking, start)
            self.kernels[key] = (name, function, [])
        name, _, locations = self.kernels[key]
        locations.append(location)
        return name

    def finish(self) -> None:
        written = self.weights.finish() if self.weights is not None else {}
        for _, function, locations in self.kernels.values():
            self._locate(function, locations)
        for panels, functions in written.items():
            for function in functions:
                self._locate(function, self.packed_for[panels])

    def _locate(self, function: Any, locations: list[Any]) -> None:
        """A function shared by several ops comes from all of them."""
        union = self.context.locations.union(locations)
        for op in [function.operation, *collect(function.operation)]:
            op.location = union


def _name(contraction: Contraction, start: Start) -> str:
    verb = "matmul" if start == "zero" else "matmul_add"
    batch = "".join(f"{loop.size}x" for loop in contraction.outer)
    return f"{verb}_{batch}{contraction.m.size}x{contraction.depth}x{contraction.n.size}"


def _describe(contraction: Contraction, blocking: Blocking, start: Start) -> str:
    batch = "x".join(str(loop.size) for loop in contraction.outer)
    shape = f"{contraction.m.size}x{contraction.n.size}x{contraction.depth}" + (f" over {batch}" if batch else "")
    return f"{shape}: {blocking.describe()}" + ("" if start == "zero" else ", adds to C")
