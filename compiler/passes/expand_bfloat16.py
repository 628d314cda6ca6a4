"""`expand-bfloat16`: computes bfloat16 arithmetic in f32, with conversions by integer ops, which vectorise.

If the processor has no instruction that rounds to bfloat16, LLVM would call a function for each element of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import attributes_of, collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.contraction import converted
from buddy.compiler.passes.kernels.emit import element_of

# Ops that do not depend on the meaning of the bits, and stay as they are.
_UNCHANGED_OPS = frozenset({"arith.bitcast", "arith.constant"})
_SELECT = "arith.select"
_CONVERSIONS = frozenset({"arith.truncf", "arith.extf"})


@register
@dataclass(frozen=True)
class ExpandBfloat16(MlirPass):
    """Rounds to nearest, ties to even, with quiet NaN; as in PyTorch, doubles are converted through f32."""

    name: ClassVar[str] = "expand-bfloat16"
    summary: ClassVar[str] = "compute bfloat16 in f32 and round by integer ops, if the processor cannot round to it"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        if context.target.rounds_to_bfloat16:
            return
        for op in collect(root):
            if _is_arithmetic(op.name) and any(_is_bfloat16(value) for value in (*op.results, *op.operands)):
                context.remark(self.name, op.location, f"{op.name} of bfloat16 is computed in f32")
                _replace(op)


def _is_arithmetic(name: str) -> bool:
    return name.startswith(("arith.", "math.")) and name not in _UNCHANGED_OPS


def _is_bfloat16(value: ir.Value) -> bool:
    return isinstance(element_of(value.type), ir.BF16Type)


def _replace(op: ir.Operation) -> None:
    f32, i16 = ir.F32Type.get(), ir.IntegerType.get_signless(16)
    (result,) = op.results
    with ir.InsertionPoint(op), op.location:
        if op.name == _SELECT:
            condition, *values = op.operands
            bits = (arith.bitcast(_with_element(value.type, i16), value) for value in values)
            new = arith.bitcast(result.type, arith.select(condition, *bits))
        else:
            operands = [_extend_to_f32(value) if _is_bfloat16(value) else value for value in op.operands]
            type_ = _with_element(result.type, f32) if _is_bfloat16(result) else result.type
            if op.name in _CONVERSIONS:
                new = converted(operands[0], element_of(type_))
            else:
                new = ir.Operation.create(op.name, [type_], operands, attributes_of(op)).result
            new = _round_to_bfloat16(new) if _is_bfloat16(result) else new
    result.replace_all_uses_with(new)
    op.erase()


def _extend_to_f32(value: ir.Value) -> ir.Value:
    """Converts the bfloat16 `value` to f32: its bits become the upper 16 bits."""
    i32, i16 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(16)
    bits = arith.extui(_with_element(value.type, i32), arith.bitcast(_with_element(value.type, i16), value))
    return arith.bitcast(_with_element(value.type, ir.F32Type.get()), arith.shli(bits, _constant(bits.type, 16)))


def _round_to_bfloat16(value: ir.Value) -> ir.Value:
    """Converts the f32 `value` to bfloat16: rounds to nearest, ties to even; NaN becomes quiet.

    Adds 0x7FFF to the bits, or 0x8000 if bit 16, the last that stays, is set; then drops the lower 16 bits.
    """
    i32, i16 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(16)
    type_ = _with_element(value.type, i32)
    bits = arith.bitcast(type_, value)
    truncated = arith.shrui(bits, _constant(type_, 16))
    last_bit = arith.andi(truncated, _constant(type_, 1))
    sums = arith.addi(arith.addi(bits, _constant(type_, 0x7FFF)), last_bit)
    nearest = arith.shrui(sums, _constant(type_, 16))
    quiet_nan = arith.ori(truncated, _constant(type_, 0x40))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    rounded = arith.select(is_nan, quiet_nan, nearest)
    narrow = arith.trunci(_with_element(value.type, i16), rounded)
    return arith.bitcast(_with_element(value.type, ir.BF16Type.get()), narrow)


def _with_element(type_: ir.Type, element: ir.Type) -> ir.Type:
    """Returns the scalar or vector type `type_` with elements of type `element`."""
    return ir.VectorType.get(type_.shape, element) if isinstance(type_, ir.VectorType) else element


def _constant(type_: ir.Type, number: int) -> ir.Value:
    value = ir.IntegerAttr.get(element_of(type_), number)
    splat = ir.DenseElementsAttr.get_splat(type_, value) if isinstance(type_, ir.VectorType) else value
    return arith.constant(type_, splat)
