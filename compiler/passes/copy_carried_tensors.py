"""`copy-carried-tensors`: makes each iteration of a loop yield its tensors in the buffers of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import bufferization, ir
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register

# The number of the operand whose buffer an op writes and returns. `_is_computed_in` computes it for linalg ops.
_DESTINATIONS = {"tensor.insert_slice": 1, "tensor.insert": 1, "bufferization.materialize_in_destination": 1}


@register
@dataclass(frozen=True)
class CopyCarriedTensors(MlirPass):
    """Copies each tensor that an iteration yields into the loop-carried tensor that the iteration received.

    One-shot bufferization rejects a loop that yields a tensor in another buffer than its argument has. Nothing is
    copied if the tensor is computed in place in the argument, for example by insertions of slices, and nothing else
    reads the argument.
    """

    name: ClassVar[str] = "copy-carried-tensors"
    summary: ClassVar[str] = "copy tensors that a loop computes for its next iteration into those of this iteration"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for loop in list(find_ops(root, "scf.for", "scf.while")):
            copied = sum(_copy_into_argument(*carried) for carried in _carried_tensors(loop))
            if copied:
                tensors = "tensor" if copied == 1 else "tensors"
                context.remark(self.name, loop.location, f"{copied} carried {tensors} copied in each iteration")


def _carried_tensors(loop: ir.Operation) -> Iterator[tuple[ir.Operation, int, ir.Value, Sequence[ir.Value]]]:
    """Yields (terminator, operand number, argument, all arguments) for each tensor that `loop` carries.

    The terminator yields the operand with this number, and the next iteration receives it as the argument.
    """
    # The induction variable of `scf.for`, and the condition of the first region of `scf.while`, are not carried.
    is_for = loop.name == "scf.for"
    for region_number, region in enumerate(loop.regions):
        block = region.blocks[0]
        terminator = block.operations[len(block.operations) - 1].operation
        arguments = list(block.arguments)[1:] if is_for else list(block.arguments)
        first_carried = 1 if loop.name == "scf.while" and region_number == 0 else 0
        for index, argument in enumerate(arguments):
            operand = first_carried + index
            if operand < len(terminator.operands) and _is_tensor_of_type(terminator.operands[operand], argument.type):
                yield terminator, operand, argument, arguments


def _is_tensor_of_type(value: ir.Value, type_: ir.Type) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and value.type == type_


def _copy_into_argument(
    terminator: ir.Operation, operand: int, argument: ir.Value, arguments: Sequence[ir.Value]
) -> bool:
    """Copies operand number `operand` of `terminator` into `argument`; returns whether a copy was necessary."""
    value = terminator.operands[operand]
    if value == argument or (_is_computed_in(value, argument) and len(list(argument.uses)) == 1):
        return False
    with ir.InsertionPoint(terminator), terminator.location:
        if value in arguments:  # The argument may be overwritten before it is read.
            value = bufferization.alloc_tensor(value.type, [], copy=value)
        terminator.operands[operand] = bufferization.materialize_in_destination(value.type, value, argument)
    return True


def _is_computed_in(value: ir.Value, argument: ir.Value) -> bool:
    """True if `value` is computed in the buffer of `argument`: each op writes to the result of the op before it."""
    while value != argument:
        if not isinstance(value.owner, ir.Operation | ir.OpView):
            return False
        op: Any = value.owner.operation
        number = ir.OpResult(value).result_number
        if op.name in _DESTINATIONS:
            destination = _DESTINATIONS[op.name]
        elif op.name.startswith("linalg."):
            destination = len(op.operands) - len(op.results) + number
        elif op.name == "scf.for":
            destination = 3 + number  # after the bounds and the step
        else:
            return False
        value = op.operands[destination]
    return True
