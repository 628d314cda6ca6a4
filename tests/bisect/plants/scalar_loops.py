"""A pass that makes scalar loops of what would have been vectorised."""

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import passmanager
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class ScalarLoops(MlirPass):
    name: ClassVar[str] = "scalar-loops"
    summary: ClassVar[str] = "makes scalar loops of linalg ops"

    def run(self, root: Any, context: PassContext) -> None:
        line = "builtin.module(func.func(convert-linalg-to-loops))"
        passmanager.PassManager.parse(line, context=root.context).run(root)
