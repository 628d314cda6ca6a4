"""Matrix-multiply kernels: one MLIR function for each combination of contraction, blocking, prologue and epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.mlir.bindings import func, ir
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.calls import kernel_body
from buddy.compiler.passes.kernels.contraction import Contraction
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultSpec, rounds_pairs
from buddy.compiler.passes.kernels.gemm.dot import DotGemm, TileGemm
from buddy.compiler.passes.kernels.gemm.few_rows import DotProducts, GemmKernel, StreamedRows
from buddy.compiler.passes.kernels.gemm.fixed_point import FixedPointRows
from buddy.compiler.passes.kernels.gemm.kernel import BlockedGemm
from buddy.compiler.passes.kernels.gemm.packed_rows import PackedGemm

__all__ = ["kernel_class", "kernel_function"]


def kernel_class(blocking: GemmBlocking) -> type[GemmKernel]:
    """Returns the class of the kernel with `blocking`."""
    if blocking.fixed_point:
        return FixedPointRows
    if blocking.instruction:
        return TileGemm if blocking.instruction.on_tiles else DotGemm
    if blocking.packs_a:
        return PackedGemm
    return {"dot": DotProducts, "stream": StreamedRows}.get(blocking.b_source, BlockedGemm)


def kernel_function(
    name: str, types: Sequence[ir.Type], contraction: Contraction, blocking: GemmBlocking, spec: ResultSpec
) -> func.FuncOp:
    """Emits a private function (first operand, second operand, buffers of `spec`); callers pass memrefs of `types`.

    If `blocking.b_source` is "packed", the operand that is B has the shape `panels_of(contraction, blocking).shape`.
    The strides in `spec` are those along `contraction.loops`.
    """
    with kernel_body(name, types) as (function, e, operands):
        first, second, *buffers = operands
        a, b = (second, first) if contraction.swapped else (first, second)
        in_pairs = rounds_pairs(blocking.dot, blocking.lanes)
        results = KernelResults(e, spec, buffers, blocking.lanes, ir.Type.parse(contraction.element), in_pairs)
        kernel_class(blocking)(e, a, b, results, contraction, blocking).emit()
    return function
