"""A plug-in for `benchmarks/workbench.py`: passes that make a stage any length, change it, and shorten it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.base import MlirPass, PassContext, register

NAME = "grown"
EVERY = 100
TYPE = "vector<16xf32>"


@register
@dataclass(frozen=True)
class Grow(MlirPass):
    name = "grow"
    summary = "adds a function of so many ops"
    lines: int = 0

    def run(self, root: Any, context: PassContext) -> None:
        # The location of a node, as for all ops of a program: otherwise most of the time would go into deriving
        # locations.
        where = f"#where = {root.regions[0].blocks[0].operations[0].operation.location}"
        body = "\n".join(
            f"    %{k} = arith.addf {_value(k - 1)}, {_value(k // 2 - 1)} fastmath<contract> : {TYPE} loc(#where)"
            for k in range(self.lines)
        )
        head = f"func.func private @{NAME}(%a: {TYPE} loc(#where)) {{"
        text = f"{where}\n{head}\n{body}\n    return loc(#where)\n}} loc(#where)"
        parsed = ir.Module.parse(text, root.context)
        # A copy, because the parsed module owns its ops.
        root.regions[0].blocks[0].append(parsed.body.operations[0].operation.clone())


@register
@dataclass(frozen=True)
class Touch(MlirPass):
    name = "touch"
    summary = "changes one op in a hundred"

    def run(self, root: Any, context: PassContext) -> None:
        mark = ir.Attribute.parse("#arith.fastmath<reassoc>", root.context)
        for number, op in enumerate(_grown(root).regions[0].blocks[0]):
            if number % EVERY == EVERY // 2 and op.operation.name == "arith.addf":
                op.operation.attributes["fastmath"] = mark


@register
@dataclass(frozen=True)
class Shorten(MlirPass):
    name = "shorten"
    summary = "takes the function away"

    def run(self, root: Any, context: PassContext) -> None:
        _grown(root).erase()


def _value(number: int) -> str:
    return f"%{number}" if number >= 0 else "%a"


def _grown(root: Any) -> Any:
    functions = (op.operation for op in root.regions[0].blocks[0])
    return next(op for op in functions if op.attributes["sym_name"].value == NAME)
