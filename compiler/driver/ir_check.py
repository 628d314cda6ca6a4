"""Whether a text is a module that verifies, and where it is not. Run as a program, it answers one question."""

from __future__ import annotations

from dataclasses import dataclass

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.passes.replace_ir import parse_problem
from buddy.compiler.support.processes.one_shot import answer_apart


@dataclass(frozen=True)
class Problem:
    """Line and column are counted from 1; 0 where the parser names none. No `message` for a text that is right."""

    line: int = 0
    column: int = 0
    message: str = ""


def check(text: str) -> Problem:
    """The first thing wrong with `text` as a module."""
    try:
        ir.Module.parse(text, new_context()).operation.verify()
    except (ir.MLIRError, ValueError) as error:
        return Problem(*parse_problem(error))
    return Problem()


if __name__ == "__main__":
    answer_apart(str, check)
