"""Lowers element-wise ops to one TOSA op, or to an equivalent expression of TOSA ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.elementwise.arithmetic import SQRT1_2, SQRT_2_OVER_PI
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.tensors import (
    HALVES,
    Number,
    Operand,
    TosaTensor,
    binary,
    cast,
    clamp,
    expand_to,
    is_equal,
    is_exact,
    logical_not,
    select,
    truncate,
    unary,
)
from buddy.compiler.ops.utils import LoweringError, Registry, Results, SymbolTable

ops_registry = Registry()
elementwise = partial(registration.elementwise, ops_registry)

# ---- arithmetic ------------------------------------------------------------------------------------------------------


@elementwise("AddOp", rounds=True)
def add(x: TosaTensor, y: Operand, *, alpha: Number = 1) -> TosaTensor:
    return x + (y if alpha == 1 else x.like(y) * alpha)


@elementwise("SubOp", rounds=True)
def sub(x: TosaTensor, y: Operand, *, alpha: Number = 1) -> TosaTensor:
    return x - (y if alpha == 1 else x.like(y) * alpha)


@elementwise("RsubOp", rounds=True)
def rsub(x: TosaTensor, y: Operand, alpha: Number = 1) -> TosaTensor:
    return y - (x if alpha == 1 else x * alpha)


@elementwise("MulOp")
def mul(x: TosaTensor, y: Operand) -> TosaTensor:
    if not isinstance(y, TosaTensor) and y == 0 and x.dtype.is_float:
        raise LoweringError("TOSA's folder replaces a product with 0 by 0, also for NaN and infinities")
    return x * y


@elementwise("DivOp")
def div(x: TosaTensor, y: Operand) -> TosaTensor:
    """Computes `x * (1 / y)` for a power of two `y`, where this is exact; TOSA has no float division."""
    if isinstance(y, TosaTensor) or not _is_power_of_two(y):
        raise LoweringError("no float division, and a product with the reciprocal would round twice")
    return x * (1.0 / y)


def _is_power_of_two(value: Number) -> bool:
    """True if `value` is a power of two whose reciprocal is a normal f32 (and so exact)."""
    return 2.0**-100 <= abs(value) <= 2.0**100 and abs(math.frexp(value)[0]) == 0.5


def _register_binary(name: str, op: str) -> None:
    elementwise(name)(lambda x, y: binary(op, x, y))


_register_binary("MaximumOp", "maximum")
_register_binary("MinimumOp", "minimum")


@elementwise("PowOp", composed=True, rounds=True)
def power(x: TosaTensor, exponent: Operand) -> TosaTensor:
    """Returns `x ** exponent`. Emits products for small integers, as eager does; `tosa.pow` takes only floats."""
    if isinstance(exponent, TosaTensor):
        return binary("pow", x, exponent)
    if exponent == 0:
        return x.like(1)
    if exponent == 0.5:
        raise LoweringError("no square root; a power differs from the root at -0.0 and -inf")
    if exponent == -0.5:
        return unary("rsqrt", x)
    if float(exponent).is_integer() and 1 <= abs(exponent) <= 4:
        product = _small_power(x, int(abs(exponent)))
        return product if exponent > 0 else unary("reciprocal", product)
    return binary("pow", x, exponent)


_unchecked_power = ops_registry["PowOp"]


@ops_registry.lowering("PowOp")
def checked_power(node: Op, symbol_table: SymbolTable) -> Results:
    """Rejects powers of 16-bit floats that differ from eager's, which rounds exponents and squares to the type."""
    exponent, dtype = node.args[1], node.tensor_meta.dtype
    if dtype in HALVES and not isinstance(exponent, Op) and not is_exact(exponent, dtype):
        raise LoweringError(f"the exponent would not be rounded to {dtype.value}")
    if exponent == -0.5 and dtype is TensorDType.Float16:
        raise LoweringError("a reciprocal root differs from eager's power of f16 at -0.0 and -inf")
    if exponent in (3, -2) and dtype is TensorDType.BFloat16:
        raise LoweringError("the square, which eager rounds to bf16, would not be rounded")
    return _unchecked_power(node, symbol_table)


def _small_power(x: TosaTensor, exponent: int) -> TosaTensor:
    """Returns `x ** exponent` for an exponent from 1 to 4."""
    if exponent == 1:
        return x
    square = x * x
    return square if exponent == 2 else square * (x if exponent == 3 else square)


@elementwise("NegOp")
def neg(x: TosaTensor) -> TosaTensor:
    return -x


@elementwise("SquareOp")
def square(x: TosaTensor) -> TosaTensor:
    return x * x


@elementwise("ClampOp")
def clamp_between(x: TosaTensor, low: Operand | None = None, high: Operand | None = None) -> TosaTensor:
    if isinstance(low, TosaTensor) or isinstance(high, TosaTensor):
        x = x if low is None else binary("maximum", x, low)
        return x if high is None else binary("minimum", x, high)
    return clamp(x, low, high)


@elementwise("HardtanhOp")
def hardtanh(x: TosaTensor, low: Number = -1, high: Number = 1) -> TosaTensor:
    return clamp(x, low, high)


@elementwise("ClampMinOp")
def clamp_min(x: TosaTensor, low: Operand) -> TosaTensor:
    return clamp_between(x, low)


@elementwise("ClampMaxOp")
def clamp_max(x: TosaTensor, high: Operand) -> TosaTensor:
    return clamp_between(x, None, high)


@elementwise("TruncOp")
def trunc(x: TosaTensor) -> TosaTensor:
    return truncate(x)


# ---- functions and activations ---------------------------------------------------------------------------------------


def _register_unary(name: str, op: str) -> None:
    elementwise(name)(lambda x: unary(op, x))


for _name, _op in {
    "AbsOp": "abs", "FloorOp": "floor", "CeilOp": "ceil", "ReciprocalOp": "reciprocal", "RsqrtOp": "rsqrt",
    "ExpOp": "exp", "LogOp": "log", "ErfOp": "erf", "SinOp": "sin", "CosOp": "cos", "TanhOp": "tanh",
}.items():  # fmt: skip
    _register_unary(_name, _op)


@elementwise("SigmoidOp", composed=True)
def sigmoid(x: TosaTensor) -> TosaTensor:
    """Emits `tosa.sigmoid` in f32, also for 16-bit floats, because later passes lower it to several ops."""
    return unary("sigmoid", x)


@elementwise("Exp2Op", composed=True)
def exp2(x: TosaTensor) -> TosaTensor:
    return binary("pow", x.like(2), x)


@elementwise("SiluOp", composed=True)
def silu(x: TosaTensor) -> TosaTensor:
    return x * unary("sigmoid", x)


@elementwise("ReluOp")
def relu(x: TosaTensor) -> TosaTensor:
    return clamp(x, 0, None)


@elementwise("LeakyReluOp", composed=True)
def leaky_relu(x: TosaTensor, negative_slope: float = 0.01) -> TosaTensor:
    return select(x > 0, x, x * negative_slope)


@elementwise("HardsigmoidOp", composed=True)
def hardsigmoid(x: TosaTensor) -> TosaTensor:
    return clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@elementwise("HardswishOp", composed=True)
def hardswish(x: TosaTensor) -> TosaTensor:
    return x * clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


@elementwise("GeluOp", composed=True)
def gelu(x: TosaTensor, *, approximate: str = "none") -> TosaTensor:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + unary("tanh", SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + unary("erf", x * SQRT1_2))


# ---- comparison, logic, selection, casts -----------------------------------------------------------------------------


def _register_comparison(name: str, body: Callable[[TosaTensor, Operand], TosaTensor]) -> None:
    elementwise(name, among_operands=True)(lambda x, y: body(x, y))


_register_comparison("EqualOp", is_equal)
_register_comparison("NeOp", lambda x, y: logical_not(is_equal(x, y)))
_register_comparison("GtOp", lambda x, y: x > y)
_register_comparison("GeOp", lambda x, y: x >= y)
_register_comparison("LtOp", lambda x, y: x < y)
_register_comparison("LeOp", lambda x, y: x <= y)


def _register_logical(name: str, op: str) -> None:
    """Registers a lowering to a logical op on bools, and to a bitwise op on integers."""

    def body(x: TosaTensor, y: Operand) -> TosaTensor:
        return binary(f"logical_{op}" if x.dtype is TensorDType.Bool else f"bitwise_{op}", x, y)

    elementwise(f"Logical{name}Op", f"Bitwise{name}Op")(body)


for _name, _op in {"And": "and", "Or": "or", "Xor": "xor"}.items():
    _register_logical(_name, _op)


@elementwise("LogicalNotOp", "BitwiseNotOp")
def invert(x: TosaTensor) -> TosaTensor:
    return logical_not(x) if x.dtype is TensorDType.Bool else unary("bitwise_not", x)


@elementwise("IsNanOp", among_operands=True)
def is_nan(x: TosaTensor) -> TosaTensor:
    return logical_not(is_equal(x, x))


@registration.lowering(ops_registry, "WhereOp")
def where(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    meta = node.tensor_meta
    rank = len(meta.shape)
    condition = cast(registration.operand(node.args[0], rank, symbol_table), TensorDType.Bool)
    if_true, if_false = (registration.operand(arg, rank, symbol_table, meta.dtype) for arg in node.args[1:3])
    return expand_to(select(condition, if_true, if_false), meta.shape)


@elementwise("MaskedFillOp", uncast=(1,))
def masked_fill(x: TosaTensor, mask: TosaTensor, value: Operand) -> TosaTensor:
    return select(mask, x.like(value), x)


@registration.lowering(ops_registry, "ConvertElementTypeOp")
def convert(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return cast(registration.tensor_of(node.args[0], symbol_table), node.tensor_meta.dtype)


@elementwise("CopyOp")
def copy(x: TosaTensor, y: Operand, _non_blocking: bool = False) -> TosaTensor:
    return x.like(y)


ops_registry.absence_reasons |= {
    "SqrtOp": "no square root, and the reciprocal of `rsqrt` would round twice",
    "RoundOp": "no rounding to nearest",
    "Expm1Op": "no exp(x) - 1 that is accurate for small x",
    "Log1pOp": "no log(1 + x) that is accurate for small x",
    "Log2Op": "no logarithm to base 2; a scaled natural logarithm is inexact at powers of two",
}
