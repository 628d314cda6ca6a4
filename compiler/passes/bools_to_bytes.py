"""`bools-to-bytes`: converts buffers of i1 to buffers of i8, so that vector loads and stores can access them.

An element of i1 takes one byte in memory, but a vector load of i1 would read packed bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register

# Ops that combine bytes 0 and 1 as they combine bools.
_COMBINERS = frozenset({"arith.ori", "arith.andi", "arith.xori", "arith.maxui", "arith.minui"})
# Ops whose body only yields an element.
_DATA_MOVEMENT = frozenset({"linalg.fill", "linalg.copy", "linalg.transpose", "linalg.broadcast"})


@register
@dataclass(frozen=True)
class BoolsToBytes(MlirPass):
    """Changes the types of buffers and arguments, not their memory: one byte holds one i1. Scalars stay i1."""

    name: ClassVar[str] = "bools-to-bytes"
    summary: ClassVar[str] = "convert buffers of i1 to buffers of i8, one byte per element, that vectors can load"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in nested_ops(root):
            if op.name in _REWRITES and any(_is_bools(value.type) for value in op.operands):
                context.remark(self.name, op.location, f"{op.name} reads or writes bytes for bools")
                _REWRITES[op.name](op)
        for op in nested_ops(root):
            _retype_buffers(op)


# ---- ops that access elements ----------------------------------------------------------------------------------------


def _rewrite_load(op: ir.Operation) -> None:
    buffer, *indices = op.operands
    with ir.InsertionPoint(op), op.location:
        byte = ir.Operation.create("memref.load", [_byte()], [buffer, *indices])
        value = arith.trunci(op.results[0].type, byte.result)
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _rewrite_store(op: ir.Operation) -> None:
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = arith.extui(_byte(), op.operands[0])


def _rewrite_data_movement(op: ir.Operation) -> None:
    """Rewrites an op whose body only yields an element; the input of a fill is a scalar, which is extended."""
    if op.operands[0].type == _bool():
        with ir.InsertionPoint(op), op.location:
            op.operands[0] = arith.extui(_byte(), op.operands[0])
    for argument in op.regions[0].blocks[0].arguments:
        argument.set_type(_byte())


def _rewrite_generic(op: ir.Operation) -> None:
    """Makes the body convert bytes to bools where it reads them, and bools to bytes where it yields them."""
    block = op.regions[0].blocks[0]
    terminator = block.operations[len(block.operations) - 1].operation
    first_output = len(op.operands) - len(terminator.operands)
    for number, value in enumerate(op.operands):
        if not _is_bools(value.type):
            continue
        argument = block.arguments[number]
        if number >= first_output and _rewrite_reduction(argument, terminator, number - first_output):
            continue
        users = [use.owner.operation for use in argument.uses]
        argument.set_type(_byte())
        if users:
            with ir.InsertionPoint(block.operations[0]), op.location:
                element = arith.trunci(_bool(), argument)
            for user in users:
                _replace_operand(user, argument, element)
        if number >= first_output:
            with ir.InsertionPoint(terminator), terminator.location:
                terminator.operands[number - first_output] = arith.extui(
                    _byte(), terminator.operands[number - first_output]
                )


def _rewrite_reduction(argument: ir.Value, terminator: ir.Operation, number: int) -> bool:
    """Rewrites a reduction of bools to a reduction of bytes, if `argument` is its accumulator.

    `number` is the number of the yielded result. Returns whether the reduction was rewritten.
    """
    users = [use.owner.operation for use in argument.uses]
    value = terminator.operands[number]
    if len(users) != 1 or users[0].name not in _COMBINERS or users[0].results[0] != value:
        return False
    left, right = users[0].operands
    argument.set_type(_byte())
    with ir.InsertionPoint(users[0]), users[0].location:
        term = arith.extui(_byte(), right if left == argument else left)
        terminator.operands[number] = ir.Operation.create(users[0].name, [_byte()], [argument, term]).result
    users[0].erase()
    return True


_REWRITES = (
    {"memref.load": _rewrite_load, "memref.store": _rewrite_store}
    | dict.fromkeys(("linalg.generic", "linalg.reduce", "linalg.map"), _rewrite_generic)
    | dict.fromkeys(_DATA_MOVEMENT, _rewrite_data_movement)
)


# ---- types -----------------------------------------------------------------------------------------------------------


def _replace_operand(user: ir.Operation, old: ir.Value, new: ir.Value) -> None:
    for i, operand in enumerate(user.operands):
        if operand == old:
            user.operands[i] = new


def _retype_buffers(op: ir.Operation) -> None:
    """Changes the type of buffers of bools to bytes, in the signature, results and block arguments of `op`."""
    if op.name == "func.func":
        old = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        new = ir.FunctionType.get(list(map(_as_byte_buffer, old.inputs)), list(map(_as_byte_buffer, old.results)))
        op.attributes["function_type"] = ir.TypeAttr.get(new)
    elif op.name == "memref.global":
        _retype_global(op)
    for result in op.results:
        if _is_bools(result.type):
            result.set_type(_as_byte_buffer(result.type))
    for region in op.regions:
        for block in region.blocks:
            for argument in block.arguments:
                if _is_bools(argument.type):
                    argument.set_type(_as_byte_buffer(argument.type))


def _retype_global(op: ir.Operation) -> None:
    """Changes the type and the initial value of a `memref.global` of bools."""
    type_ = ir.TypeAttr(op.attributes["type"]).value
    if not _is_bools(type_):
        return
    op.attributes["type"] = ir.TypeAttr.get(_as_byte_buffer(type_))
    if "initial_value" in op.attributes:
        values = [int(value) for value in ir.DenseIntElementsAttr(op.attributes["initial_value"])]
        attributes = [ir.IntegerAttr.get(_byte(), value) for value in values]
        tensor_type = ir.RankedTensorType.get(list(type_.shape), _byte())
        op.attributes["initial_value"] = ir.DenseElementsAttr.get(attributes, tensor_type)


def _is_bools(type_: ir.Type) -> bool:
    """True if a type is a memref of i1."""
    return isinstance(type_, ir.MemRefType) and type_.element_type == _bool()


def _as_byte_buffer(type_: ir.Type) -> ir.Type:
    if not _is_bools(type_):
        return type_
    return ir.MemRefType.get(list(type_.shape), _byte(), type_.layout, type_.memory_space)


def _bool() -> ir.IntegerType:
    return ir.IntegerType.get_signless(1)


def _byte() -> ir.IntegerType:
    return ir.IntegerType.get_signless(8)
