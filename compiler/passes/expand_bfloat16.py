"""`expand-bfloat16`: computes bfloat16 arithmetic in f32, with conversions by integer ops, which vectorise.

If the processor has no instruction that rounds to bfloat16, LLVM calls a function for each element and so scalarises
vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import attributes_of, collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.contraction import converted
from buddy.compiler.passes.kernels.emit import element_of

# Ops on bits, independent of the type.
_BIT_OPS = frozenset({"arith.bitcast", "arith.constant"})
_SELECT = "arith.select"
_CONVERSIONS = frozenset({"arith.truncf", "arith.extf"})


@register
@dataclass(frozen=True)
class ExpandBfloat16(MlirPass):
    """Rounds to nearest, ties to even, with quiet NaN; as in PyTorch, doubles are converted through f32."""

    name: ClassVar[str] = "expand-bfloat16"
    summary: ClassVar[str] = "bfloat16 is computed in f32 and rounded by integers, unless the processor rounds to it"

    def run(self, root: Any, context: PassContext) -> None:
        if context.target.rounds_to_bfloat16:
            return
        for op in collect(root):
            if _computes(op.name) and any(_is_bfloat16(value) for value in (*op.results, *op.operands)):
                context.remark(self.name, op.location, f"{op.name} of bfloat16 is computed in f32")
                _replace(op)


def _computes(name: str) -> bool:
    return name.startswith(("arith.", "math.")) and name not in _BIT_OPS


def _is_bfloat16(value: Any) -> bool:
    return isinstance(element_of(value.type), ir.BF16Type)


def _replace(op: Any) -> None:
    f32, i16 = ir.F32Type.get(), ir.IntegerType.get_signless(16)
    (result,) = op.results
    with ir.InsertionPoint(op), op.location:
        if op.name == _SELECT:
            condition, *values = op.operands
            chosen = arith.select(condition, *(arith.bitcast(_with(each.type, i16), each) for each in values))
            new = arith.bitcast(result.type, chosen)
        else:
            wide = [_extend_to_f32(value) if _is_bfloat16(value) else value for value in op.operands]
            rounds = _is_bfloat16(result)
            type_ = _with(result.type, f32) if rounds else result.type
            if op.name in _CONVERSIONS:
                new = converted(wide[0], element_of(type_))
            else:
                new = ir.Operation.create(op.name, [type_], wide, attributes_of(op)).result
            new = _round_to_bfloat16(new) if rounds else new
    result.replace_all_uses_with(new)
    op.erase()


def _extend_to_f32(value: Any) -> Any:
    """Converts the bfloat16 `value` to f32: it becomes the upper half of the bits."""
    i32, i16 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(16)
    bits = arith.extui(_with(value.type, i32), arith.bitcast(_with(value.type, i16), value))
    return arith.bitcast(_with(value.type, ir.F32Type.get()), arith.shli(bits, _constant(bits.type, 16)))


def _round_to_bfloat16(value: Any) -> Any:
    """Converts the f32 `value` to bfloat16: adds half of the last place to its bits and truncates."""
    i32, i16 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(16)
    wide = _with(value.type, i32)
    bits = arith.bitcast(wide, value)
    above = arith.shrui(bits, _constant(wide, 16))
    odd = arith.andi(above, _constant(wide, 1))
    sums = arith.addi(arith.addi(bits, _constant(wide, 0x7FFF)), odd)
    nearest = arith.shrui(sums, _constant(wide, 16))
    quiet = arith.ori(above, _constant(wide, 0x40))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    chosen = arith.select(is_nan, quiet, nearest)
    return arith.bitcast(_with(value.type, ir.BF16Type.get()), arith.trunci(_with(value.type, i16), chosen))


def _with(type_: Any, element: Any) -> Any:
    """Returns the scalar or vector type `type_` with elements of type `element`."""
    return ir.VectorType.get(type_.shape, element) if isinstance(type_, ir.VectorType) else element


def _constant(type_: Any, number: int) -> Any:
    value = ir.IntegerAttr.get(element_of(type_), number)
    splat = ir.DenseElementsAttr.get_splat(type_, value) if isinstance(type_, ir.VectorType) else value
    return arith.constant(type_, splat)
