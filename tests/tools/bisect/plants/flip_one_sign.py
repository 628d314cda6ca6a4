"""A pass that swaps the operands of the last subtraction it meets: one sign is flipped."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class FlipOneSign(MlirPass):
    name: ClassVar[str] = "flip-one-sign"
    summary: ClassVar[str] = "swaps the operands of a subtraction"

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, "arith.subf")[-1:]:
            left, right = op.operands
            op.operands[0], op.operands[1] = right, left
