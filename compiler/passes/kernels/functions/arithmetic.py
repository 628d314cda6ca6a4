"""Emits arithmetic, comparisons and operations on the bits of floats, for functions that polynomials approximate."""

from __future__ import annotations

from collections.abc import Sequence

from buddy.compiler.mlir.bindings import arith, ir, math
from buddy.compiler.passes.kernels.emit import element_type, with_element_type

# The bits of the fraction of a float, and the bias of its exponent, by its width in bits.
_FORMATS = {32: (23, 127), 64: (52, 1023)}
_INFINITY, _NAN = float("inf"), float("nan")


class Arithmetic:
    """Emits operations on values of `type_`, which is f32, f64 or a vector of these, at the insertion point."""

    def __init__(self, type_: ir.Type) -> None:
        self.type, self.element = type_, element_type(type_)
        self._integer = ir.IntegerType.get_signless(self.element.width)
        self.integers = with_element_type(type_, self._integer)
        self._mantissa_bits, self._exponent_bias = _FORMATS[self.element.width]

    def number(self, value: float) -> ir.Value:
        """Emits a constant of the type."""
        return self._constant(self.type, ir.FloatAttr.get(self.element, value))

    def integer(self, value: int) -> ir.Value:
        """Emits a constant of the type of `bits`."""
        return self._constant(self.integers, ir.IntegerAttr.get(self._integer, value))

    def _constant(self, type_: ir.Type, scalar: ir.Attribute) -> ir.Value:
        is_vector = isinstance(type_, ir.VectorType)
        return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, scalar) if is_vector else scalar)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Returns `a * b + c`, rounded once."""
        return math.fma(a, b, c)

    def horner(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """Evaluates `coefficients[0] + coefficients[1] x + …`."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.number(coefficient))
        return result

    def where(self, predicate: str, x: ir.Value, bound: float, then: ir.Value, otherwise: ir.Value) -> ir.Value:
        """Returns `then` if `x predicate bound`, for a predicate of `arith.cmpf`, else `otherwise`; lane by lane."""
        return arith.select(self.compare(predicate, x, bound), then, otherwise)

    def compare(self, predicate: str, x: ir.Value, bound: float) -> ir.Value:
        """Returns `x predicate bound`, for a predicate of `arith.cmpf`."""
        return arith.cmpf(arith.CmpFPredicate[predicate.upper()], x, self.number(bound))

    def clamped(self, x: ir.Value, lower: float | None, upper: float | None) -> ir.Value:
        """Returns `x` limited to `lower` and `upper` (`None`: no limit); NaN stays NaN."""
        if upper is not None:
            x = self.where("ogt", x, upper, self.number(upper), x)
        if lower is not None:
            x = self.where("olt", x, lower, self.number(lower), x)
        return x

    def bits(self, x: ir.Value) -> ir.Value:
        """Returns the bits of `x` as integers."""
        return arith.bitcast(self.integers, x)

    def from_bits(self, bits: ir.Value) -> ir.Value:
        """Returns the floats with the given bits."""
        return arith.bitcast(self.type, bits)

    def power_of_two(self, exponent: ir.Value) -> ir.Value:
        """Returns 2 to the power of an integer, if that is a normal number."""
        biased = arith.addi(exponent, self.integer(self._exponent_bias))
        return self.from_bits(arith.shli(biased, self.integer(self._mantissa_bits)))

    def scaled(self, mantissa: ir.Value, exponent: ir.Value) -> ir.Value:
        """Returns `mantissa * 2**exponent`, as two products, since `2**exponent` may be denormal or infinite."""
        half = arith.shrsi(exponent, self.integer(1))
        product = arith.mulf(mantissa, self.power_of_two(half))
        return arith.mulf(product, self.power_of_two(arith.subi(exponent, half)))

    def logarithm(self, x: ir.Value, finite: ir.Value) -> ir.Value:
        """Returns the logarithm of any `x`: `finite` if `x` is finite and above zero, -inf at zero, NaN below."""
        result = self.where("oeq", x, _INFINITY, x, finite)
        result = self.where("oeq", x, 0.0, self.number(-_INFINITY), result)
        return self.where("ult", x, 0.0, self.number(_NAN), result)
