"""Determines a module's phase in the pipeline from its dialects and types."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import ir

# The dialects of a module that can be translated to LLVM IR.
_AT_THE_END = frozenset({"builtin", "llvm"})
_STRUCTURED = frozenset({"linalg"})


def dialects_of(module: Any) -> tuple[str, ...]:
    """The dialects of a module's ops, sorted by name."""
    found: set[str] = set()

    def visit(op: Any) -> Any:
        found.add(op.name.partition(".")[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return tuple(sorted(found))


def phase_of(module: Any) -> str:
    """`toplevel` with tensors, `buffers` with structured ops on buffers, `loops` below that, `llvm` at the end."""
    dialects = set(dialects_of(module))
    if dialects <= _AT_THE_END:
        return "llvm"
    if _has_tensors(module):
        return "toplevel"
    return "buffers" if dialects & _STRUCTURED else "loops"


def _has_tensors(module: Any) -> bool:
    """Whether a value, or an argument of a function, is a tensor."""
    found = False

    def visit(op: Any) -> Any:
        nonlocal found
        arguments = (value for region in op.regions for block in region.blocks for value in block.arguments)
        found = any(is_tensor(value.type) for value in (*op.results, *op.operands, *arguments))
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def is_tensor(kind: Any) -> bool:
    """Whether a type is a tensor's: MLIR's own, or torch's."""
    if isinstance(kind, ir.RankedTensorType | ir.UnrankedTensorType):
        return True
    return str(kind).startswith(("!torch.vtensor", "!torch.tensor"))
