"""A pass in the place of one that every line needs, `cse`, which also flips signs."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, passmanager
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class WrongCse(MlirPass):
    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "takes out what is computed twice, and flips signs"

    def run(self, root: Any, context: PassContext) -> None:
        passmanager.PassManager.parse("builtin.module(cse)", context=root.context).run(root)
        for op in find_ops(root, "arith.subf"):
            # The pass is in a line several times: flipped twice, a sign would be right again.
            if "flipped" not in op.attributes:
                left, right = op.operands
                op.operands[0], op.operands[1] = right, left
                op.attributes["flipped"] = ir.UnitAttr.get(op.context)
