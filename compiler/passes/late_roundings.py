"""Rounds the maximum of numbers instead of the numbers, in the body of a structured op.

Eager rounds each result to 16 bits, so that a ReLU after another op takes the maximum of a rounded number and zero, and
rounds the maximum again. Rounding is monotonic and does not change zero, so that the first rounding can be dropped.
LLVM would otherwise compute the maximum in 16 bits, for which processors have no instruction.
"""

from __future__ import annotations

import struct
from typing import Any

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import defining_op
from buddy.compiler.passes.kernels.access import is_used

# Both are called maxima below.
_MAXIMA = frozenset({"arith.maximumf", "arith.minimumf"})
_NARROW = ("bf16", "f16")


def drop_early_roundings(block: ir.Block) -> None:
    """Drops the rounding of an f32 number to 16 bits before a maximum or minimum that is rounded to 16 bits again.

    Changes a maximum only if nothing else reads it, and if 16 bits represent each of its operands exactly.
    """
    for op in [inner.operation for inner in block.operations]:
        if op.name == "arith.truncf" and str(op.operands[0].type) == "f32" and str(op.results[0].type) in _NARROW:
            _drop_before(op.operands[0], op.results[0].type)


def _drop_before(value: ir.Value, narrow: ir.Type) -> None:
    """Drops the roundings to `narrow` of the operands of `value`, a maximum that is rounded to `narrow`."""
    maximum = defining_op(value)
    if maximum is None or maximum.name not in _MAXIMA or not _has_one_use(value):
        return
    if not all(_is_exact(operand, narrow) for operand in maximum.operands):
        return
    for number, operand in enumerate(maximum.operands):
        extension = defining_op(operand)
        if extension is None or extension.name in _MAXIMA:
            _drop_before(operand, narrow)
        elif extension.name == "arith.extf" and (rounding := _rounding_of(extension.operands[0])) is not None:
            maximum.operands[number] = rounding.operands[0]
            for op in (extension, rounding):
                if not is_used(op.results[0]):
                    op.erase()


def _is_exact(value: ir.Value, narrow: ir.Type) -> bool:
    """True if `narrow` represents the f32 `value` exactly, because of the op that computes it."""
    op = defining_op(value)
    if op is None:
        return False
    if op.name == "arith.constant":
        return represents(narrow, ir.FloatAttr(op.attributes["value"]).value)
    if op.name == "arith.extf":
        return bool(op.operands[0].type == narrow)
    return op.name in _MAXIMA and all(_is_exact(operand, narrow) for operand in op.operands)


def represents(narrow: ir.Type, number: float) -> bool:
    """True if the element type `narrow` represents `number` exactly."""
    if str(narrow) == "bf16":
        return not struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF
    try:
        return bool(struct.unpack("<e", struct.pack("<e", number))[0] == number)
    except OverflowError:
        return False


def _rounding_of(value: ir.Value) -> Any:
    """Returns the op that rounds a f32 to `value`, or `None`."""
    op = defining_op(value)
    is_rounding = op is not None and op.name == "arith.truncf" and str(op.operands[0].type) == "f32"
    return op if is_rounding else None


def _has_one_use(value: ir.Value) -> bool:
    return len(list(value.uses)) == 1
