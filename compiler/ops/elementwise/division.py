"""Division with a rounding mode, remainders and divisors.

Eager rejects integer division by zero. Compiled code returns 0 for it, checks the divisor for zeros once, and falls
back to eager if it finds one; eager then raises.
"""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.elementwise.builder import elementwise, lower_expression, ops_registry, rounded_operands
from buddy.compiler.ops.func import eager_call
from buddy.compiler.ops.matrices.stack import results_or_eager
from buddy.compiler.ops.registry import Lowering
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.utils import SymbolTable, argument, value_of


def div(x: Scalar, y: Operand, rounding_mode: str | None = "floor") -> Scalar:
    """Divides with a rounding mode; `floor_divide` passes no mode and means `floor`.

    For half types, eager rounds a tensor divisor to the half type, but not a number; the quotient by a tensor is also
    rounded before it is truncated.
    """
    wide, divisor = rounded_operands(x, y)
    if not isinstance(y, Scalar) or y.dtype is not x.dtype:
        divisor = wide.like(y)
    if not x.dtype.is_float:
        return (integers.floor_divided if rounding_mode == "floor" else integers.divided)(wide, divisor)[0]
    if rounding_mode == "floor":
        return _floor_divide(wide, divisor)
    quotient = wide / divisor
    if rounding_mode != "trunc":
        return quotient
    return s.trunc(cast(cast(quotient, x.dtype), wide.dtype) if isinstance(y, Scalar) else quotient)


@ops_registry.lowering("DivTensorModeOp")
def div_with_rounding(node: Op, symbol_table: SymbolTable) -> Any:
    """Treats a zero-dimensional divisor like a number: it is not rounded to the result's type."""
    divisor = argument(node, 1, "other")
    keep_type = isinstance(divisor, Op) and not divisor.tensor_meta.shape and bool(node.tensor_meta.shape)
    return lower_expression(node, symbol_table, div, uncast=(1,) if keep_type else (), narrow=True)


def _floor_divide(x: Scalar, y: Scalar) -> Scalar:
    """Computes the floor from the remainder, as in Python: the floor of a rounded quotient may be one too high."""
    rest = s.fmod(x, y)
    quotient = (x - rest) / y
    quotient = s.select(rest.compare("ne", 0) & ((y < 0) ^ (rest < 0)), quotient - 1, quotient)
    floor = s.floor(quotient)
    floor = s.select(quotient - floor > 0.5, floor + 1, floor)
    floor = s.select(quotient.compare("eq", 0), s.copysign(x.like(0), x / y), floor)
    return s.select(y.compare("eq", 0), x / y, floor)


def _remainder(x: Scalar, y: Scalar) -> Scalar:
    rest = s.fmod(x, y)
    return s.select(rest.compare("ne", 0) & ((y < 0) ^ (rest < 0)), rest + y, rest)


@elementwise("RemainderOp", narrow=True)
def remainder(x: Scalar, y: Operand) -> Scalar:
    """Returns the remainder with the divisor's sign. For half types eager rounds the divisor to their type."""
    return _remainder(*rounded_operands(x, y)) if x.dtype.is_float else integers.floor_divided(x, y)[1]


@elementwise("FmodOp", narrow=True)
def fmod(x: Scalar, y: Operand) -> Scalar:
    """Returns the remainder with the dividend's sign. For half types eager rounds the divisor to their type."""
    return s.fmod(*rounded_operands(x, y)) if x.dtype.is_float else integers.divided(x, y)[1]


@elementwise("GcdOp")
def gcd(x: Scalar, y: Operand) -> Scalar:
    return integers.greatest_divisor(x, y)


@elementwise("LcmOp")
def lcm(x: Scalar, y: Operand) -> Scalar:
    return integers.least_multiple(x, y)


_ZERO_DIVISOR = "an integer divisor is 0"


def _with_zero_check(lower: Lowering) -> Lowering:
    """Wraps the division `lower` with a check that falls back to eager on integer division by zero."""

    def lowered(node: Op, symbol_table: SymbolTable) -> Any:
        divisor, meta = argument(node, 1, "other"), node.tensor_meta
        if meta.dtype.is_float or 0 in meta.shape:
            return lower(node, symbol_table)
        if not isinstance(divisor, Op):
            return lower(node, symbol_table) if divisor != 0 else eager_call(node, symbol_table, _ZERO_DIVISOR)
        results = [lower(node, symbol_table)]
        return results_or_eager(_has_zero(divisor, symbol_table), node, symbol_table, results, _ZERO_DIVISOR)[0]

    return lowered


def _has_zero(divisor: Op, symbol_table: SymbolTable) -> Any:
    """Returns an i32 tensor [1]: 1 if an element of the divisor is 0, else 0."""
    value, dtype = value_of(divisor, symbol_table), divisor.tensor_meta.dtype
    shape, flag = st.shape_of(value), TensorDType.Int32

    def body(x: Scalar, found: Scalar) -> Scalar:
        return found | cast(x.compare("eq", 0), flag)

    return st.reshape(st.reduce([(value, dtype)], shape, list(range(len(shape))), False, 0, flag, body), [1], flag)


for _name in ("DivTensorModeOp", "RemainderOp", "FmodOp"):
    ops_registry[_name] = _with_zero_check(ops_registry[_name])
