"""`Scalar`: Python expressions on scalars emit `arith` and `math` ops, such as in the body of a `linalg.generic`."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from buddy.compiler.graph.sizes import Size
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, math, scf
from buddy.compiler.ops import float8
from buddy.compiler.ops.sizes import index_value
from buddy.compiler.ops.utils import LoweringError, constant, mlir_element_type_get

# What a scalar can be combined with; numbers and sizes take its element type.
Operand = Union["Scalar", bool, int, float, Size]
# Maps an old value, such as an accumulated one, and a new value to the value that replaces the old one.
Combine = Callable[["Scalar", "Scalar"], "Scalar"]

# The predicates of `arith.cmpf` and `arith.cmpi` for each relation.
_FLOAT_PREDICATES = {"eq": "OEQ", "ne": "UNE", "lt": "OLT", "le": "OLE", "gt": "OGT", "ge": "OGE"}
_SIGNED_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED_PREDICATES = _SIGNED_PREDICATES | {"lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}


@dataclass(frozen=True, eq=False)
class Scalar:
    """One element: an MLIR value with its element type, which also has the signedness, unlike MLIR's integer types."""

    value: ir.Value
    dtype: TensorDType

    @property
    def is_unsigned(self) -> bool:
        return self.dtype.is_unsigned

    def like(self, operand: Operand) -> Scalar:
        """Returns `operand` as a scalar of this element type."""
        if isinstance(operand, Scalar):
            return cast(operand, self.dtype)
        if isinstance(operand, Size):
            return cast(size_scalar(operand), self.dtype)
        return Scalar(constant(operand, self.dtype), self.dtype)

    def _binary(
        self,
        other: Operand,
        float_op: Callable[..., ir.Value],
        int_op: Callable[..., ir.Value],
        bool_op: Callable[..., ir.Value] | None = None,
    ) -> Scalar:
        """Emits the op for this element type on `self` and `other`; bools without a `bool_op` use `int_op`."""
        other = self.like(other)
        if self.dtype.is_float:
            return Scalar(float_op(self.value, other.value), self.dtype)
        op = bool_op if self.dtype is TensorDType.Bool and bool_op else int_op
        return Scalar(op(self.value, other.value), self.dtype)

    def __add__(self, other: Operand) -> Scalar:
        return self._binary(other, arith.addf, arith.addi, arith.ori)

    def __sub__(self, other: Operand) -> Scalar:
        return self._binary(other, arith.subf, arith.subi)

    def __mul__(self, other: Operand) -> Scalar:
        return self._binary(other, arith.mulf, arith.muli, arith.andi)

    def __truediv__(self, other: Operand) -> Scalar:
        if not self.dtype.is_float:
            raise LoweringError(f"no true division of {self.dtype.value}")
        return Scalar(arith.divf(self.value, self.like(other).value), self.dtype)

    def __and__(self, other: Operand) -> Scalar:
        return Scalar(arith.andi(self.value, self.like(other).value), self.dtype)

    def __or__(self, other: Operand) -> Scalar:
        return Scalar(arith.ori(self.value, self.like(other).value), self.dtype)

    def __xor__(self, other: Operand) -> Scalar:
        return Scalar(arith.xori(self.value, self.like(other).value), self.dtype)

    def __radd__(self, other: Operand) -> Scalar:
        return self.like(other) + self

    def __rsub__(self, other: Operand) -> Scalar:
        return self.like(other) - self

    def __rmul__(self, other: Operand) -> Scalar:
        return self.like(other) * self

    def __rtruediv__(self, other: Operand) -> Scalar:
        return self.like(other) / self

    def __neg__(self) -> Scalar:
        if self.dtype.is_float:
            return Scalar(arith.negf(self.value), self.dtype)
        return self.like(0) - self

    def compare(self, relation: str, other: Operand) -> Scalar:
        """Returns a bool scalar; `relation` is "eq", "ne", "lt", "le", "gt" or "ge". With NaN, only "ne" is true."""
        right = self.like(other).value
        if self.dtype.is_float:
            predicate = getattr(arith.CmpFPredicate, _FLOAT_PREDICATES[relation])
            return Scalar(arith.cmpf(predicate, self.value, right), TensorDType.Bool)
        names = _UNSIGNED_PREDICATES if self.is_unsigned else _SIGNED_PREDICATES
        predicate = getattr(arith.CmpIPredicate, names[relation])
        return Scalar(arith.cmpi(predicate, self.value, right), TensorDType.Bool)

    def __lt__(self, other: Operand) -> Scalar:
        return self.compare("lt", other)

    def __le__(self, other: Operand) -> Scalar:
        return self.compare("le", other)

    def __gt__(self, other: Operand) -> Scalar:
        return self.compare("gt", other)

    def __ge__(self, other: Operand) -> Scalar:
        return self.compare("ge", other)


class ComplexScalar(Scalar):
    """One complex number, as two real scalars; `value` is the pair of their MLIR values.

    Operands of its arithmetic may be real, on either side.
    """

    value: Any

    def __init__(self, re: Scalar, im: Scalar) -> None:
        pair: Any = (re.value, im.value)
        super().__init__(pair, re.dtype.complex)

    @property
    def re(self) -> Scalar:
        return Scalar(self.value[0], self.dtype.part)

    @property
    def im(self) -> Scalar:
        return Scalar(self.value[1], self.dtype.part)

    def like(self, operand: Operand) -> ComplexScalar:
        if isinstance(operand, ComplexScalar):
            return operand
        return ComplexScalar(self.re.like(operand), self.re.like(0))

    def conj(self) -> ComplexScalar:
        return ComplexScalar(self.re, -self.im)

    def __neg__(self) -> ComplexScalar:
        return ComplexScalar(-self.re, -self.im)

    def __add__(self, other: Operand) -> ComplexScalar:
        y = self.like(other)
        return ComplexScalar(self.re + y.re, self.im + y.im)

    def __sub__(self, other: Operand) -> ComplexScalar:
        y = self.like(other)
        return ComplexScalar(self.re - y.re, self.im - y.im)

    def __mul__(self, other: Operand) -> ComplexScalar:
        if not isinstance(other, ComplexScalar):
            return ComplexScalar(self.re * other, self.im * other)
        return ComplexScalar(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def __truediv__(self, other: Operand) -> ComplexScalar:
        """Divides by the algorithm of Robert L. Smith (1962), in which no square overflows."""
        if not isinstance(other, ComplexScalar):
            return ComplexScalar(self.re / other, self.im / other)
        is_re_larger = absolute(other.re) >= absolute(other.im)
        larger, smaller = select(is_re_larger, other.re, other.im), select(is_re_larger, other.im, other.re)
        ratio = smaller / larger
        divisor = larger + smaller * ratio
        re = select(is_re_larger, self.re + self.im * ratio, self.re * ratio + self.im)
        im = select(is_re_larger, self.im - self.re * ratio, self.im * ratio - self.re)
        return ComplexScalar(re / divisor, im / divisor)

    def __radd__(self, other: Operand) -> ComplexScalar:
        return self + other

    def __rsub__(self, other: Operand) -> ComplexScalar:
        return self.like(other) - self

    def __rmul__(self, other: Operand) -> ComplexScalar:
        return self * other

    def __rtruediv__(self, other: Operand) -> ComplexScalar:
        return self.like(other) / self

    def compare(self, relation: str, other: Operand) -> Scalar:
        """Returns a bool scalar; complex numbers have no order, so `relation` is "eq" or "ne"."""
        y = self.like(other)
        if relation == "eq":
            return self.re.compare("eq", y.re) & self.im.compare("eq", y.im)
        if relation == "ne":
            return self.re.compare("ne", y.re) | self.im.compare("ne", y.im)
        raise LoweringError(f"complex numbers have no relation {relation!r}")


def conj(x: Scalar) -> Scalar:
    """Returns the complex conjugate; a real number unchanged."""
    return x.conj() if isinstance(x, ComplexScalar) else x


def real_part(x: Scalar) -> Scalar:
    """Returns the real part of a complex number; a real number unchanged."""
    return x.re if isinstance(x, ComplexScalar) else x


def imaginary_part(x: Scalar) -> Scalar:
    """Returns the imaginary part of a complex number, 0 of a real one."""
    return x.im if isinstance(x, ComplexScalar) else x.like(0)


def square_modulus(x: Scalar) -> Scalar:
    """Returns |x|², which is real."""
    return x.re * x.re + x.im * x.im if isinstance(x, ComplexScalar) else x * x


def modulus(x: Scalar) -> Scalar:
    """Returns |x|; the squares of the parts may overflow."""
    return sqrt(square_modulus(x)) if isinstance(x, ComplexScalar) else absolute(x)


def largest_part(x: Scalar) -> Scalar:
    """Returns the larger of the magnitudes of both parts; NaN if either is NaN."""
    return maximum(absolute(x.re), absolute(x.im)) if isinstance(x, ComplexScalar) else absolute(x)


def blas_magnitude(x: Scalar) -> Scalar:
    """Returns |Re x| + |Im x|, the magnitude by which BLAS and LAPACK choose a complex pivot."""
    return absolute(x.re) + absolute(x.im) if isinstance(x, ComplexScalar) else absolute(x)


def size_scalar(size: Size) -> Scalar:
    """Returns a symbolic size as a scalar of i64, PyTorch's type for sizes."""
    return Scalar(arith.index_cast(mlir_element_type_get(TensorDType.Int64), index_value(size)), TensorDType.Int64)


def cast(x: Scalar, dtype: TensorDType) -> Scalar:
    """Casts `x` with PyTorch's semantics: a cast to bool is `x != 0`, and one from float to integer truncates."""
    if x.dtype is dtype:
        return x
    if dtype.is_complex:
        return ComplexScalar(cast(real_part(x), dtype.part), cast(imaginary_part(x), dtype.part))
    if isinstance(x, ComplexScalar):
        return x.compare("ne", 0) if dtype is TensorDType.Bool else cast(x.re, dtype)
    if x.dtype.is_float8:
        return cast(Scalar(float8.to_f32(x.value, x.dtype), TensorDType.Float32), dtype)
    if dtype is TensorDType.Bool:
        return x.compare("ne", 0)
    element = mlir_element_type_get(dtype)
    if dtype.is_float8:
        return Scalar(float8.from_f32(cast(x, TensorDType.Float32).value, dtype, element), dtype)
    if x.dtype.is_float and dtype.is_float:
        return Scalar(_float_cast(x.value, element), dtype)
    if dtype.is_float:
        return Scalar((arith.uitofp if x.is_unsigned else arith.sitofp)(element, x.value), dtype)
    if x.dtype.is_float and dtype is TensorDType.UInt64:
        return _float_to_u64(x)
    if x.dtype.is_float:
        wide_type = TensorDType.Int32 if dtype in _CONVERTED_THROUGH_I32 else TensorDType.Int64
        wide = arith.fptosi(mlir_element_type_get(wide_type), x.value)
        return cast(Scalar(wide, wide_type), dtype)
    return Scalar(_integer_cast(x, element), dtype)


# Eager converts floats to these integer types through i32, to others through i64, and wraps. For NaN and numbers out of
# range, the conversion returns the lowest integer on x86; other processors differ.
_CONVERTED_THROUGH_I32 = (TensorDType.Int8, TensorDType.Int16, TensorDType.Int32, TensorDType.UInt16)


def _float_to_u64(x: Scalar) -> Scalar:
    """Converts by a signed conversion; subtracts 2^63 before, and adds it afterwards, if `x` is at least 2^63."""
    is_large = x >= 2.0**63
    signed = cast(select(is_large, x - 2.0**63, x), TensorDType.Int64)
    bits = signed ^ select(is_large, signed.like(-(1 << 63)), signed.like(0))
    return Scalar(bits.value, TensorDType.UInt64)


def _float_cast(value: ir.Value, element: ir.Type) -> ir.Value:
    """Converts a float to another float type; neither has 8 bits."""
    old_width = value.type.width
    if old_width == element.width:
        # bf16 and f16 are converted to each other through f32, because neither type contains the other.
        return arith.truncf(element, arith.extf(ir.F32Type.get(), value))
    if (old_width, element.width) == (64, 16):
        # Through f32, as in eager: no processor converts f64 to 16 bits in one instruction.
        value, old_width = arith.truncf(ir.F32Type.get(), value), 32
    return (arith.extf if old_width < element.width else arith.truncf)(element, value)


def _integer_cast(x: Scalar, element: ir.Type) -> ir.Value:
    """Truncates an integer or bool, or extends it by its signedness."""
    old_width = x.value.type.width
    if old_width == element.width:
        return x.value
    if old_width > element.width:
        return arith.trunci(element, x.value)
    return (arith.extui if x.is_unsigned else arith.extsi)(element, x.value)


def _unary(op_name: str) -> Callable[..., Scalar]:
    """Returns a function that emits a unary op of the `math` dialect."""

    def apply(x: Scalar) -> Scalar:
        return Scalar(getattr(math, op_name)(x.value), x.dtype)

    apply.__name__ = op_name
    return apply


exp, exp2, expm1 = _unary("exp"), _unary("exp2"), _unary("expm1")
log, log2, log1p = _unary("log"), _unary("log2"), _unary("log1p")
log10, erf = _unary("log10"), _unary("erf")
sin, cos, tan = _unary("sin"), _unary("cos"), _unary("tan")
asin, acos, atan = _unary("asin"), _unary("acos"), _unary("atan")
sinh, cosh, tanh = _unary("sinh"), _unary("cosh"), _unary("tanh")
asinh, acosh, atanh = _unary("asinh"), _unary("acosh"), _unary("atanh")
sqrt, rsqrt = _unary("sqrt"), _unary("rsqrt")


def _binary_float(function: Callable[[ir.Value, ir.Value], ir.Value]) -> Callable[[Scalar, Operand], Scalar]:
    """Returns a function that emits a binary op on floats; its second operand is cast to the type of the first."""

    def apply(x: Scalar, y: Operand) -> Scalar:
        return Scalar(function(x.value, x.like(y).value), x.dtype)

    return apply


atan2, powf = _binary_float(math.atan2), _binary_float(math.powf)
copysign, fmod = _binary_float(math.copysign), _binary_float(arith.remf)


def fma(x: Scalar, y: Operand, z: Operand) -> Scalar:
    """Returns x * y + z, rounded once."""
    return Scalar(math.fma(x.value, x.like(y).value, x.like(z).value), x.dtype)


def horner(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Evaluates `coefficients[0] + coefficients[1] x + …`."""
    result = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def _rounding(op_name: str) -> Callable[..., Scalar]:
    """Returns a function that rounds floats by an op of the `math` dialect, and returns integers unchanged."""

    def apply(x: Scalar) -> Scalar:
        return Scalar(getattr(math, op_name)(x.value), x.dtype) if x.dtype.is_float else x

    return apply


floor, ceil, trunc, roundeven = _rounding("floor"), _rounding("ceil"), _rounding("trunc"), _rounding("roundeven")


def absolute(x: Scalar) -> Scalar:
    if x.is_unsigned:
        return x
    return Scalar((math.absf if x.dtype.is_float else math.absi)(x.value), x.dtype)


def select(condition: Scalar, if_true: Operand, if_false: Operand) -> Scalar:
    """Returns `if_true` if `condition` is true, else `if_false`; the result has the element type of the first scalar.

    At least one of the two operands is a `Scalar`.
    """
    typed = if_true if isinstance(if_true, Scalar) else if_false
    assert isinstance(typed, Scalar)
    if_true, if_false = typed.like(if_true), typed.like(if_false)
    if isinstance(if_true, ComplexScalar) and isinstance(if_false, ComplexScalar):
        re, im = select(condition, if_true.re, if_false.re), select(condition, if_true.im, if_false.im)
        return ComplexScalar(re, im)
    return Scalar(arith.select(cast(condition, TensorDType.Bool).value, if_true.value, if_false.value), typed.dtype)


def maximum(x: Scalar, y: Operand) -> Scalar:
    """Returns the larger operand; NaN if either is NaN, as in PyTorch."""
    return x._binary(y, arith.maximumf, arith.maxui if x.is_unsigned else arith.maxsi)


def minimum(x: Scalar, y: Operand) -> Scalar:
    """Returns the smaller operand; NaN if either is NaN, as in PyTorch."""
    return x._binary(y, arith.minimumf, arith.minui if x.is_unsigned else arith.minsi)


def fmax(x: Scalar, y: Operand) -> Scalar:
    """Returns the larger operand; if one is NaN, returns the other."""
    return x._binary(y, arith.maxnumf, arith.maxui if x.is_unsigned else arith.maxsi)


def fmin(x: Scalar, y: Operand) -> Scalar:
    """Returns the smaller operand; if one is NaN, returns the other."""
    return x._binary(y, arith.minnumf, arith.minui if x.is_unsigned else arith.minsi)


def power(x: Scalar, exponent: Operand) -> Scalar:
    """Returns `x ** exponent`. For small constant exponents, emits products and square roots, as eager does.

    Raises `LoweringError` for integers with other exponents, which `integers.power` computes.
    """
    if not isinstance(exponent, (Scalar, Size)):
        if exponent == 0:
            return x.like(1)
        if float(exponent).is_integer() and 1 <= abs(exponent) <= 4 and (exponent > 0 or x.dtype.is_float):
            product = _small_power(x, int(abs(exponent)))
            return product if exponent > 0 else 1.0 / product
        if abs(exponent) == 0.5 and x.dtype.is_float:
            return sqrt(x) if exponent > 0 else 1.0 / sqrt(x)
    if x.dtype.is_float:
        return powf(x, exponent)
    raise LoweringError(f"no power of {x.dtype.value} with the exponent {exponent}")


def _small_power(x: Scalar, exponent: int) -> Scalar:
    """Returns `x ** exponent` for an exponent from 1 to 4."""
    square = x * x
    return (x, square, square * x, square * square)[exponent - 1]


def limits(dtype: TensorDType) -> tuple[int | float, int | float]:
    """Returns the smallest and the largest value of an element type; infinities for floats."""
    if dtype.is_float:
        return -pymath.inf, pymath.inf
    if dtype is TensorDType.Bool:
        return 0, 1
    bits = int(dtype.value.lstrip("ui"))
    return (0, (1 << bits) - 1) if dtype.is_unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def while_loop(
    initial: Sequence[Scalar], condition: Callable[..., Scalar], body: Callable[..., Sequence[Scalar]]
) -> list[Scalar]:
    """Emits a while loop on scalars: `body(*scalars)` returns the next ones, as long as `condition(*scalars)` is true.

    Returns the final scalars. Both functions may use only their arguments and constants, since fusion clones the ops of
    a body one by one.
    """
    types = [x.dtype for x in initial]
    mlir_types = [x.value.type for x in initial]

    def scalars(block: ir.Block) -> list[Scalar]:
        return [Scalar(value, dtype) for value, dtype in zip(block.arguments, types, strict=True)]

    loop = scf.WhileOp(mlir_types, [x.value for x in initial])
    location = ir.Location.current
    before, after = (
        region.blocks.append(*mlir_types, arg_locs=[location] * len(mlir_types)) for region in loop.regions
    )
    with ir.InsertionPoint(before):
        scf.ConditionOp(condition(*scalars(before)).value, list(before.arguments))
    with ir.InsertionPoint(after):
        scf.YieldOp([x.value for x in body(*scalars(after))])
    return [Scalar(value, dtype) for value, dtype in zip(loop.results, types, strict=True)]
