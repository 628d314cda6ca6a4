"""A pass that never ends once it meets a square root."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class NeverEnd(MlirPass):
    name: ClassVar[str] = "never-end"
    summary: ClassVar[str] = "never ends"

    def run(self, root: Any, context: PassContext) -> None:
        while find_ops(root, "math.sqrt"):
            time.sleep(1)
