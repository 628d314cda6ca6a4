"""Checks the output of torch-mlir's passes for one function, and moves it to the insertion point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.torch_mlir.apart import lowered
from buddy.compiler.ops.utils import LoweringError

# The dialects that this compiler's pipelines accept. `tm_tensor` (scans, sorts, scatters) is torch-mlir's own and is
# lowered by passes on buffers; `cf` contains its assertions, which abort the process.
_DIALECTS = frozenset({"arith", "func", "linalg", "math", "scf", "tensor"})


def to_linalg(module: Any) -> Any:
    """Lowers a module of the torch dialect to linalg on tensors.

    Raises `LoweringError` with the message of the first pass that fails, or for remaining ops that are not compiled
    here.
    """
    text = lowered(str(module))
    try:
        found = ir.Module.parse(text, ir.Context.current)
    except ir.MLIRError as error:
        raise LoweringError(f"its lowering produces invalid IR ({_first_line(error)})") from error
    _check(found)
    return found


def _first_line(error: Any) -> str:
    said = [str(found.message) for found in error.error_diagnostics] or [str(error)]
    return said[0].splitlines()[0]


def _check(module: Any) -> None:
    """Raises `LoweringError` if an op is left that the later passes do not accept."""
    left: list[str] = []

    def visit(op: Any) -> Any:
        if op.name.partition(".")[0] not in _DIALECTS:
            left.append(f"{op.name}, which is not compiled here")
        elif any(isinstance(r.type, ir.ShapedType) and not r.type.has_static_shape for r in op.results):
            left.append(f"{op.name} of a dynamic size")
        return ir.WalkResult.INTERRUPT if left else ir.WalkResult.ADVANCE

    for function in module.body:
        function.operation.walk(visit)
    if left:
        raise LoweringError(f"its lowering contains {left[0]}")


def unread(module: Any) -> list[int]:
    """Returns the numbers of unused arguments of the only function in `module`."""
    (function,) = module.body
    arguments = function.regions[0].blocks[0].arguments
    return [number for number, argument in enumerate(arguments) if not any(True for _ in argument.uses)]


def moved_here(module: Any, operands: Sequence[Any]) -> list[Any]:
    """Moves the body of the only function in `module` to the insertion point, with `operands` for its arguments.

    Returns the values that it returns.
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
        op.operation.walk(lambda inner: _place(inner, here))
    return results


def _place(op: Any, location: Any) -> Any:
    op.location = location
    return ir.WalkResult.ADVANCE
