"""`pass-sizes`: passes buffers of dynamic size to calls as bare pointers, with the symbols of their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.sizes import Dim, Size, product
from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.mlir.walk import attributes_of, find_ops
from buddy.compiler.ops.sizes import SIZES, emit_size, read_sizes, symbols_of
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class PassSizes(MlirPass):
    """Every argument with `?` dims becomes a memref without dims: its base.

    Functions rebuild the buffer with the sizes in the argument's attribute, which are expressions of the function's
    symbols. Layouts are the identity.
    """

    name = "pass-sizes"
    summary = "pass buffers with ? dims to calls as base pointers; functions rebuild them from the sizes passed"

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, "func.call", "func.func"):
            if op.name == "func.func":
                count = _take_bases(op)
                text = f"buffers of dynamic size rebuilt from their bases: {count}"
            else:
                count = sum(_has_sizes(value.type) for value in op.operands)
                text = f"buffers of dynamic size passed by their bases: {count}"
            if count:
                context.remark(self.name, op.location, text)
            if count and op.name == "func.call":
                _pass_bases(op)


def _has_sizes(type_: Any) -> bool:
    return isinstance(type_, ir.MemRefType) and not type_.has_static_shape


def _base(type_: Any) -> Any:
    return ir.MemRefType.get([], type_.element_type, memory_space=type_.memory_space)


def _pass_bases(call: Any) -> None:
    with ir.InsertionPoint(call), call.location:
        operands = [
            memref.ExtractStridedMetadataOp(value).results[0] if _has_sizes(value.type) else value
            for value in call.operands
        ]
        new = func.CallOp([], ir.FlatSymbolRefAttr(call.attributes["callee"]), operands)
    for key, attribute in attributes_of(call).items():
        new.operation.attributes[key] = attribute
    call.erase()


def _take_bases(function: Any) -> int:
    """Rewrites the arguments of `function` that have `?` dims; returns their number."""
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    count = sum(map(_has_sizes, kind.inputs))
    if not count:
        return 0
    inputs = [_base(type_) if _has_sizes(type_) else type_ for type_ in kind.inputs]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kind.results))
    if not function.regions[0].blocks:
        return count
    block = function.regions[0].blocks[0]
    flags = list(map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"])))
    symbols = symbols_of(function, block.arguments)
    with ir.InsertionPoint.at_block_begin(block), function.location:
        for argument, type_, flag in zip(block.arguments, kind.inputs, flags, strict=True):
            if _has_sizes(type_):
                argument.set_type(_base(type_))
                made = _rebuilt(argument, type_, read_sizes(flag[SIZES]), symbols)
                argument.replace_all_uses_except(made, made.owner.operation)
    return count


def _rebuilt(base: Any, type_: Any, shape: Sequence[Dim], symbols: dict[str, Any]) -> Any:
    """Returns the buffer of `type_` at `base`, row-major; emitted at the insertion point."""
    strides = [product(shape[dim + 1 :]) for dim in range(len(shape))]
    sizes, steps = ([emit_size(n, symbols) for n in ns if isinstance(n, Size)] for ns in (shape, strides))
    known, even = (
        [ir.ShapedType.get_dynamic_size() if isinstance(n, Size) else n for n in ns] for ns in (shape, strides)
    )
    return memref.reinterpret_cast(type_, base, [], sizes, steps, [0], known, even)
