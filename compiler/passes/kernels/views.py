"""Views of bytes as buffers: a byte shift moves the base pointer, so that the type has no offset."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, memref
from buddy.compiler.mlir.memory import bytes_of


def byte_type(size: int) -> Any:
    return ir.MemRefType.get([size], ir.IntegerType.get_signless(8))


def part(memory: Any, offset: int, type_: Any) -> Any:
    """Returns the memref of `type_` at a byte offset of the bytes `memory`; emitted at the insertion point."""
    return memref.ViewOp(type_, memory, arith.constant(ir.IndexType.get(), offset), []).result


def as_bytes(function: Any, argument: Any) -> Any:
    """Makes `argument` a memref of bytes, and replaces its uses by a view; the caller's pointer is unchanged."""
    kind, signature = argument.type, ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    inputs = list(signature.inputs)
    inputs[argument.arg_number] = byte_type(bytes_of(kind))
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, signature.results))
    argument.set_type(inputs[argument.arg_number])
    with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), function.location:
        view = part(argument, 0, kind)
    argument.replace_all_uses_except(view, view.owner.operation)
    return argument
