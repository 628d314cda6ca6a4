"""Element-wise ops as expressions: plain Python per op; broadcasting and promotion belong to the decorator."""

from __future__ import annotations

import inspect
import math as pymath
from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import Size
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Operand, Scalar, cast
from buddy.compiler.ops.structured import pointwise
from buddy.compiler.ops.utils import SymbolTable, value_of

ops_registry = Registry()

SQRT1_2 = pymath.sqrt(0.5)
SQRT_2_OVER_PI = pymath.sqrt(2.0 / pymath.pi)

# Half types are computed in f32 and rounded once at the end, as PyTorch's CPU kernels do.
_COMPUTE_IN = {TensorDType.Float16: TensorDType.Float32, TensorDType.BFloat16: TensorDType.Float32}


def elementwise(*names: str, among_operands: bool = False, uncast: Sequence[int] = ()) -> Callable[[Any], Any]:
    """Register the decorated expression as the lowering of the op classes `names`.

    The expression gets a `Scalar` for each tensor argument and Python values for the rest. Tensor elements arrive in
    the result's element type, or, with `among_operands`, in the type that the operands promote to (comparisons); those
    at the positions `uncast` arrive as they are.
    """

    def decorate(body: Callable[..., Scalar]) -> Callable[..., Scalar]:
        def lower(node: Op, symbol_table: SymbolTable) -> Any:
            return lower_expression(node, symbol_table, body, among_operands, uncast)

        for name in names:
            ops_registry[name] = lower
        return body

    return decorate


def lower_expression(
    node: Op,
    symbol_table: SymbolTable,
    body: Callable[..., Scalar],
    among_operands: bool = False,
    uncast: Sequence[int] = (),
) -> Any:
    """One `linalg.generic` that computes `body` for every element of the node's result; see `elementwise`."""
    meta = node.tensor_meta
    compute = promoted(node.args) if among_operands else meta.dtype
    compute = _COMPUTE_IN.get(compute, compute)
    known = inspect.signature(body).parameters
    keywords = {key: value for key, value in node.kwargs.items() if key in known}
    positions = [i for i, arg in enumerate(node.args) if isinstance(arg, Op)]
    inputs = [(value_of(node.args[i], symbol_table), node.args[i].tensor_meta.dtype) for i in positions]

    def element(*elements: Scalar) -> Scalar:
        arguments = list(node.args)
        for i, x in zip(positions, elements, strict=True):
            arguments[i] = x if i in uncast else cast(x, compute)
        if not positions or not isinstance(arguments[0], Scalar):
            arguments[0] = _as_scalar(arguments[0], compute)
        return cast(body(*arguments, **keywords), meta.dtype)

    return pointwise(inputs, meta.shape, meta.dtype, element)


def _as_scalar(value: Any, dtype: TensorDType) -> Scalar:
    if isinstance(value, Size):
        return cast(s.size_scalar(value), dtype)
    return Scalar(s.constant(value, dtype), dtype)


def promoted(arguments: Sequence[Any]) -> TensorDType:
    """The element type that PyTorch's promotion gives: categories bool < integer < float, then width.

    A tensor without dims, and a Python number, only count when their category is higher than that of all before.
    """
    metas = [arg.tensor_meta for arg in arguments if isinstance(arg, Op)]
    numbers = [_number_type(arg) for arg in arguments if isinstance(arg, (bool, int, float))]
    result: TensorDType | None = None
    for found in ([m.dtype for m in metas if m.shape], [m.dtype for m in metas if not m.shape], numbers):
        widest = _widest(found)
        if widest is not None and (result is None or _category(widest) > _category(result)):
            result = widest
    assert result is not None
    return result


def _number_type(value: bool | int | float) -> TensorDType:
    if isinstance(value, bool):
        return TensorDType.Bool
    return TensorDType.Int64 if isinstance(value, int) else TensorDType.Float32


def _category(dtype: TensorDType) -> int:
    return 2 if dtype.is_float else 1 if dtype.is_integer else 0


_WIDTH = {t: i for i, t in enumerate(TensorDType)}


def _widest(types: Sequence[TensorDType]) -> TensorDType | None:
    if {TensorDType.Float16, TensorDType.BFloat16} <= set(types):
        types = [*types, TensorDType.Float32]
    if TensorDType.UInt8 in types and TensorDType.Int8 in types:
        types = [*types, TensorDType.Int16]
    return max(types, key=lambda t: (_category(t), _WIDTH[t]), default=None)


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@elementwise("AddOp")
def add(x: Scalar, y: Operand, *, alpha: float = 1) -> Scalar:
    return x + y if alpha == 1 else x + x.like(y) * alpha


@elementwise("SubOp")
def sub(x: Scalar, y: Operand, *, alpha: float = 1) -> Scalar:
    return x - y if alpha == 1 else x - x.like(y) * alpha


@elementwise("RsubOp")
def rsub(x: Scalar, y: Operand, alpha: float = 1) -> Scalar:
    return y - x if alpha == 1 else y - x * alpha


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


@elementwise("PowOp")
def power(x: Scalar, exponent: Operand) -> Scalar:
    return s.power(x, exponent)


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


@elementwise("ClampOp", "HardtanhOp")
def clamp(x: Scalar, low: Operand | None = None, high: Operand | None = None) -> Scalar:
    x = x if low is None else s.maximum(x, low)
    return x if high is None else s.minimum(x, high)


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
def round_half_even(x: Scalar) -> Scalar:
    return s.roundeven(x)


@elementwise("TruncOp")
def trunc(x: Scalar) -> Scalar:
    return s.trunc(x)


# ---- transcendental functions and activations ------------------------------------------------------------------------


def _direct(name: str, function: Callable[[Scalar], Scalar]) -> None:
    elementwise(name)(lambda x: function(x))


for _name, _function in {
    "ExpOp": s.exp, "Exp2Op": s.exp2, "Expm1Op": s.expm1, "LogOp": s.log, "Log2Op": s.log2, "Log1pOp": s.log1p,
    "ErfOp": s.erf, "TanhOp": s.tanh, "SinOp": s.sin, "CosOp": s.cos,
}.items():  # fmt: skip
    _direct(_name, _function)


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


@elementwise("HardsigmoidOp")
def hardsigmoid(x: Scalar) -> Scalar:
    return clamp(x + 3.0, 0.0, 6.0) / 6.0


@elementwise("HardswishOp")
def hardswish(x: Scalar) -> Scalar:
    return x * clamp(x + 3.0, 0.0, 6.0) / 6.0


@elementwise("GeluOp")
def gelu(x: Scalar, *, approximate: str = "none") -> Scalar:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + s.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + s.erf(x * SQRT1_2))


# ---- comparison, logic, choice, casts --------------------------------------------------------------------------------


def _comparison(name: str, relation: str) -> None:
    elementwise(name, among_operands=True)(lambda x, y: x.compare(relation, y))


for _name, _relation in {
    "EqualOp": "eq", "NeOp": "ne", "LtOp": "lt", "LeOp": "le", "GtOp": "gt", "GeOp": "ge",
}.items():  # fmt: skip
    _comparison(_name, _relation)


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


@elementwise("IsNanOp", among_operands=True)
def isnan(x: Scalar) -> Scalar:
    return x.compare("ne", x)


@elementwise("WhereOp", uncast=(0,))
def where(condition: Scalar, yes: Operand, no: Operand) -> Scalar:
    shaped = no if isinstance(no, Scalar) else yes
    if not isinstance(shaped, Scalar):
        return _choice_of_numbers(condition, yes, no)
    return s.select(condition, shaped.like(yes), shaped.like(no))


def _choice_of_numbers(condition: Scalar, yes: Any, no: Any) -> Scalar:
    kind = promoted((yes, no))
    return s.select(condition, _as_scalar(yes, kind), _as_scalar(no, kind))


@elementwise("MaskedFillOp", uncast=(1,))
def masked_fill(x: Scalar, mask: Scalar, value: Operand) -> Scalar:
    return s.select(mask, x.like(value), x)


@elementwise("ConvertElementTypeOp", uncast=(0,))
def convert(x: Scalar, _dtype: object = None) -> Scalar:
    """The result's element type says all; prims also pass it by position."""
    return x
