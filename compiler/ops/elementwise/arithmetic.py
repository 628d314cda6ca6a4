"""Lowers arithmetic, powers, minima and maxima, rounding, division, transcendental functions and activations.

Eager rejects integer division by zero. Compiled code computes 0 for it, then checks whether the divisor has a zero; if
so, it falls back to eager, which raises.
"""

from __future__ import annotations

import math as pymath

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.elementwise.builder import (
    COMPUTE_TYPES,
    as_scalar,
    elementwise,
    lower_expression,
    ops_registry,
    rounded_operands,
    widened,
)
from buddy.compiler.ops.func import eager_call
from buddy.compiler.ops.matrices.stack import results_or_eager
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.utils import Lowering, Results, SymbolTable, argument, value_of


@elementwise("AddOp", narrow=True)
def add(x: Scalar, y: Operand, alpha: float = 1) -> Scalar:
    """Returns `x + alpha * y`. For 16-bit floats, eager rounds every operand, including numbers and `alpha`."""
    left, right = rounded_operands(x, y)
    return left + _scale(right, alpha, x.dtype)


@elementwise("SubOp", narrow=True)
def sub(x: Scalar, y: Operand, alpha: float = 1) -> Scalar:
    """Returns `x - alpha * y`, with operands rounded as in `add`."""
    left, right = rounded_operands(x, y)
    return left - _scale(right, alpha, x.dtype)


@elementwise("RsubOp", narrow=True)
def rsub(x: Scalar, y: Operand, alpha: float = 1) -> Scalar:
    """Returns `y - alpha * x`, with operands rounded as in `add`."""
    left, right = rounded_operands(x, y)
    return right - _scale(left, alpha, x.dtype)


def _scale(y: Scalar, alpha: float, dtype: TensorDType) -> Scalar:
    """Returns `alpha * y`, with `alpha` rounded to `dtype`."""
    return y if alpha == 1 else y * cast(as_scalar(alpha, dtype), y.dtype)


@elementwise("MulOp")
def mul(x: Scalar, y: Operand) -> Scalar:
    return x * y


@elementwise("DivOp")
def div(x: Scalar, y: Operand) -> Scalar:
    return x / y


@elementwise("MaximumOp")
def maximum(x: Scalar, y: Operand) -> Scalar:
    return s.maximum(x, y)


@elementwise("MinimumOp")
def minimum(x: Scalar, y: Operand) -> Scalar:
    return s.minimum(x, y)


@elementwise("FmaxOp")
def fmax(x: Scalar, y: Operand) -> Scalar:
    return s.fmax(x, y)


@elementwise("FminOp")
def fmin(x: Scalar, y: Operand) -> Scalar:
    return s.fmin(x, y)


@elementwise("PowOp", narrow=True)
def power(x: Scalar, exponent: Operand) -> Scalar:
    """Returns `x ** exponent`. For 16-bit floats, the exponent is also rounded.

    As in eager, powers of float16 do not use a square root, which differs from the power at -0 and -inf.
    """
    if x.dtype in COMPUTE_TYPES:
        base, rounded = rounded_operands(x, exponent)
        if x.dtype is TensorDType.BFloat16 and exponent in (3, -2):
            return _power_with_rounded_square(x, int(exponent))
        return s.power(base, exponent) if _uses_products(exponent, x.dtype) else s.powf(base, rounded)
    is_small_integer = isinstance(exponent, (bool, int)) and 0 <= exponent <= 4
    return s.power(x, exponent) if x.dtype.is_float or is_small_integer else integers.power(x, exponent)


def _power_with_rounded_square(x: Scalar, exponent: int) -> Scalar:
    """Returns `x ** 3` or `x ** -2` of a 16-bit float, with the square rounded to its type, as in eager."""
    base = cast(x, COMPUTE_TYPES[x.dtype])
    square = cast(cast(base * base, x.dtype), base.dtype)
    return square * base if exponent == 3 else 1.0 / square


def _uses_products(exponent: Operand, dtype: TensorDType) -> bool:
    """True if eager computes this power of a 16-bit float by products or a square root."""
    if not isinstance(exponent, (int, float)):
        return False
    return float(exponent).is_integer() or (abs(exponent) == 0.5 and dtype is TensorDType.BFloat16)


@elementwise("NegOp")
def neg(x: Scalar) -> Scalar:
    return -x


@elementwise("AbsOp")
def absolute(x: Scalar) -> Scalar:
    return s.absolute(x)


@elementwise("SquareOp")
def square(x: Scalar) -> Scalar:
    return x * x


@elementwise("ReciprocalOp")
def reciprocal(x: Scalar) -> Scalar:
    return 1.0 / x


@elementwise("SqrtOp")
def sqrt(x: Scalar) -> Scalar:
    return s.sqrt(x)


@elementwise("RsqrtOp")
def rsqrt(x: Scalar) -> Scalar:
    return 1.0 / s.sqrt(x)


@elementwise("ClampOp")
def clamp(x: Scalar, low: Operand | None = None, high: Operand | None = None) -> Scalar:
    x = x if low is None else s.maximum(x, low)
    return x if high is None else s.minimum(x, high)


@elementwise("HardtanhOp")
def hardtanh(x: Scalar, low: float = -1, high: float = 1) -> Scalar:
    return clamp(x, low, high)


@elementwise("ClampMinOp")
def clamp_min(x: Scalar, low: Operand) -> Scalar:
    return s.maximum(x, low)


@elementwise("ClampMaxOp")
def clamp_max(x: Scalar, high: Operand) -> Scalar:
    return s.minimum(x, high)


@elementwise("FloorOp")
def floor(x: Scalar) -> Scalar:
    return s.floor(x)


@elementwise("CeilOp")
def ceil(x: Scalar) -> Scalar:
    return s.ceil(x)


@elementwise("RoundOp")
def round_half_even(x: Scalar, *, decimals: int = 0) -> Scalar:
    if not decimals or not x.dtype.is_float:
        return s.roundeven(x)
    scale = 10.0 ** abs(decimals)
    return s.roundeven(x * scale) / scale if decimals > 0 else s.roundeven(x / scale) * scale


@elementwise("TruncOp")
def trunc(x: Scalar) -> Scalar:
    return s.trunc(x)


@elementwise("HypotOp", compute_type=TensorDType.Float64)
def hypot(x: Scalar, y: Operand) -> Scalar:
    """Returns sqrt(x² + y²), computed on scaled operands if a square would overflow or underflow.

    The factor is a power of two, so scaling is exact.
    """
    a, b = s.absolute(x), s.absolute(x.like(y))
    larger = s.fmax(a, b)
    scale = s.select(larger > 2.0**500, x.like(2.0**-600), s.select(larger < 2.0**-500, x.like(2.0**600), x.like(1)))
    root = s.sqrt(s.fma(a * scale, a * scale, (b * scale) * (b * scale))) / scale
    is_infinite = larger.compare("eq", float("inf"))
    return s.select(is_infinite, larger, root)


# ---- division --------------------------------------------------------------------------------------------------------


def divide_rounded(x: Scalar, y: Operand, rounding_mode: str | None = "floor") -> Scalar:
    """Divides; `rounding_mode` is "floor", the only one of `floor_divide`, or "trunc", or `None` for no rounding.

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

    flag = st.reduce([(value, dtype)], shape, list(range(len(shape))), 0, flag_type, body)
    return st.reshape(flag, [1], flag_type)


for _name in ("DivTensorModeOp", "RemainderOp", "FmodOp"):
    ops_registry[_name] = _with_zero_check(ops_registry[_name])


# ---- functions and activations ---------------------------------------------------------------------------------------


SQRT1_2 = pymath.sqrt(0.5)
SQRT_2_OVER_PI = pymath.sqrt(2.0 / pymath.pi)


for _name, _function in {
    "ExpOp": s.exp, "Exp2Op": s.exp2, "Expm1Op": s.expm1, "LogOp": s.log, "Log2Op": s.log2, "Log1pOp": s.log1p,
    "Log10Op": s.log10, "ErfOp": s.erf, "SinOp": s.sin, "CosOp": s.cos, "TanOp": s.tan, "AsinOp": s.asin,
    "AcosOp": s.acos, "AtanOp": s.atan, "SinhOp": s.sinh, "CoshOp": s.cosh, "TanhOp": s.tanh, "AsinhOp": s.asinh,
    "AcoshOp": s.acosh, "AtanhOp": s.atanh,
}.items():  # fmt: skip
    elementwise(_name)(_function)


@elementwise("Atan2Op")
def atan2(y: Scalar, x: Operand) -> Scalar:
    return s.atan2(y, x)


@elementwise("SigmoidOp")
def sigmoid(x: Scalar) -> Scalar:
    return 1.0 / (1.0 + s.exp(-x))


@elementwise("SiluOp")
def silu(x: Scalar) -> Scalar:
    return x / (1.0 + s.exp(-x))


@elementwise("ReluOp")
def relu(x: Scalar) -> Scalar:
    return s.maximum(x, 0)


@elementwise("LeakyReluOp")
def leaky_relu(x: Scalar, negative_slope: float = 0.01) -> Scalar:
    return s.select(x > 0, x, x * negative_slope)


@elementwise("EluOp")
def elu(x: Scalar, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Scalar:
    return s.select(x <= 0, s.expm1(x * input_scale) * (alpha * scale), x * scale)


@elementwise("HardsigmoidOp", narrow=True)
def hardsigmoid(x: Scalar) -> Scalar:
    wide = widened(x)
    return _divided_by_6(clamp(wide + 3.0, 0.0, 6.0), x.dtype)


@elementwise("HardswishOp", narrow=True)
def hardswish(x: Scalar) -> Scalar:
    wide = widened(x)
    return _divided_by_6(wide * clamp(wide + 3.0, 0.0, 6.0), x.dtype)


def _divided_by_6(x: Scalar, rounded_to: TensorDType) -> Scalar:
    """Returns `x / 6`, which the caller rounds to `rounded_to`.

    If that has 16 bits, multiplies by 1/6, which is several times as fast.
    After rounding, `hardsigmoid` and `hardswish` return the same as with a division, for each argument of 16 bits.
    """
    return x / 6.0 if x.dtype is rounded_to else x * (1.0 / 6.0)


@elementwise("GeluOp")
def gelu(x: Scalar, *, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + s.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + s.erf(x * SQRT1_2))
