"""Checks whether a text is a valid module, and where the first error is."""

from __future__ import annotations

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.passes.replace_ir import parse_problem
from buddy.compiler.protocol.one_shot_messages import IrProblem


def check_ir(text: str) -> IrProblem:
    """Parses and verifies `text`; returns the first error."""
    try:
        ir.Module.parse(text, new_context()).operation.verify()
    except (ir.MLIRError, ValueError) as error:
        return IrProblem(*parse_problem(error))
    return IrProblem()
