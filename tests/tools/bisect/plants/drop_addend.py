"""A pass that loses an addend of the last element-wise sum."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class DropAddend(MlirPass):
    name: ClassVar[str] = "drop-addend"
    summary: ClassVar[str] = "loses an addend"

    def run(self, root: Any, context: PassContext) -> None:
        for generic in reversed(list(find_ops(root, "linalg.generic"))):
            if "reduction" in str(generic.attributes["iterator_types"]):
                continue
            for op in [op.operation for op in generic.regions[0].blocks[0] if op.operation.name == "arith.addf"][:1]:
                op.results[0].replace_all_uses_with(op.operands[1])
                return
