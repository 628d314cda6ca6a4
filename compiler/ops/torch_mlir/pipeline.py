"""Lowers a module of the torch dialect, checks the result, and inlines it at the insertion point."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.torch_mlir.separate_process import lower_text
from buddy.compiler.ops.utils import LoweringError

# The dialects that the later passes accept. Not among them: `tm_tensor` (scans, sorts, scatters), a dialect that only
# torch-mlir's passes lower, and `cf`, whose assertions abort the process.
_ACCEPTED_DIALECTS = frozenset({"arith", "func", "linalg", "math", "scf", "tensor"})


def to_linalg(module: ir.Module) -> ir.Module:
    """Lowers a module of the torch dialect to linalg on tensors.

    Raises `LoweringError` with the message of the pass that fails, or for ops that the later passes do not accept.
    """
    text = lower_text(str(module))
    try:
        result = ir.Module.parse(text, ir.Context.current)
    except ir.MLIRError as error:
        raise LoweringError(f"the lowering produces invalid IR ({_first_line(error)})") from error
    _check_ops(result)
    return result


def _first_line(error: ir.MLIRError) -> str:
    """Returns the first line of the first diagnostic."""
    messages = [str(diagnostic.message) for diagnostic in error.error_diagnostics] or [str(error)]
    return messages[0].splitlines()[0]


def _check_ops(module: ir.Module) -> None:
    """Raises `LoweringError` if the module has an op that the later passes do not accept."""
    rejected: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.partition(".")[0] not in _ACCEPTED_DIALECTS:
            rejected.append(f"{op.name}, which later passes do not accept")
        elif any(isinstance(r.type, ir.ShapedType) and not r.type.has_static_shape for r in op.results):
            rejected.append(f"{op.name} with a dynamic shape")
        return ir.WalkResult.INTERRUPT if rejected else ir.WalkResult.ADVANCE

    for function in module.body:
        function.operation.walk(visit)
    if rejected:
        raise LoweringError(f"the lowering contains {rejected[0]}")


def unused_arguments(module: ir.Module) -> list[int]:
    """Returns the indices of the unused arguments of the only function in `module`."""
    (function,) = module.body
    arguments = function.regions[0].blocks[0].arguments
    return [index for index, argument in enumerate(arguments) if not any(True for _ in argument.uses)]


def inline_body(module: ir.Module, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Inlines the only function in `module` at the insertion point, with `operands` for its arguments.

    Returns the values that the function returns.
    """
    (function,) = module.body
    location, block = ir.Location.current, function.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, return_op = list(block.operations)
    results = list(return_op.operands)
    return_op.operation.erase()
    for op in body:
        op.operation.detach_from_parent()
        ir.InsertionPoint.current.insert(op)
        op.operation.walk(lambda inner: _set_location(inner, location))
    return results


def _set_location(op: ir.Operation, location: ir.Location) -> ir.WalkResult:
    op.location = location
    return ir.WalkResult.ADVANCE
