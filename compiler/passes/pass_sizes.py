"""`pass-sizes`: passes buffers of dynamic size to functions as base pointers; functions compute the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.graph.sizes import Dim, Size, product
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import attributes_of, find_ops
from buddy.compiler.ops.sizes import SIZES, emit_size, read_sizes, symbols_of
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class PassSizes(MlirPass):
    """Replaces each argument whose type has `?` dims by a memref of rank 0, the base pointer of the buffer.

    The function rebuilds the buffer from the pointer, in row-major layout. An attribute of the argument has the sizes,
    as expressions of the function's symbols; the values of the symbols are arguments too.
    """

    name: ClassVar[str] = "pass-sizes"
    summary: ClassVar[str] = (
        "pass buffers with ? dims to functions as base pointers; functions rebuild them from their symbols"
    )

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in find_ops(root, "func.call", "func.func"):
            if op.name == "func.func":
                count = _rebuild_arguments(op)
                text = f"{count} buffer{'s' if count > 1 else ''} of dynamic size rebuilt from base pointers"
            else:
                count = sum(_is_dynamic(value.type) for value in op.operands)
                text = f"{count} buffer{'s' if count > 1 else ''} of dynamic size passed as base pointers"
            if count:
                context.remark(self.name, op.location, text)
            if count and op.name == "func.call":
                _pass_bases(op)


def _is_dynamic(type_: ir.Type) -> bool:
    return isinstance(type_, ir.MemRefType) and not type_.has_static_shape


def _base_type(type_: ir.Type) -> ir.Type:
    """Returns the type of the base pointer of a buffer of `type_`: a memref of rank 0."""
    return ir.MemRefType.get([], type_.element_type, memory_space=type_.memory_space)


def _pass_bases(call: ir.Operation) -> None:
    """Replaces `call` by a call that passes the base pointer of each operand of dynamic size."""
    with ir.InsertionPoint(call), call.location:
        operands = [
            memref.ExtractStridedMetadataOp(value).results[0] if _is_dynamic(value.type) else value
            for value in call.operands
        ]
        new = func.CallOp([], ir.FlatSymbolRefAttr(call.attributes["callee"]), operands)
    for key, attribute in attributes_of(call).items():
        new.operation.attributes[key] = attribute
    call.erase()


def _rebuild_arguments(function: ir.Operation) -> int:
    """Rewrites the arguments of `function` that have `?` dims; returns their number."""
    function_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    count = sum(map(_is_dynamic, function_type.inputs))
    if not count:
        return 0
    inputs = [_base_type(type_) if _is_dynamic(type_) else type_ for type_ in function_type.inputs]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, function_type.results))
    if not function.regions[0].blocks:
        return count
    block = function.regions[0].blocks[0]
    attributes = list(map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"])))
    symbols = symbols_of(function, list[ir.Value](block.arguments))
    with ir.InsertionPoint.at_block_begin(block), function.location:
        for argument, type_, attribute in zip(block.arguments, function_type.inputs, attributes, strict=True):
            if _is_dynamic(type_):
                argument.set_type(_base_type(type_))
                buffer = _rebuild(argument, type_, read_sizes(attribute[SIZES]), symbols)
                argument.replace_all_uses_except(buffer, buffer.owner.operation)
    return count


def _rebuild(base: ir.Value, type_: ir.Type, shape: Sequence[Dim], symbols: dict[str, ir.Value]) -> ir.Value:
    """Emits the row-major buffer of `type_` and `shape` at `base`. `symbols` has the value of each symbol."""
    strides = [product(shape[dim + 1 :]) for dim in range(len(shape))]

    def emit_dynamic(dims: Sequence[Dim]) -> list[ir.Value]:
        return [emit_size(dim, symbols) for dim in dims if isinstance(dim, Size)]

    def static_or_marker(dims: Sequence[Dim]) -> list[int]:
        return [ir.ShapedType.get_dynamic_size() if isinstance(dim, Size) else dim for dim in dims]

    return memref.reinterpret_cast(
        type_, base, [], emit_dynamic(shape), emit_dynamic(strides), [0], static_or_marker(shape),
        static_or_marker(strides),
    )  # fmt: skip
