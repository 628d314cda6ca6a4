"""A pass that takes its process along when it meets a square root."""

import os
import signal
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class CrashOnSqrt(MlirPass):
    name: ClassVar[str] = "crash-on-sqrt"
    summary: ClassVar[str] = "crashes"

    def run(self, root: Any, context: PassContext) -> None:
        if find_ops(root, "math.sqrt"):
            os.kill(os.getpid(), signal.SIGSEGV)
