"""Lowers a module of the torch dialect, checks the result, and inlines it at the insertion point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.torch_mlir.apart import lowered
from buddy.compiler.ops.utils import LoweringError

# The dialects that the pipelines accept. `tm_tensor` (scans, sorts, scatters) is a dialect of torch-mlir that only its
# own passes lower; `cf` has assertions, which abort the process.
_DIALECTS = frozenset({"arith", "func", "linalg", "math", "scf", "tensor"})


def to_linalg(module: Any) -> Any:
    """Lowers a module of the torch dialect to linalg on tensors.

    Raises `LoweringError` with the message of the pass that fails, or for ops that the later passes do not accept.
    """
    text = lowered(str(module))
    try:
        found = ir.Module.parse(text, ir.Context.current)
    except ir.MLIRError as error:
        raise LoweringError(f"its lowering produces invalid IR ({_first_line(error)})") from error
    _check(found)
    return found


def _first_line(error: Any) -> str:
    messages = [str(found.message) for found in error.error_diagnostics] or [str(error)]
    return messages[0].splitlines()[0]


def _check(module: Any) -> None:
    """Raises `LoweringError` if the module has an op that the later passes do not accept."""
    rejected: list[str] = []

    def visit(op: Any) -> Any:
        if op.name.partition(".")[0] not in _DIALECTS:
            rejected.append(f"{op.name}, which is not compiled here")
        elif any(isinstance(r.type, ir.ShapedType) and not r.type.has_static_shape for r in op.results):
            rejected.append(f"{op.name} of a dynamic size")
        return ir.WalkResult.INTERRUPT if rejected else ir.WalkResult.ADVANCE

    for function in module.body:
        function.operation.walk(visit)
    if rejected:
        raise LoweringError(f"its lowering contains {rejected[0]}")


def unused_arguments(module: Any) -> list[int]:
    """Returns the indices of the unused arguments of the only function in `module`."""
    (function,) = module.body
    arguments = function.regions[0].blocks[0].arguments
    return [number for number, argument in enumerate(arguments) if not any(True for _ in argument.uses)]


def inline_body(module: Any, operands: Sequence[Any]) -> list[Any]:
    """Inlines the only function in `module` at the insertion point, with `operands` for its arguments.

    Returns the values that the function returns.
    """
    (function,) = module.body
    here, block = ir.Location.current, function.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, final = list(block.operations)
    results = list(final.operands)
    final.operation.erase()
    for op in body:
        op.operation.detach_from_parent()
        ir.InsertionPoint.current.insert(op)
        op.operation.walk(lambda inner: _set_location(inner, here))
    return results


def _set_location(op: Any, location: Any) -> Any:
    op.location = location
    return ir.WalkResult.ADVANCE
