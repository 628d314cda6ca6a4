"""Lowers division with a rounding mode, remainders, gcd and lcm.

Eager rejects integer division by zero. Compiled code computes 0 for it, then checks whether the divisor has a zero; if
so, it falls back to eager, which raises.
"""

from __future__ import annotations

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.elementwise.builder import elementwise, lower_expression, ops_registry, rounded_operands
from buddy.compiler.ops.func import eager_call
from buddy.compiler.ops.matrices.stack import results_or_eager
from buddy.compiler.ops.registry import Lowering, Results
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.utils import SymbolTable, argument, value_of


def divide_rounded(x: Scalar, y: Operand, rounding_mode: str | None = "floor") -> Scalar:
    """Divides with a rounding mode; the default `floor` is for `floor_divide`, which has no such argument.

    For 16-bit floats, eager rounds a tensor divisor to their type, but not a number; it also rounds the quotient by a
    tensor before it truncates the quotient.
    """
    wide, divisor = rounded_operands(x, y)
    if not isinstance(y, Scalar) or y.dtype is not x.dtype:
        divisor = wide.like(y)
    if not x.dtype.is_float:
        return (integers.floor_divide if rounding_mode == "floor" else integers.divide)(wide, divisor)[0]
    if rounding_mode == "floor":
        return _floor_divide(wide, divisor)
    quotient = wide / divisor
    if rounding_mode != "trunc":
        return quotient
    return s.trunc(cast(cast(quotient, x.dtype), wide.dtype) if isinstance(y, Scalar) else quotient)


@ops_registry.lowering("DivTensorModeOp")
def div_with_rounding(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers a division; like a number, a zero-dimensional divisor is not rounded to the result's type."""
    divisor = argument(node, 1, "other")
    is_uncast = isinstance(divisor, Op) and not divisor.tensor_meta.shape and bool(node.tensor_meta.shape)
    return lower_expression(node, symbol_table, divide_rounded, uncast=(1,) if is_uncast else (), narrow=True)


def _floor_divide(x: Scalar, y: Scalar) -> Scalar:
    """Computes the floor from the remainder, as Python does: the floor of a rounded quotient may be one too high."""
    remainder = s.fmod(x, y)
    quotient = (x - remainder) / y
    quotient = s.select(remainder.compare("ne", 0) & ((y < 0) ^ (remainder < 0)), quotient - 1, quotient)
    floor = s.floor(quotient)
    floor = s.select(quotient - floor > 0.5, floor + 1, floor)
    floor = s.select(quotient.compare("eq", 0), s.copysign(x.like(0), x / y), floor)
    return s.select(y.compare("eq", 0), x / y, floor)


def _remainder(x: Scalar, y: Scalar) -> Scalar:
    """Returns the remainder of floats with the divisor's sign."""
    result = s.fmod(x, y)
    return s.select(result.compare("ne", 0) & ((y < 0) ^ (result < 0)), result + y, result)


@elementwise("RemainderOp", narrow=True)
def remainder(x: Scalar, y: Operand) -> Scalar:
    """Returns the remainder with the divisor's sign. For 16-bit floats, eager rounds the divisor to their type."""
    return _remainder(*rounded_operands(x, y)) if x.dtype.is_float else integers.floor_divide(x, y)[1]


@elementwise("FmodOp", narrow=True)
def fmod(x: Scalar, y: Operand) -> Scalar:
    """Returns the remainder with the dividend's sign. For 16-bit floats, eager rounds the divisor to their type."""
    return s.fmod(*rounded_operands(x, y)) if x.dtype.is_float else integers.divide(x, y)[1]


@elementwise("GcdOp")
def gcd(x: Scalar, y: Operand) -> Scalar:
    return integers.greatest_common_divisor(x, y)


@elementwise("LcmOp")
def lcm(x: Scalar, y: Operand) -> Scalar:
    return integers.least_common_multiple(x, y)


_ZERO_DIVISOR = "an integer divisor is 0"


def _with_zero_check(lower: Lowering) -> Lowering:
    """Wraps the division `lower` with a check that falls back to eager on integer division by zero."""

    def checked_lower(node: Op, symbol_table: SymbolTable) -> Results:
        divisor, meta = argument(node, 1, "other"), node.tensor_meta
        if meta.dtype.is_float or 0 in meta.shape:
            return lower(node, symbol_table)
        if not isinstance(divisor, Op):
            return lower(node, symbol_table) if divisor != 0 else eager_call(node, symbol_table, _ZERO_DIVISOR)
        quotient = lower(node, symbol_table)
        assert isinstance(quotient, ir.Value)
        return results_or_eager(_has_zero(divisor, symbol_table), node, symbol_table, [quotient], _ZERO_DIVISOR)[0]

    return checked_lower


def _has_zero(divisor: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns an i32 tensor [1]: 1 if an element of the divisor is 0, else 0."""
    value, dtype = value_of(divisor, symbol_table), divisor.tensor_meta.dtype
    shape, flag_type = st.shape_of(value), TensorDType.Int32

    def body(x: Scalar, flag: Scalar) -> Scalar:
        return flag | cast(x.compare("eq", 0), flag_type)

    flag = st.reduce([(value, dtype)], shape, list(range(len(shape))), False, 0, flag_type, body)
    return st.reshape(flag, [1], flag_type)


for _name in ("DivTensorModeOp", "RemainderOp", "FmodOp"):
    ops_registry[_name] = _with_zero_check(ops_registry[_name])
