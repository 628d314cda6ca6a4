"""Lowers arithmetic, powers, minima and maxima, and rounding."""

from __future__ import annotations

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import integers
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import COMPUTE_TYPES, as_scalar, elementwise, rounded_operands
from buddy.compiler.ops.scalar import Operand, Scalar, cast


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
