"""Lowers comparison, selection, casts, and ops on the bits of a number."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable

from buddy.compiler.graph.node import Op, argument
from buddy.compiler.graph.operations import ClampOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import (
    as_scalar,
    elementwise,
    lower_expression,
    ops_registry,
    promoted_type,
    rounded_operands,
)
from buddy.compiler.ops.integers import bits_of, from_bits
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.structured import pointwise
from buddy.compiler.ops.utils import LoweringError, Results, SymbolTable, constant, value_of

BOOL = TensorDType.Bool


def _register_comparison(name: str, relation: str) -> None:
    """Registers a lowering of a comparison; `relation` is that of `Scalar.compare`."""

    @elementwise(name, among_operands=True, narrow=True)
    def compare(x: Scalar, y: Operand) -> Scalar:
        """Compares two operands; for 16-bit floats, a number is first rounded to their type, as in eager."""
        left, right = rounded_operands(x, y)
        return left.compare(relation, right)


for _name, _relation in {
    "EqualOp": "eq", "NeOp": "ne", "LtOp": "lt", "LeOp": "le", "GtOp": "gt", "GeOp": "ge",
}.items():  # fmt: skip
    _register_comparison(_name, _relation)


@elementwise("IsNanOp", among_operands=True)
def isnan(x: Scalar) -> Scalar:
    return x.compare("ne", x)


@elementwise("IsInfOp", among_operands=True)
def isinf(x: Scalar) -> Scalar:
    return s.absolute(x).compare("eq", pymath.inf) if x.dtype.is_float else Scalar(constant(False, BOOL), BOOL)


@elementwise("WhereOp", uncast=(0,))
def where(condition: Scalar, if_true: Operand, if_false: Operand) -> Scalar:
    scalar = if_false if isinstance(if_false, Scalar) else if_true
    if not isinstance(scalar, Scalar):
        return _select_number(condition, if_true, if_false)
    return s.select(condition, scalar.like(if_true), scalar.like(if_false))


def _select_number(condition: Scalar, if_true: Operand, if_false: Operand) -> Scalar:
    """Selects one of two Python numbers, in the type that both promote to."""
    dtype = promoted_type((if_true, if_false))
    return s.select(condition, as_scalar(if_true, dtype), as_scalar(if_false, dtype))


@elementwise("MaskedFillOp", uncast=(1,))
def masked_fill(x: Scalar, mask: Scalar, value: Operand) -> Scalar:
    return s.select(mask, x.like(value), x)


@elementwise("ConvertElementTypeOp", uncast=(0,))
def convert(x: Operand, _dtype: object = None) -> Scalar:
    """Returns `x`, a tensor or under `vmap` a number; the builder casts it to the result's type."""
    if isinstance(x, Scalar):
        return x
    return as_scalar(x, TensorDType.Float64 if isinstance(x, float) else TensorDType.Int64)


_unclamped_convert = ops_registry["ConvertElementTypeOp"]


@ops_registry.lowering("ConvertElementTypeOp")
def convert_clamped(node: Op, symbol_table: SymbolTable) -> Results:
    """Lowers casts; floats that are clamped to the range of 32-bit integers become bytes through 32-bit integers.

    Eager casts through 64-bit integers, for which some processors have no vector instructions.
    """
    clamp, meta = node.args[0], node.tensor_meta
    if meta.dtype is not TensorDType.UInt8 or not isinstance(clamp, ClampOp):
        return _unclamped_convert(node, symbol_table)
    bounds = [argument(clamp, 1, "min"), argument(clamp, 2, "max")]
    dtype = clamp.tensor_meta.dtype
    if not dtype.is_float or not all(isinstance(end, (int, float)) and abs(end) <= _FITS_INTO_I32 for end in bounds):
        return _unclamped_convert(node, symbol_table)
    operand = (value_of(clamp, symbol_table), dtype)
    return pointwise([operand], meta.shape, meta.dtype, lambda x: cast(cast(x, TensorDType.Int32), meta.dtype))


# A bound below 2**31 that floats represent exactly.
_FITS_INTO_I32 = 2**30


# Width of the mantissa in bits.
_MANTISSA_BITS = {TensorDType.Float32: 23, TensorDType.Float64: 52}


@elementwise("SignbitOp", among_operands=True)
def signbit(x: Scalar) -> Scalar:
    return (bits_of(x) if x.dtype.is_float else x) < 0


@elementwise("SignOp")
def sign(x: Scalar) -> Scalar:
    """Returns -1, 0 or 1; 0 for NaN and both zeros."""
    return cast(x > 0, x.dtype) if x.is_unsigned else cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


@elementwise("CopysignOp")
def copysign(x: Scalar, y: Operand) -> Scalar:
    return s.copysign(x, y)


@elementwise("AngleOp")
def angle(x: Scalar) -> Scalar:
    """Returns π for negative numbers, 0 for others, and NaN for NaN."""
    return s.select(x.compare("ne", x), x, s.select(x < 0, x.like(pymath.pi), x.like(0)))


@elementwise("NextafterOp", narrow=True)
def nextafter(x: Scalar, y: Operand) -> Scalar:
    """Returns the next number after `x` towards `y`: adds 1 to the bits, or subtracts 1, as for integers."""
    y = x.like(y)
    bits, is_zero = bits_of(x), x.compare("eq", 0)
    is_away_from_zero = ((x < y) ^ (x < 0)) & (is_zero ^ True)
    neighbour = from_bits(s.select(is_away_from_zero, bits + 1, bits - 1), x.dtype)
    smallest = s.copysign(from_bits(bits.like(1), x.dtype), y)
    result = s.select(x.compare("eq", y), y, s.select(is_zero, smallest, neighbour))
    return s.select(x.compare("ne", x) | y.compare("ne", y), x + y, result)


def _mantissa_and_exponent(x: Scalar) -> tuple[Scalar, Scalar]:
    """Returns `(m, n)` with x = m 2^n and |m| in [1/2, 1); m is x for zeros, infinities and NaN."""
    mantissa_width = _MANTISSA_BITS[x.dtype]
    bias = (1 << (bits_of(x).value.type.width - mantissa_width - 2)) - 1
    # A subnormal number is first multiplied by a power of two that makes it normal.
    is_subnormal = s.absolute(x) < 2.0 ** (1 - bias)
    bits = bits_of(s.select(is_subnormal, x * 2.0 ** (mantissa_width + 2), x))
    exponent_mask = bits.like(2 * bias + 1)
    exponent = integers.shift_right(bits, mantissa_width) & exponent_mask
    # The exponent `bias - 1` is that of numbers in [1/2, 1).
    mantissa_bits = (bits & (-1 ^ ((2 * bias + 1) << mantissa_width))) | ((bias - 1) << mantissa_width)
    is_special = x.compare("eq", 0) | exponent.compare("eq", 2 * bias + 1)
    scaling = s.select(is_subnormal, bits.like(mantissa_width + 2), bits.like(0))
    exponent = s.select(is_special, bits.like(0), exponent - scaling - (bias - 1))
    return s.select(is_special, x, from_bits(mantissa_bits, x.dtype)), exponent


@ops_registry.lowering("FrexpOp")
def frexp(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    parts = (lambda x: _mantissa_and_exponent(x)[0], lambda x: _mantissa_and_exponent(x)[1])
    return [lower_expression(node, symbol_table, part, among_operands=True, result=i) for i, part in enumerate(parts)]


@elementwise("LdexpOp", uncast=(1,))
def ldexp(x: Scalar, exponent: Operand) -> Scalar:
    """Returns x times 2 to the power of `exponent`.

    For an integer exponent the result is rounded once, as in C. For a float exponent, multiplies by 2^exponent.
    """
    if not isinstance(exponent, Scalar) or exponent.dtype.is_float:
        return x * s.exp2(x.like(exponent))
    mantissa, x_exponent = _mantissa_and_exponent(cast(x, TensorDType.Float64))
    total = s.minimum(s.maximum(cast(exponent, TensorDType.Int64), -5000), 5000) + x_exponent
    # A power of two with this exponent may overflow, so the product has two factors.
    first = s.minimum(s.maximum(total, -1000), 1000)
    second = s.minimum(s.maximum(total - first, -1000), 1000)
    return cast(mantissa * _power_of_two(first) * _power_of_two(second), x.dtype)


def _power_of_two(exponent: Scalar) -> Scalar:
    """Returns 2 to the power of `exponent`, which is from -1022 to 1023."""
    return from_bits(integers.shift_left(exponent + 1023, _MANTISSA_BITS[TensorDType.Float64]), TensorDType.Float64)


def _register_shift(name: str, function: Callable[..., Scalar]) -> None:
    """Registers a lowering of a shift, which raises `LoweringError` for floats."""

    @elementwise(name)
    def shift(x: Scalar, by: Operand) -> Scalar:
        if x.dtype.is_float:
            raise LoweringError("a float cannot be shifted")
        return function(x, by)


_register_shift("BitwiseLeftShiftOp", integers.shift_left)
_register_shift("BitwiseRightShiftOp", integers.shift_right)


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
