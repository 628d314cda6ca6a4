"""`results-to-out-params`: converts memref results to out-parameters, so that the caller owns every buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.graph.sizes import Dim, Size
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import OUT_PARAMETER, callee_of, calls_in, symbol_of
from buddy.compiler.ops.sizes import SIZES, emit_size, read_sizes, result_attributes, symbols_of
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register

_RESHAPES = ("memref.expand_shape", "memref.collapse_shape")


@register
@dataclass(frozen=True)
class ResultsToOutParams(MlirPass):
    """Turns memref results into trailing arguments, in the order of the results. Scalars are still returned.

    If a function allocates a result, or a reshape of it, the argument replaces the allocation; otherwise the result is
    copied to the argument. Functions without a body (calls into eager PyTorch) get the same signature.
    """

    name: ClassVar[str] = "results-to-out-params"
    summary: ClassVar[str] = "turn memref results into trailing out-parameters that the caller allocates"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        functions = [op for op in root.regions[0].blocks[0] if op.operation.name == "func.func"]
        functions_by_name = {symbol_of(function.operation): function.operation for function in functions}
        for function in functions:
            for call in [call for call in calls_in(function) if len(call.results)]:
                _pass_buffers(call, functions_by_name[callee_of(call)])
        for function in functions:
            _move_results(function, self.name, context)


def _pass_buffers(call: ir.Operation, callee: ir.Operation) -> None:
    """Allocates the memref results of a call before it, and passes them as operands."""
    with ir.InsertionPoint(call), call.location:
        sizes = list(map(read_sizes, result_attributes(callee)))
        symbols = symbols_of(callee, call.operands)
        results = list(call.results)
        buffers = {i: _allocate(r.type, sizes[i], symbols) for i, r in enumerate(results) if _is_buffer(r.type)}
        scalars = [result for result in results if not _is_buffer(result.type)]
        symbol = ir.FlatSymbolRefAttr(call.attributes["callee"])
        new = func.CallOp([result.type for result in scalars], symbol, [*call.operands, *buffers.values()])
    for number, buffer in buffers.items():
        results[number].replace_all_uses_with(buffer)
    for scalar, value in zip(scalars, new.results, strict=True):
        scalar.replace_all_uses_with(value)
    call.erase()


def _is_buffer(type_: ir.Type) -> bool:
    return isinstance(type_, ir.MemRefType)


def _allocate(type_: ir.Type, shape: Sequence[Dim], symbols: dict[str, ir.Value]) -> ir.Value:
    """Emits the allocation of a buffer of `type_`, whose dynamic sizes are computed from `symbols`."""
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
    sizes = [emit_size(size, symbols) for size in shape if isinstance(size, Size)]
    return memref.AllocOp(type_, sizes, [], alignment=alignment).result


def _move_results(function: ir.Operation, name: str, context: PassContext) -> None:
    """Turns the memref results of `function` into arguments. Raises `PassError` if it returns a tensor."""
    type_ = ir.FunctionType(ir.TypeAttr(function.operation.attributes["function_type"]).value)
    if not type_.results:
        return
    for result in type_.results:
        if isinstance(result, ir.RankedTensorType | ir.UnrankedTensorType):
            symbol = symbol_of(function.operation)
            raise PassError(f"@{symbol} returns a {result}, not a buffer: one-shot-bufferize must run before")
    numbers = [number for number, result in enumerate(type_.results) if _is_buffer(result)]
    scalars = [result for result in type_.results if not _is_buffer(result)]
    _extend_argument_attributes(function.operation, len(type_.inputs), numbers)
    function.operation.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([*type_.inputs, *(type_.results[number] for number in numbers)], scalars)
    )
    if function.operation.regions[0].blocks:
        for location, text in _write_results(function.operation.regions[0], numbers):
            context.remark(name, location, text)


def _extend_argument_attributes(function: ir.Operation, inputs: int, numbers: Sequence[int]) -> None:
    """Adds the attributes of the arguments for the results in `numbers`; the function has `inputs` arguments so far."""
    empty = ir.DictAttr.get({})
    attributes = result_attributes(function)
    sizes = ({SIZES: attributes[number]} if len(attributes[number]) else {} for number in numbers)
    new = [ir.DictAttr.get({OUT_PARAMETER: ir.UnitAttr.get(), **size}) for size in sizes]
    old = [empty] * inputs
    if "arg_attrs" in function.attributes:
        old = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*old, *new])
    if "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]


def _write_results(region: ir.Region, numbers: Sequence[int]) -> list[tuple[ir.Location, str]]:
    """Adds an argument for each result in `numbers` to the function with the body `region`; writes the result to it.

    Returns (location, text) of a remark for each result and each return op: a function of several blocks may have
    several return ops.
    """
    remarks, entry_block = [], region.blocks[0]
    terminators = [list(block.operations)[-1].operation for block in region.blocks]
    returns = [op for op in terminators if op.name == "func.return"]
    for number in numbers:
        target = entry_block.add_argument(returns[0].operands[number].type, returns[0].location)
        for return_op in returns:
            has_one_block = len(region.blocks) == 1
            remarks.append(_write_result(entry_block, return_op, number, target, has_one_block))
    for return_op in returns:
        with ir.InsertionPoint(return_op), return_op.location:
            func.ReturnOp([value for number, value in enumerate(return_op.operands) if number not in numbers])
        return_op.erase()
    return remarks


def _write_result(
    block: ir.Block, return_op: ir.Operation, number: int, target: ir.Value, has_one_block: bool
) -> tuple[ir.Location, str]:
    """Writes result `number` to the argument `target`; returns (location, text) of the remark."""
    value = return_op.operands[number]  # read again, since a buffer that is returned twice has been replaced
    location = return_op.location if isinstance(value.owner, ir.Block) else value.owner.location
    if has_one_block and _replace_allocation(block, value, target):
        return location, f"result {number} is written to the caller's buffer"
    with ir.InsertionPoint(return_op), return_op.location:
        memref.CopyOp(value, target)
    return location, f"result {number} is copied to the caller's buffer, which cannot replace the function's buffer"


def _replace_allocation(block: ir.Block, value: ir.Value, target: ir.Value) -> bool:
    """Replaces the buffer of `value` by `target`, if `block` allocates the buffer. Returns whether it was replaced."""
    reshapes = []
    while isinstance(value.owner, ir.Operation | ir.OpView) and value.owner.operation.name in _RESHAPES:
        reshapes.append(value.owner.operation)
        value = reshapes[-1].operands[0]
        if reshapes[-1].name == "memref.collapse_shape" and not ir.MemRefType(value.type).has_static_shape:
            return False  # the sizes before the collapse may be computed after the start of the function
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "memref.alloc" or owner.operation.block != block:
        return False
    with ir.InsertionPoint.at_block_begin(block), owner.operation.location:
        for reshape in reshapes:
            target = _undo_reshape(reshape, target)
    if target.type != value.type:
        return False
    value.replace_all_uses_with(target)
    owner.operation.erase()
    return True


def _undo_reshape(reshape: ir.Operation, target: ir.Value) -> ir.Value:
    """Returns `target`, which has the shape of `reshape`'s result, in the shape of its operand."""
    type_ = reshape.operands[0].type
    groups = reshape.attributes["reassociation"]
    if reshape.name == "memref.expand_shape":
        return memref.CollapseShapeOp(type_, target, groups).result
    sizes = list(ir.MemRefType(type_).shape)
    return memref.ExpandShapeOp(type_, target, groups, [], sizes).result
