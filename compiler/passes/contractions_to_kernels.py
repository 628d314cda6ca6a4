"""`contractions-to-kernels`: contractions on memrefs become calls of register-blocked kernels, weights packed ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import func, ir
from buddy.compiler.kernels.access import UnsupportedError
from buddy.compiler.kernels.blocking import Blocking, choose, reads_in_place
from buddy.compiler.kernels.contraction import NAMED, Contraction, analyse, is_contraction
from buddy.compiler.kernels.crossing import arguments
from buddy.compiler.kernels.epilogue import ResultSpec
from buddy.compiler.kernels.gemm import kernel_function
from buddy.compiler.kernels.packing import Panels, panels_of
from buddy.compiler.kernels.stages import Neighbours, neighbours
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
        # All chosen before the first is rewritten: a kernel takes ops around it away.
        ops = [op for op in collect(root) if op.name.startswith("linalg.") and not len(op.results)]
        for op, known in [(op, is_contraction(op)) for op in ops if op.name in NAMED or is_contraction(op)]:
            try:
                if not known:
                    raise UnsupportedError("no kernel multiplies and adds these element types")
                rewriter.rewrite(op)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} left as it is: {reason}")
        rewriter.finish()


class _Rewriter:
    def __init__(self, root: Any, context: PassContext, weights: PackedWeights | None) -> None:
        self.root, self.context, self.weights = root, context, weights
        self.kernels: dict[object, tuple[str, Any, list[Any]]] = {}  # key -> name, function, locations of its calls
        self.packed_for: dict[Panels, list[Any]] = {}  # locations of the contractions that read them

    def rewrite(self, op: Any) -> None:
        found = neighbours(op, analyse(op))
        contraction, spec = found.contraction, found.spec
        first, second, result = op.operands
        factors = [first, second]
        number = 0 if contraction.swapped else 1
        raw = factors[number]
        place = self.weights.parameter(raw) if self.weights and not reads_in_place(contraction) else None
        blocking = choose(contraction, self.context.target, None if place is None else "packed")
        if self.weights is not None and place is not None:
            panels = panels_of(contraction, blocking)
            self.packed_for.setdefault(panels, []).append(op.location)
            factors[number] = self.weights.packed(place, panels)
        operands = [*factors, *spec.buffers(result)]
        location = self.context.locations.union([op.location, *found.locations])
        name = self._kernel(location, [value.type for value in operands], contraction, blocking, spec)
        with ir.InsertionPoint(op), location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), arguments(operands))
        self.context.remark(ContractionsToKernels.name, location, _describe(contraction, blocking, found))
        op.erase()
        found.erase()
        drop_dead_views(raw)

    def _kernel(
        self, location: Any, types: Sequence[Any], contraction: Contraction, blocking: Blocking, spec: ResultSpec
    ) -> str:
        key = (tuple(str(type_) for type_ in types), contraction, blocking, spec.key)
        if key not in self.kernels:
            name = unique_symbol(self.root, _name(contraction, spec))
            with ir.InsertionPoint(self.root.regions[0].blocks[0]), location:
                function = kernel_function(name, types, contraction, blocking, spec)
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


def _name(contraction: Contraction, spec: ResultSpec) -> str:
    verb = "matmul_add" if spec.accumulate or spec.prologue else "matmul"
    batch = "".join(f"{loop.size}x" for loop in contraction.outer)
    tail = "_epilogue" if spec.epilogue else ""
    return f"{verb}_{batch}{contraction.m.size}x{contraction.depth}x{contraction.n.size}{tail}"


def _describe(contraction: Contraction, blocking: Blocking, found: Neighbours) -> str:
    batch = "x".join(str(loop.size) for loop in contraction.outer)
    shape = f"{contraction.m.size}x{contraction.n.size}x{contraction.depth}" + (f" over {batch}" if batch else "")
    types = "" if contraction.factor_element in ("f32", "f64") else f" {contraction.factor_element}"
    return ", ".join([f"{shape}{types}: {blocking.describe()}", *found.notes])
