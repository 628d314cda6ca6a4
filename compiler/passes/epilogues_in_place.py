"""`epilogues-in-place`: makes a kernel's epilogue overwrite a tensor that it reads, such as a residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import accesses, collect, root_of
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.epilogue import EPILOGUE
from buddy.compiler.passes.write_in_place import pairs, write_over


@register
@dataclass(frozen=True)
class EpiloguesInPlace(MlirPass):
    """An epilogue may overwrite a residual or a gate, because a kernel reads them right before it stores a vector.

    The factors of the contraction are not overwritten, since the kernel reads them until its end.
    """

    name: ClassVar[str] = "epilogues-in-place"
    summary: ClassVar[str] = "epilogues overwrite a residual or gate that is not read again"

    def run(self, root: Any, context: PassContext) -> None:
        for op in [op for op in collect(root) if EPILOGUE in op.attributes and op.name == "linalg.generic"]:
            needed = _buffers_of_sums(op)
            if write_over(op, (pair for pair in pairs(op) if root_of(pair[0]) not in needed)):
                context.remark(self.name, op.location, "the result overwrites an operand")
            else:
                context.remark(self.name, op.location, "written to a separate buffer: no operand may be overwritten")


def _buffers_of_sums(op: Any) -> set[Any]:
    """Returns the sums that the epilogue `op` reads, and all buffers that they are computed from."""
    sums = root_of(op.operands[ir.IntegerAttr(op.attributes[EPILOGUE]).value])
    makers = [user for user in accesses(sums) if user != op]
    return {root_of(value) for maker in makers for value in maker.operands if isinstance(value.type, ir.MemRefType)}
