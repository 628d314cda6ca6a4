"""Chooses the kernel of a contraction and emits its function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.passes.kernels.crossing import argument_types, flat_operands
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultSpec
from buddy.compiler.passes.kernels.gemm.blocked import BlockedGemm
from buddy.compiler.passes.kernels.gemm.dot import DotProducts
from buddy.compiler.passes.kernels.gemm.stream import StreamedRows

KERNELS: dict[str, Any] = {"dot": DotProducts, "stream": StreamedRows}


def kernel_function(
    name: str, types: Sequence[Any], contraction: Contraction, blocking: GemmBlocking, spec: ResultSpec
) -> func.FuncOp:
    """Emits a private function (A, B, buffers of `spec`) at the insertion point; `crossing` passes memrefs of `types`.

    A and B are the op's first and second operand. The one that the register block reads in vectors has the shape
    `panels_of(contraction, blocking).shape` if `blocking.source` is "packed". Strides in `spec` are along
    `contraction.loops`.
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        first, second, *buffers = flat_operands(entry.arguments, types)
        a, b = (second, first) if contraction.swapped else (first, second)
        e = KernelEmitter(entry)
        results = KernelResults(e, spec, buffers, blocking.lanes, ir.Type.parse(contraction.element))
        KERNELS.get(blocking.source, BlockedGemm)(e, a, b, results, contraction, blocking).emit()
    return function
