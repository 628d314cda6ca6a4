"""`bools-to-bytes`: converts buffers of i1 to buffers of i8, the form in memory, so that vectors can load them.

A vector load of i1 would read packed bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register

_FOLDS = frozenset({"arith.ori", "arith.andi", "arith.xori", "arith.maxui", "arith.minui"})
_MOVES = frozenset({"linalg.fill", "linalg.copy", "linalg.transpose", "linalg.broadcast"})


@register
@dataclass(frozen=True)
class BoolsToBytes(MlirPass):
    """Values stay i1 between loads and stores. Arguments change their type too, but not their memory."""

    name: ClassVar[str] = "bools-to-bytes"
    summary: ClassVar[str] = "convert buffers of i1 to buffers of i8, one byte per element, that vectors can load"

    def run(self, root: Any, context: PassContext) -> None:
        for op in collect(root):
            if op.name in _REWRITES and any(_is_bools(value.type) for value in op.operands):
                context.remark(self.name, op.location, f"{op.name} reads or writes bytes for bools")
                _REWRITES[op.name](op)
        for op in collect(root):
            _retype(op)


def _load(op: Any) -> None:
    buffer, *indices = op.operands
    with ir.InsertionPoint(op), op.location:
        byte = ir.Operation.create("memref.load", [_byte()], [buffer, *indices])
        value = arith.trunci(op.results[0].type, byte.result)
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _store(op: Any) -> None:
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = arith.extui(_byte(), op.operands[0])


def _rewrite_copy(op: Any) -> None:
    """Rewrites an op whose body only yields an element."""
    if not _is_bools(op.operands[0].type) and op.operands[0].type == _bool():
        with ir.InsertionPoint(op), op.location:
            op.operands[0] = arith.extui(_byte(), op.operands[0])
    for argument in op.regions[0].blocks[0].arguments:
        argument.set_type(_byte())


def _generic(op: Any) -> None:
    block = op.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    outputs = len(op.operands) - len(end.operands)
    for number, value in enumerate(op.operands):
        if not _is_bools(value.type):
            continue
        argument = block.arguments[number]
        if number >= outputs and _rewrite_fold(argument, end, number - outputs):
            continue
        users = [use.owner.operation for use in argument.uses]
        argument.set_type(_byte())
        if users:
            with ir.InsertionPoint(block.operations[0]), op.location:
                known = arith.trunci(_bool(), argument)
            for user in users:
                _replace(user, argument, known)
        if number >= outputs:
            with ir.InsertionPoint(end), end.location:
                end.operands[number - outputs] = arith.extui(_byte(), end.operands[number - outputs])


def _rewrite_fold(argument: Any, end: Any, place: int) -> bool:
    """Rewrites a reduction of bools to one of bytes, if `argument` is its accumulator. Returns whether it is."""
    users = [use.owner.operation for use in argument.uses]
    value = end.operands[place]
    if len(users) != 1 or users[0].name not in _FOLDS or users[0].results[0] != value:
        return False
    left, right = users[0].operands
    argument.set_type(_byte())
    with ir.InsertionPoint(users[0]), users[0].location:
        term = arith.extui(_byte(), right if left == argument else left)
        end.operands[place] = ir.Operation.create(users[0].name, [_byte()], [argument, term]).result
    users[0].erase()
    return True


_REWRITES = (
    {"memref.load": _load, "memref.store": _store}
    | dict.fromkeys(("linalg.generic", "linalg.reduce", "linalg.map"), _generic)
    | dict.fromkeys(_MOVES, _rewrite_copy)
)


def _replace(user: Any, old: Any, new: Any) -> None:
    for i, operand in enumerate(user.operands):
        if operand == old:
            user.operands[i] = new


def _retype(op: Any) -> None:
    """Changes the type of buffers of bools to bytes, in the results and block arguments of `op`."""
    if op.name == "func.func":
        kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        bytes_ = ir.FunctionType.get(
            [_as_byte_buffer(t) for t in kind.inputs], [_as_byte_buffer(t) for t in kind.results]
        )
        op.attributes["function_type"] = ir.TypeAttr.get(bytes_)
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


def _retype_global(op: Any) -> None:
    kind = ir.TypeAttr(op.attributes["type"]).value
    if not _is_bools(kind):
        return
    op.attributes["type"] = ir.TypeAttr.get(_as_byte_buffer(kind))
    if "initial_value" in op.attributes:
        values = [int(value) for value in ir.DenseIntElementsAttr(op.attributes["initial_value"])]
        attributes = [ir.IntegerAttr.get(_byte(), value) for value in values]
        shape = ir.RankedTensorType.get(list(kind.shape), _byte())
        op.attributes["initial_value"] = ir.DenseElementsAttr.get(attributes, shape)


def _is_bools(type_: Any) -> bool:
    return isinstance(type_, ir.MemRefType) and type_.element_type == _bool()


def _as_byte_buffer(type_: Any) -> Any:
    if not _is_bools(type_):
        return type_
    return ir.MemRefType.get(list(type_.shape), _byte(), type_.layout, type_.memory_space)


def _bool() -> Any:
    return ir.IntegerType.get_signless(1)


def _byte() -> Any:
    return ir.IntegerType.get_signless(8)
