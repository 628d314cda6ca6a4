"""`expand-bfloat16`: computes bfloat16 arithmetic in f32, with conversions by integer ops, which vectorise.

If the processor has no instruction that rounds to bfloat16, LLVM would call a function for each element of a vector.
Maxima and minima are computed by integer ops on any processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import attributes_of, constant_of, nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.fuse_elementwise import represents
from buddy.compiler.passes.kernels.contraction import convert_elements
from buddy.compiler.passes.kernels.emit import element_type, with_element_type

# Ops that do not depend on the meaning of the bits, and stay as they are.
_UNCHANGED_OPS = frozenset({"arith.bitcast", "arith.constant"})
_SELECT = "arith.select"
_CONVERSIONS = frozenset({"arith.truncf", "arith.extf"})
_EXTREMES = frozenset({"arith.maximumf", "arith.minimumf"})
# Ops whose result is one of their operands, up to its sign: no rounding is needed if all of them are of bfloat16.
_CHOOSING_OPS = frozenset({
    "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.negf", "math.absf", "math.copysign",
})  # fmt: skip


@register
@dataclass(frozen=True)
class ExpandBfloat16(MlirPass):
    """Replaces bfloat16 arithmetic by f32 arithmetic that is rounded to nearest, ties to even, with quiet NaN.

    As in PyTorch, doubles are converted through f32. Results that bfloat16 represents exactly, such as the maxima of
    bfloat16 numbers, are not rounded.

    Maxima and minima of bfloat16 compare the bits as integers, on every target: LLVM converts both operands to f32, the
    result back, and compares zeros and NaN apart.
    """

    name: ClassVar[str] = "expand-bfloat16"
    summary: ClassVar[str] = "compute bfloat16 in f32 and round by integer ops, if the processor cannot round to it"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in nested_ops(root):
            if op.name in _EXTREMES and _is_bfloat16(op.results[0]):
                _replace_extreme(op)
        if context.target.rounds_to_bfloat16:
            return
        for op in nested_ops(root):
            if _is_arithmetic(op.name) and any(_is_bfloat16(value) for value in (*op.results, *op.operands)):
                context.remark(self.name, op.location, f"{op.name} of bfloat16 is computed in f32")
                _replace(op)


def _is_arithmetic(name: str) -> bool:
    return name.startswith(("arith.", "math.")) and name not in _UNCHANGED_OPS


def _is_bfloat16(value: ir.Value) -> bool:
    return isinstance(element_type(value.type), ir.BF16Type)


_SIGN_BIT, _INFINITY_BITS, _QUIET_NAN_BITS = 0x8000, 0x7F80, 0x7FC0


def _replace_extreme(op: ir.Operation) -> None:
    """Replaces a maximum or minimum of bfloat16, scalars or vectors, by integer ops on the bits.

    Numbers are ordered as their bits are, as signed integers, unless both are negative; then the order is the opposite.
    NaN gets the sign with which it is the maximum, or minimum, of all numbers.
    """
    is_maximum, (result,) = op.name == "arith.maximumf", op.results
    type_ = with_element_type(result.type, ir.IntegerType.get_signless(16))
    nan = _QUIET_NAN_BITS if is_maximum else _QUIET_NAN_BITS - _SIGN_BIT
    with ir.InsertionPoint(op), op.location:
        operands = []
        for value in op.operands:
            bits = arith.bitcast(type_, value)
            magnitude = arith.andi(bits, _constant(type_, _SIGN_BIT - 1))
            is_nan = arith.cmpi(arith.CmpIPredicate.sgt, magnitude, _constant(type_, _INFINITY_BITS))
            operands.append(arith.select(is_nan, _constant(type_, nan), bits))
        larger, smaller = arith.maxsi(*operands), arith.minsi(*operands)
        are_negative = arith.cmpi(arith.CmpIPredicate.slt, arith.andi(*operands), _constant(type_, 0))
        values = (smaller, larger) if is_maximum else (larger, smaller)
        new = arith.bitcast(result.type, arith.select(are_negative, *values))
    result.replace_all_uses_with(new)
    op.erase()


def _replace(op: ir.Operation) -> None:
    """Replaces an op on bfloat16, scalars or vectors, by f32 arithmetic and integer ops."""
    f32, i16 = ir.F32Type.get(), ir.IntegerType.get_signless(16)
    (result,) = op.results
    with ir.InsertionPoint(op), op.location:
        if op.name == _SELECT:
            # Selects bits: their meaning does not matter.
            condition, *values = op.operands
            bits = (arith.bitcast(with_element_type(value.type, i16), value) for value in values)
            new = arith.bitcast(result.type, arith.select(condition, *bits))
        else:
            operands = [_extend_to_f32(value) if _is_bfloat16(value) else value for value in op.operands]
            type_ = with_element_type(result.type, f32) if _is_bfloat16(result) else result.type
            is_exact = op.name in _CHOOSING_OPS
            if op.name in _CONVERSIONS:
                is_exact = is_exact or _is_exact(operands[0])
                new = convert_elements(operands[0], element_type(type_))
            else:
                new = ir.Operation.create(op.name, [type_], operands, attributes_of(op)).result
            if _is_bfloat16(result):
                new = _narrowed(_upper_bits(new)) if is_exact else _round_to_bfloat16(new)
    result.replace_all_uses_with(new)
    op.erase()


def _is_exact(value: ir.Value) -> bool:
    """True if the f32 `value` is a number of bfloat16, or chosen from such numbers."""
    if not isinstance(value, ir.OpResult) or not isinstance(element_type(value.type), ir.F32Type):
        return False
    op = value.owner
    if op.name == "arith.constant":
        return _is_exact_constant(op.attributes["value"])
    if op.name == "arith.extf":
        return _is_bfloat16(op.operands[0])
    if op.name == "arith.bitcast":
        return _is_extended(op.operands[0])
    return op.name in _CHOOSING_OPS and all(map(_is_exact, op.operands))


def _is_extended(bits: ir.Value) -> bool:
    """True if `bits` are those of `_extend_to_f32`: shifted to the upper 16 bits."""
    if not isinstance(bits, ir.OpResult) or bits.owner.name != "arith.shli":
        return False
    shift = constant_of(bits.owner.operands[1])
    return shift is not None and bool(shift == _attribute(bits.type, 16))


def _is_exact_constant(attribute: ir.Attribute) -> bool:
    """True if bfloat16 represents the number of `attribute` exactly: a float, or one in all lanes of a vector."""
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return False
        attribute = attribute.get_splat_value()
    return represents(ir.BF16Type.get(), ir.FloatAttr(attribute).value)


def _extend_to_f32(value: ir.Value) -> ir.Value:
    """Converts the bfloat16 `value` to f32: its bits become the upper 16 bits."""
    i32, i16 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(16)
    bits = arith.extui(with_element_type(value.type, i32), arith.bitcast(with_element_type(value.type, i16), value))
    return arith.bitcast(with_element_type(value.type, ir.F32Type.get()), arith.shli(bits, _constant(bits.type, 16)))


def _round_to_bfloat16(value: ir.Value) -> ir.Value:
    """Converts the f32 `value` to bfloat16: rounds to nearest, ties to even; NaN becomes quiet.

    Adds 0x7FFF to the bits, or 0x8000 if bit 16, the last that stays, is set; then drops the lower 16 bits.
    """
    type_ = with_element_type(value.type, ir.IntegerType.get_signless(32))
    bits, truncated = arith.bitcast(type_, value), _upper_bits(value)
    last_bit = arith.andi(truncated, _constant(type_, 1))
    sums = arith.addi(arith.addi(bits, _constant(type_, 0x7FFF)), last_bit)
    nearest = arith.shrui(sums, _constant(type_, 16))
    quiet_nan = arith.ori(truncated, _constant(type_, 0x40))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    rounded = arith.select(is_nan, quiet_nan, nearest)
    return _narrowed(rounded)


def _upper_bits(value: ir.Value) -> ir.Value:
    """Returns the upper 16 bits of the f32 `value`, as the lower bits of integers of 32 bits."""
    type_ = with_element_type(value.type, ir.IntegerType.get_signless(32))
    return arith.shrui(arith.bitcast(type_, value), _constant(type_, 16))


def _narrowed(bits: ir.Value) -> ir.Value:
    """Returns the lower 16 bits of integers of 32 bits as bfloat16."""
    narrow = arith.trunci(with_element_type(bits.type, ir.IntegerType.get_signless(16)), bits)
    return arith.bitcast(with_element_type(bits.type, ir.BF16Type.get()), narrow)


def _constant(type_: ir.Type, number: int) -> ir.Value:
    return arith.constant(type_, _attribute(type_, number))


def _attribute(type_: ir.Type, number: int) -> ir.Attribute:
    """Returns the attribute of a constant of the integer type `type_`, or of a vector with `number` in all lanes."""
    value = ir.IntegerAttr.get(element_type(type_), number)
    return ir.DenseElementsAttr.get_splat(type_, value) if isinstance(type_, ir.VectorType) else value
