"""Double-precision arithmetic inside single-precision functions, whose 29 spare bits absorb rounding errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, math

ROUND = 6755399441055744.0  # 1.5 * 2⁵²: adding it rounds to an integer in the low bits
ROUND_BITS = 0x4338000000000000
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
MANTISSA, BIAS = 52, 1023
_LOG2_E, _LN2 = 1.4426950408889634, 0.6931471805599453
# 2^f for |f| <= 1/2, relative error 4e-11.
_EXP2 = (
    0.999999999961683, 0.6931471807284588, 0.2402265119815567, 0.05550410353410901, 0.00961802725390671,
    0.0013333922593808108, 0.00015469291081177312, 1.5201914657428043e-05,
)  # fmt: skip
# log2((1 + s) / (1 - s)) = s P(s²) for arguments between sqrt(1/2) and sqrt(2), relative error 4e-12.
_LOG2 = (2.885390081790772, 0.9617966724311632, 0.5770837671842383, 0.41166133289121876, 0.34094842315438995)
# atan(t) = t + t³ P(t²) for |t| <= tan(π/8), relative error 2e-11.
_ATAN = (
    -0.33333332513677566, 0.19999905098998833, -0.14282039420552994, 0.11045058969349336, -0.0847820380991401,
    0.04747838186352781,
)  # fmt: skip
_PI_2, _PI_4 = 1.5707963267948966, 0.7853981633974483
_TAN_PI_8, _TAN_3PI_8 = 0.41421356237309503, 2.414213562373095


class DoubleArithmetic:
    """Arithmetic on f64, or vectors of it, of the shape of `like`."""

    def __init__(self, like: Any) -> None:
        shape = list(like.shape) if isinstance(like, ir.VectorType) else None
        f64, i64 = ir.F64Type.get(), ir.IntegerType.get_signless(64)
        self.vector = shape is not None
        self.type = f64 if shape is None else ir.VectorType.get(shape, f64)
        self.integers = i64 if shape is None else ir.VectorType.get(shape, i64)

    def number(self, value: float) -> Any:
        return self._constant(self.type, ir.FloatAttr.get(ir.F64Type.get(), value))

    def integer(self, value: int) -> Any:
        return self._constant(self.integers, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value))

    def _constant(self, type_: Any, scalar: Any) -> Any:
        return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, scalar) if self.vector else scalar)

    def of(self, single: Any) -> Any:
        return arith.extf(self.type, single)

    def bits(self, x: Any) -> Any:
        return arith.bitcast(self.integers, x)

    def from_bits(self, i: Any) -> Any:
        return arith.bitcast(self.type, i)

    def horner(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Evaluates `coefficients[0] + coefficients[1] x + …`."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = math.fma(result, x, self.number(coefficient))
        return result

    def is_(self, predicate: str, x: Any, bound: float) -> Any:
        return arith.cmpf(arith.CmpFPredicate[predicate.upper()], x, self.number(bound))

    def where(self, predicate: str, x: Any, bound: float, then: Any, otherwise: Any) -> Any:
        """Returns `then` where `x predicate bound` (an `arith.cmpf` predicate), else `otherwise`."""
        return arith.select(self.is_(predicate, x, bound), then, otherwise)

    def exp2(self, x: Any) -> Any:
        """Returns 2 to the x, relative error 1e-10; beyond the range of f32, any number beyond that range."""
        x = self.where("ogt", x, 200.0, self.number(200.0), x)
        x = self.where("olt", x, -200.0, self.number(-200.0), x)
        rounded = arith.addf(x, self.number(ROUND))
        fraction = arith.subf(x, arith.subf(rounded, self.number(ROUND)))
        exponent = arith.shli(self.bits(rounded), self.integer(MANTISSA))
        return self.from_bits(arith.addi(self.bits(self.horner(fraction, _EXP2)), exponent))

    def exp(self, x: Any) -> Any:
        return self.exp2(arith.mulf(x, self.number(_LOG2_E)))

    def log2(self, x: Any) -> Any:
        """Returns the logarithm to base 2, relative error 1e-11; of normal numbers, 0 and inf; NaN below zero."""
        bits = self.bits(x)
        exponent = arith.shrsi(arith.subi(bits, self.integer(SQRT_HALF_BITS)), self.integer(MANTISSA))
        m = self.from_bits(arith.subi(bits, arith.shli(exponent, self.integer(MANTISSA))))
        s = arith.divf(arith.subf(m, self.number(1.0)), arith.addf(m, self.number(1.0)))
        # An exponent in the low bits of `ROUND` becomes a number by subtraction: cheaper than converting 64-bit
        # integers.
        n = arith.subf(self.from_bits(arith.addi(exponent, self.integer(ROUND_BITS))), self.number(ROUND))
        result = math.fma(s, self.horner(arith.mulf(s, s), _LOG2), n)
        result = self.where("oeq", x, 0.0, self.number(-float("inf")), result)
        result = self.where("oeq", x, float("inf"), x, result)
        return self.where("ult", x, 0.0, self.number(float("nan")), result)

    def log(self, x: Any) -> Any:
        return arith.mulf(self.log2(x), self.number(_LN2))

    def atan(self, x: Any) -> Any:
        """Returns the arc tangent, relative error 2e-11."""
        magnitude = math.absf(x)
        middle, far = self.is_("ogt", magnitude, _TAN_PI_8), self.is_("ogt", magnitude, _TAN_3PI_8)
        one = self.number(1.0)
        above = arith.select(far, self.number(-1.0), arith.select(middle, arith.subf(magnitude, one), magnitude))
        below = arith.select(far, magnitude, arith.select(middle, arith.addf(magnitude, one), one))
        start = arith.select(far, self.number(_PI_2), arith.select(middle, self.number(_PI_4), self.number(0.0)))
        t = arith.divf(above, below)
        square = arith.mulf(t, t)
        tail = arith.mulf(arith.mulf(t, square), self.horner(square, _ATAN))
        return math.copysign(arith.addf(start, arith.addf(t, tail)), x)
