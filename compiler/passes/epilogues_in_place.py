"""`epilogues-in-place`: makes a kernel's epilogue overwrite a tensor that it reads, such as a residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import accessing_ops, nested_ops, root_of
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.epilogue import EPILOGUE
from buddy.compiler.passes.write_in_place import elementwise_pairs, share_buffer


@register
@dataclass(frozen=True)
class EpiloguesInPlace(MlirPass):
    """Makes an epilogue write its result to the buffer of an operand, such as a residual, that is not read again.

    The kernel reads each vector of that operand right before it stores the result. The inputs of the contraction are
    not overwritten, since the kernel reads them until it ends.
    """

    name: ClassVar[str] = "epilogues-in-place"
    summary: ClassVar[str] = "make epilogues overwrite a residual or gate that is not read again"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in [op for op in nested_ops(root) if EPILOGUE in op.attributes and op.name == "linalg.generic"]:
            in_use = _contraction_buffers(op)
            pairs = elementwise_pairs(op)
            if share_buffer(op, ((operand, result) for operand, result in pairs if root_of(operand) not in in_use)):
                context.remark(self.name, op.location, "the result overwrites an operand")
            else:
                context.remark(self.name, op.location, "written to a separate buffer: no operand may be overwritten")


def _contraction_buffers(op: ir.Operation) -> set[ir.Value]:
    """Returns the buffers that the contraction before the epilogue `op` accesses: its inputs, and its sums."""
    # The attribute is the number of the epilogue's operand that has the sums.
    sums = root_of(op.operands[ir.IntegerAttr(op.attributes[EPILOGUE]).value])
    producers = [user for user in accessing_ops(sums) if user != op]
    operands = [value for producer in producers for value in producer.operands]
    return {root_of(value) for value in operands if isinstance(value.type, ir.MemRefType)}
