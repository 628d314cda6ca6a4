"""`contractions-to-blas`: replaces matrix products on memrefs by calls of a packaged OpenBLAS, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.mlir.walk import nested_ops, unique_symbol, zero_fill_before
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.blas_calls import blas_product, declare_gemm, emit_blas_wrapper
from buddy.compiler.passes.kernels.calls import call_arguments, set_location
from buddy.compiler.passes.kernels.contraction import Contraction, analyse_contraction, is_contraction
from buddy.compiler.support import blas


@register
@dataclass(frozen=True)
class ContractionsToBlas(MlirPass):
    """Replaces the matrix products that the library supports; others, or all if it is not installed, are unchanged.

    With `nodes`, a comma-separated list of node names, only the matrix products of these nodes are replaced.
    """

    name: ClassVar[str] = "contractions-to-blas"
    summary: ClassVar[str] = "replace matrix products by calls of OpenBLAS (scipy-openblas32, or the one inside NumPy)"

    nodes: str = ""

    def run(self, root: ir.Operation, context: PassContext) -> None:
        library = blas.find_blas()
        nodes = frozenset(name.strip() for name in self.nodes.split(",") if name.strip())
        rewriter = _Rewriter(root, context, library) if library is not None else None
        for op in [op for op in nested_ops(root) if op.name.startswith("linalg.") and not len(op.results)]:
            if not is_contraction(op) or not _is_selected(op, nodes, context):
                continue
            try:
                if rewriter is None:
                    raise UnsupportedError("no BLAS library is installed (pip install scipy-openblas32)")
                rewriter.rewrite(op)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} unchanged: {reason}")


def _is_selected(op: ir.Operation, nodes: frozenset[str], context: PassContext) -> bool:
    """True if `op` comes from one of `nodes`, or if `nodes` is empty."""
    names = context.locations.sets[context.locations.number_of(op.location)]
    return not nodes or not nodes.isdisjoint(names)


class _Rewriter:
    """Replaces contractions of one module by calls of a BLAS library; equal contractions share a function."""

    def __init__(self, root: ir.Operation, context: PassContext, library: blas.Blas) -> None:
        self.root, self.context, self.library = root, context, library
        self.functions: dict[object, tuple[str, Any, list[Any]]] = {}  # key -> name, function, locations of its calls

    def rewrite(self, op: ir.Operation) -> None:
        """Replaces `op`. Raises `UnsupportedError`, before anything is changed, if the library does not support it."""
        contraction = analyse_contraction(op)
        product = blas_product(contraction)
        fill = zero_fill_before(op, op.operands[2])
        name = self._function_for(op, contraction, fill is None)
        if fill is not None:
            fill.erase()
        with ir.InsertionPoint(op), op.location:
            func.CallOp([], ir.FlatSymbolRefAttr.get(name), call_arguments(list(op.operands)))
        text = f"{product.m}x{product.n}x{product.k}: {self.library.package}"
        self.context.remark(ContractionsToBlas.name, op.location, text)
        op.erase()

    def _function_for(self, op: ir.Operation, contraction: Contraction, accumulate: bool) -> str:
        """Returns the name of the function that calls the library for `op`; emits the function if it is new."""
        types = [value.type for value in op.operands]
        key = (tuple(map(str, types)), contraction, accumulate)
        if key not in self.functions:
            bits = self.library.index_bits
            with op.location:
                callee = declare_gemm(self.root, contraction.element, bits)
                name = unique_symbol(self.root, f"blas_{contraction.m.size}x{contraction.depth}x{contraction.n.size}")
                with ir.InsertionPoint(self.root.regions[0].blocks[0]):
                    function = emit_blas_wrapper(name, types, contraction, callee, bits, accumulate)
            self.functions[key] = (name, function, [])
        name, function, locations = self.functions[key]
        locations.append(op.location)
        set_location(function, self.context.locations.union(locations))
        return name
