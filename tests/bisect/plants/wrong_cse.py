"""A pass in the place of one that every line needs, `cse`, which also flips a sign."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import passmanager
from buddy.compiler.kernels.walk import named
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class WrongCse(MlirPass):
    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "takes out what is computed twice, and flips a sign"

    def run(self, root: Any, context: PassContext) -> None:
        passmanager.PassManager.parse("builtin.module(cse)", context=root.context).run(root)
        for op in named(root, "arith.subf")[-1:]:
            left, right = op.operands
            op.operands[0], op.operands[1] = right, left
