"""A pass that gets a constant of a polynomial wrong in its third digit."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class WrongConstant(MlirPass):
    name: ClassVar[str] = "wrong-constant"
    summary: ClassVar[str] = "gets a constant wrong"

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, "arith.constant"):
            value = op.attributes["value"]
            if isinstance(value, ir.FloatAttr) and abs(float(value.value) - 0.5) < 1e-9:
                with ir.InsertionPoint(op), op.location:
                    made = arith.ConstantOp(value.type, ir.FloatAttr.get(value.type, 0.503))
                op.results[0].replace_all_uses_with(made.result)
