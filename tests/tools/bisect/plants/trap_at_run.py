"""A pass that puts a trap into the machine code of functions with a square root."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class TrapAtRun(MlirPass):
    name: ClassVar[str] = "trap-at-run"
    summary: ClassVar[str] = "makes code that traps"

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, "llvm.intr.sqrt"):
            with ir.InsertionPoint(op), op.location:
                ir.Operation.create("llvm.intr.trap")
