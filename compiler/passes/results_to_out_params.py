"""`results-to-out-params`: converts memref results to out-parameters, so that the caller owns every buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.sizes import Dim, Size
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import RESULT, callee_of, symbol_of
from buddy.compiler.ops.sizes import SIZES, emit_size, read_sizes, result_attributes, symbols_of
from buddy.compiler.passes.base import MlirPass, PassContext, PassError, register

_RESHAPES = ("memref.expand_shape", "memref.collapse_shape")


@register
@dataclass(frozen=True)
class ResultsToOutParams(MlirPass):
    """After this pass no function returns a memref: results are trailing arguments, in order. Numbers are returned.

    A result that the function allocates is written in place, also through a reshape; any other is copied. Functions
    without a body (calls into eager) get the same signature.
    """

    name = "results-to-out-params"
    summary = "turn memref results into trailing out-parameters that the caller allocates"

    def run(self, root: Any, context: PassContext) -> None:
        functions = [op for op in root.regions[0].blocks[0] if op.operation.name == "func.func"]
        declared = {symbol_of(function.operation): function.operation for function in functions}
        for function in functions:
            for call in _calls(function.operation):
                _pass_buffers(call, declared[callee_of(call)])
        for function in functions:
            _move_results(function, self.name, context)


def _calls(root: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "func.call" and len(op.results):
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return found


def _pass_buffers(call: Any, callee: Any) -> None:
    """Allocates a call's results before it and passes them as operands."""
    with ir.InsertionPoint(call), call.location:
        sizes = list(map(read_sizes, result_attributes(callee)))
        symbols = symbols_of(callee, call.operands)
        given = list(call.results)
        buffers = {i: _allocate(r.type, sizes[i], symbols) for i, r in enumerate(given) if _is_buffer(r.type)}
        numbers = [result for result in given if not _is_buffer(result.type)]
        callee = ir.FlatSymbolRefAttr(call.attributes["callee"])
        made = func.CallOp([result.type for result in numbers], callee, [*call.operands, *buffers.values()])
    for place, buffer in buffers.items():
        given[place].replace_all_uses_with(buffer)
    for number, value in zip(numbers, made.results, strict=True):
        number.replace_all_uses_with(value)
    call.erase()


def _is_buffer(kind: Any) -> bool:
    return isinstance(kind, ir.MemRefType)


def _allocate(kind: Any, shape: Sequence[Dim], symbols: dict[str, Any]) -> Any:
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
    sizes = [emit_size(size, symbols) for size in shape if isinstance(size, Size)]
    return memref.AllocOp(kind, sizes, [], alignment=alignment).result


def _move_results(function: Any, name: str, context: PassContext) -> None:
    kind = ir.FunctionType(ir.TypeAttr(function.operation.attributes["function_type"]).value)
    if not kind.results:
        return
    for result in kind.results:
        if isinstance(result, ir.RankedTensorType | ir.UnrankedTensorType):
            symbol = ir.StringAttr(function.operation.attributes["sym_name"]).value
            raise PassError(f"@{symbol} returns a {result}, not a buffer: one-shot-bufferize has to run before")
    places = [place for place, result in enumerate(kind.results) if _is_buffer(result)]
    numbers = [result for result in kind.results if not _is_buffer(result)]
    _extend_argument_attributes(function.operation, len(kind.inputs), places)
    function.operation.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([*kind.inputs, *(kind.results[place] for place in places)], numbers)
    )
    if function.operation.regions[0].blocks:
        for location, text in _write_results(function.operation.regions[0], places):
            context.remark(name, location, text)


def _extend_argument_attributes(function: Any, inputs: int, places: Sequence[int]) -> None:
    empty = ir.DictAttr.get({})
    attributes = result_attributes(function)
    sizes = ({SIZES: attributes[place]} if len(attributes[place]) else {} for place in places)
    results = [ir.DictAttr.get({RESULT: ir.UnitAttr.get(), **shape}) for shape in sizes]
    old = (
        list(ir.ArrayAttr(function.attributes["arg_attrs"])) if "arg_attrs" in function.attributes else [empty] * inputs
    )
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*old, *results])
    if "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]


def _write_results(region: Any, places: Sequence[int]) -> list[tuple[Any, str]]:
    """Adds an argument to a function for each result in `places`, and writes the result to it.

    Returns the op of each result and the text of its remark. A function of several blocks may return from several of
    them.
    """
    remarks, block = [], region.blocks[0]
    ends = [end for found in region.blocks if (end := list(found.operations)[-1].operation).name == "func.return"]
    for index in places:
        target = block.add_argument(ends[0].operands[index].type, ends[0].location)
        for end in ends:
            remarks.append(_write_result(block, end, index, target, alone=len(region.blocks) == 1))
    for end in ends:
        with ir.InsertionPoint(end), end.location:
            func.ReturnOp([value for index, value in enumerate(end.operands) if index not in places])
        end.erase()
    return remarks


def _write_result(block: Any, end: Any, index: int, target: Any, alone: bool) -> tuple[Any, str]:
    value = end.operands[index]  # read again, since a buffer that is returned twice has been replaced
    place = end.location if isinstance(value.owner, ir.Block) else value.owner.location
    if alone and _replace_allocation(block, value, target):
        return place, f"result {index} is written where the caller wants it"
    with ir.InsertionPoint(end), end.location:
        memref.CopyOp(value, target)
    return place, f"result {index} is copied to the caller's buffer: it is not in a separate buffer"


def _replace_allocation(block: Any, value: Any, target: Any) -> bool:
    """Replaces the allocation of `value` by `target`, if there is one and no other result has replaced it."""
    chain = []
    while isinstance(value.owner, ir.Operation | ir.OpView) and value.owner.operation.name in _RESHAPES:
        chain.append(value.owner.operation)
        value = chain[-1].operands[0]
        if chain[-1].name == "memref.collapse_shape" and not ir.MemRefType(value.type).has_static_shape:
            return False  # the expanded sizes may be computed after the out-parameter
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "memref.alloc" or owner.operation.block != block:
        return False
    with ir.InsertionPoint.at_block_begin(block), owner.operation.location:
        for reshape in chain:
            target = _undo_reshape(reshape, target)
    if target.type != value.type:
        return False
    value.replace_all_uses_with(target)
    owner.operation.erase()
    return True


def _undo_reshape(reshape: Any, target: Any) -> Any:
    """Returns `target`, which has the shape of `reshape`'s result, in the shape of its operand."""
    kind = reshape.operands[0].type
    groups = reshape.attributes["reassociation"]
    if reshape.name == "memref.expand_shape":
        return memref.CollapseShapeOp(kind, target, groups).result
    sizes = list(ir.MemRefType(kind).shape)
    return memref.ExpandShapeOp(kind, target, groups, [], sizes).result
