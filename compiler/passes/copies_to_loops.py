"""`copies-to-loops`: replaces `memref.copy` by `linalg.copy`, which does not need the runtime's `memrefCopy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir, linalg
from buddy.compiler.mlir.walk import find_ops, has_identity_layout
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class CopiesToLoops(MlirPass):
    """Replaces copies by linalg ops, which later passes lower to loops, and erases copies of a buffer to itself.

    With `strided_only`, a copy between contiguous buffers is unchanged: a GPU's host code copies their bytes.
    """

    name: ClassVar[str] = "copies-to-loops"
    summary: ClassVar[str] = "replace memref.copy by linalg.copy, which needs no runtime library"
    strided_only: bool = False

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in find_ops(root, "memref.copy"):
            if self.strided_only and all(has_identity_layout(operand.type) for operand in op.operands):
                continue
            if op.operands[0] != op.operands[1]:
                with ir.InsertionPoint(op), op.location:
                    linalg.copy(op.operands[0], outs=[op.operands[1]])
                context.remark(self.name, op.location, f"copy of {op.operands[0].type} became linalg.copy")
            op.erase()
