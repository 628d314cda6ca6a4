"""Comparison, choice, casts, and ops on the bits of a number."""

from __future__ import annotations

import math as pymath
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import (
    as_scalar,
    elementwise,
    lower_expression,
    ops_registry,
    promoted,
    rounded_operands,
)
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.utils import LoweringError, SymbolTable, constant, mlir_element_type_get

BOOL = TensorDType.Bool


def _comparison(name: str, relation: str) -> None:
    @elementwise(name, among_operands=True, narrow=True)
    def compared(x: Scalar, y: Operand) -> Scalar:
        """For half types, eager rounds a number to the element type before comparing."""
        left, right = rounded_operands(x, y)
        return left.compare(relation, right)


for _name, _relation in {
    "EqualOp": "eq", "NeOp": "ne", "LtOp": "lt", "LeOp": "le", "GtOp": "gt", "GeOp": "ge",
}.items():  # fmt: skip
    _comparison(_name, _relation)


@elementwise("IsNanOp", among_operands=True)
def isnan(x: Scalar) -> Scalar:
    return x.compare("ne", x)


@elementwise("IsInfOp", among_operands=True)
def isinf(x: Scalar) -> Scalar:
    return s.absolute(x).compare("eq", pymath.inf) if x.dtype.is_float else Scalar(constant(False, BOOL), BOOL)


@elementwise("WhereOp", uncast=(0,))
def where(condition: Scalar, yes: Operand, no: Operand) -> Scalar:
    shaped = no if isinstance(no, Scalar) else yes
    if not isinstance(shaped, Scalar):
        return _choice_of_numbers(condition, yes, no)
    return s.select(condition, shaped.like(yes), shaped.like(no))


def _choice_of_numbers(condition: Scalar, yes: Any, no: Any) -> Scalar:
    kind = promoted((yes, no))
    return s.select(condition, as_scalar(yes, kind), as_scalar(no, kind))


@elementwise("MaskedFillOp", uncast=(1,))
def masked_fill(x: Scalar, mask: Scalar, value: Operand) -> Scalar:
    return s.select(mask, x.like(value), x)


@elementwise("ConvertElementTypeOp", uncast=(0,))
def convert(x: Operand, _dtype: object = None) -> Scalar:
    """Converts to the result's element type, which prims pass as an argument; `x` may be a number under `vmap`."""
    if isinstance(x, Scalar):
        return x
    return as_scalar(x, TensorDType.Float64 if isinstance(x, float) else TensorDType.Int64)


_INTEGER = {
    TensorDType.Float16: TensorDType.Int16, TensorDType.BFloat16: TensorDType.Int16,
    TensorDType.Float32: TensorDType.Int32, TensorDType.Float64: TensorDType.Int64,
}  # fmt: skip
# Width of the mantissa in bits.
_MANTISSA = {TensorDType.Float32: 23, TensorDType.Float64: 52}


def bits_of(x: Scalar) -> Scalar:
    dtype = _INTEGER[x.dtype]
    return Scalar(arith.bitcast(mlir_element_type_get(dtype), x.value), dtype)


def from_bits(x: Scalar, dtype: TensorDType) -> Scalar:
    return Scalar(arith.bitcast(mlir_element_type_get(dtype), x.value), dtype)


@elementwise("SignbitOp", among_operands=True)
def signbit(x: Scalar) -> Scalar:
    return (bits_of(x) if x.dtype.is_float else x) < 0


@elementwise("SignOp")
def sign(x: Scalar) -> Scalar:
    """Returns the sign; 0 for NaN and both zeros."""
    return cast(x > 0, x.dtype) if x.is_unsigned else cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


@elementwise("CopysignOp")
def copysign(x: Scalar, y: Operand) -> Scalar:
    return s.copysign(x, y)


@elementwise("AngleOp")
def angle(x: Scalar) -> Scalar:
    """Returns π for negative numbers and 0 for others."""
    return s.select(x.compare("ne", x), x, s.select(x < 0, x.like(pymath.pi), x.like(0)))


@elementwise("NextafterOp", narrow=True)
def nextafter(x: Scalar, y: Operand) -> Scalar:
    """Increments or decrements the bits as an integer, whose order is that of the magnitudes."""
    y = x.like(y)
    bits, zero = bits_of(x), x.compare("eq", 0)
    outward = ((x < y) ^ (x < 0)) & (zero ^ True)
    moved = from_bits(s.select(outward, bits + 1, bits - 1), x.dtype)
    least = s.copysign(from_bits(bits.like(1), x.dtype), y)
    result = s.select(x.compare("eq", y), y, s.select(zero, least, moved))
    return s.select(x.compare("ne", x) | y.compare("ne", y), x + y, result)


def _mantissa_and_exponent(x: Scalar) -> tuple[Scalar, Scalar]:
    """Returns `(m, n)` with x = m 2^n and |m| in [1/2, 1); m is x for zeros, infinities and NaN."""
    mantissa = _MANTISSA[x.dtype]
    bias = (1 << (bits_of(x).value.type.width - mantissa - 2)) - 1
    tiny = s.absolute(x) < 2.0 ** (1 - bias)
    bits = bits_of(s.select(tiny, x * 2.0 ** (mantissa + 2), x))
    field = bits.like(2 * bias + 1)
    exponent = integers.shift_right(bits, mantissa) & field
    halved = (bits & (-1 ^ ((2 * bias + 1) << mantissa))) | ((bias - 1) << mantissa)
    special = x.compare("eq", 0) | exponent.compare("eq", 2 * bias + 1)
    lost = s.select(tiny, bits.like(mantissa + 2), bits.like(0))
    exponent = s.select(special, bits.like(0), exponent - lost - (bias - 1))
    return s.select(special, x, from_bits(halved, x.dtype)), exponent


@ops_registry.lowering("FrexpOp")
def frexp(node: Op, symbol_table: SymbolTable) -> list[Any]:
    parts = (lambda x: _mantissa_and_exponent(x)[0], lambda x: _mantissa_and_exponent(x)[1])
    return [lower_expression(node, symbol_table, part, True, result=i) for i, part in enumerate(parts)]


@elementwise("LdexpOp", uncast=(1,))
def ldexp(x: Scalar, exponent: Operand) -> Scalar:
    """Returns x times 2 to the exponent.

    An integer exponent rounds once, as in C; a float one multiplies by 2^exponent.
    """
    if not isinstance(exponent, Scalar) or exponent.dtype.is_float:
        return x * s.exp2(x.like(exponent))
    mantissa, own = _mantissa_and_exponent(cast(x, TensorDType.Float64))
    total = s.minimum(s.maximum(cast(exponent, TensorDType.Int64), -5000), 5000) + own
    near = s.minimum(s.maximum(total, -1000), 1000)
    far = s.minimum(s.maximum(total - near, -1000), 1000)
    return cast(mantissa * _power_of_two(near) * _power_of_two(far), x.dtype)


def _power_of_two(exponent: Scalar) -> Scalar:
    """Returns 2 to the exponent, for exponents from -1022 to 1023."""
    return from_bits(integers.shift_left(exponent + 1023, _MANTISSA[TensorDType.Float64]), TensorDType.Float64)


def _shift(name: str, function: Any) -> None:
    @elementwise(name)
    def shift(x: Scalar, by: Operand) -> Scalar:
        if x.dtype.is_float:
            raise LoweringError("a shift of a float")
        return function(x, by)


_shift("BitwiseLeftShiftOp", integers.shift_left)
_shift("BitwiseRightShiftOp", integers.shift_right)


@elementwise("LogicalAndOp", "BitwiseAndOp")
def bit_and(x: Scalar, y: Operand) -> Scalar:
    return x & y


@elementwise("LogicalOrOp", "BitwiseOrOp")
def bit_or(x: Scalar, y: Operand) -> Scalar:
    return x | y


@elementwise("LogicalXorOp", "BitwiseXorOp")
def bit_xor(x: Scalar, y: Operand) -> Scalar:
    return x ^ y


@elementwise("LogicalNotOp")
def logical_not(x: Scalar) -> Scalar:
    return x ^ True


@elementwise("BitwiseNotOp")
def bitwise_not(x: Scalar) -> Scalar:
    return x ^ (True if x.dtype is TensorDType.Bool else -1)
