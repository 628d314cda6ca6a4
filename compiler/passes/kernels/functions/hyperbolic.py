"""Hyperbolic functions, their inverses and powers in single precision, through double precision."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import arith, math
from buddy.compiler.passes.kernels.functions.double import DoubleArithmetic
from buddy.compiler.passes.kernels.functions.polynomials import FloatArithmetic

# The first terms of the series of sinh(x) / x in x²: relative error 3e-11 for |x| <= 1/2.
_SINH = (1.0, 1 / 6, 1 / 120, 1 / 5040, 1 / 362880)
_INFINITY, _NAN = float("inf"), float("nan")


def sinh(x: Any) -> Any:
    """The hyperbolic sine; at most 0.6 ULP."""
    d = DoubleArithmetic(x.type)
    wide = d.of(x)
    power = d.exp(wide)
    far = arith.mulf(arith.subf(power, arith.divf(d.number(1.0), power)), d.number(0.5))
    near = arith.mulf(wide, d.horner(arith.mulf(wide, wide), _SINH))
    return arith.truncf(x.type, d.where("olt", math.absf(wide), 0.5, near, far))


def cosh(x: Any) -> Any:
    """The hyperbolic cosine; at most 0.6 ULP."""
    d = DoubleArithmetic(x.type)
    power = d.exp(d.of(x))
    return arith.truncf(x.type, arith.mulf(arith.addf(power, arith.divf(d.number(1.0), power)), d.number(0.5)))


def asinh(x: Any) -> Any:
    """The inverse hyperbolic sine, log(1 + (|x| + x² / (1 + sqrt(1 + x²)))); at most 0.7 ULP."""
    d = DoubleArithmetic(x.type)
    one, wide = d.number(1.0), math.absf(d.of(x))
    square = arith.mulf(wide, wide)
    more = arith.divf(square, arith.addf(one, math.sqrt(arith.addf(one, square))))
    result = d.log(arith.addf(one, arith.addf(wide, more)))
    result = d.where("oeq", wide, _INFINITY, wide, d.where("olt", wide, 1e-4, wide, result))
    return math.copysign(arith.truncf(x.type, result), x)


def acosh(x: Any) -> Any:
    """The inverse hyperbolic cosine, log(x + sqrt(x² - 1)); at most 0.7 ULP; NaN below 1."""
    d = DoubleArithmetic(x.type)
    wide = d.of(x)
    root = math.sqrt(arith.subf(arith.mulf(wide, wide), d.number(1.0)))
    return arith.truncf(x.type, d.where("olt", wide, 1.0, d.number(_NAN), d.log(arith.addf(wide, root))))


def atanh(x: Any) -> Any:
    """The inverse hyperbolic tangent, log((1 + x) / (1 - x)) / 2; at most 0.7 ULP; NaN outside [-1, 1]."""
    d = DoubleArithmetic(x.type)
    one, wide = d.number(1.0), d.of(x)
    result = arith.mulf(d.log(arith.divf(arith.addf(one, wide), arith.subf(one, wide))), d.number(0.5))
    return arith.truncf(x.type, d.where("olt", math.absf(wide), 1e-4, wide, result))


def powf(x: Any, y: Any) -> Any:
    """x to the y; at most 0.6 ULP; zeros, infinities, NaN and negative bases as in C."""
    s, d = FloatArithmetic(x.type), DoubleArithmetic(x.type)
    magnitude, exponent = math.absf(d.of(x)), d.of(y)
    t = arith.mulf(exponent, d.log2(magnitude))
    # 1 to any power, and anything to the power of 0, is 1; the product may be 0 * inf.
    t = d.where("oeq", magnitude, 1.0, arith.select(_is_nan(y), exponent, d.number(0.0)), t)
    result = arith.truncf(x.type, d.exp2(t))
    half = arith.mulf(y, s.number(0.5))
    whole = arith.cmpf(arith.CmpFPredicate.OEQ, math.floor(y), y)
    odd = arith.andi(whole, arith.cmpf(arith.CmpFPredicate.UNE, math.floor(half), half))
    negative = arith.cmpi(arith.CmpIPredicate.slt, s.bits(x), s.integer(0))
    result = arith.select(arith.andi(negative, odd), arith.negf(result), result)
    no_root = arith.andi(_between(s, x, -_INFINITY, 0.0), _is(s, "olt", math.absf(y), _INFINITY))
    bad = arith.andi(no_root, arith.cmpf(arith.CmpFPredicate.ONE, math.floor(y), y))
    result = arith.select(bad, s.number(_NAN), result)
    result = s.where("oeq", y, 0.0, s.number(1.0), result)
    return s.where("oeq", x, 1.0, s.number(1.0), result)


def _is_nan(x: Any) -> Any:
    return arith.cmpf(arith.CmpFPredicate.UNO, x, x)


def _is(s: FloatArithmetic, predicate: str, x: Any, bound: float) -> Any:
    return arith.cmpf(arith.CmpFPredicate[predicate.upper()], x, s.number(bound))


def _between(s: FloatArithmetic, x: Any, lower: float, upper: float) -> Any:
    """True if x is strictly between two bounds."""
    return arith.andi(_is(s, "ogt", x, lower), _is(s, "olt", x, upper))
