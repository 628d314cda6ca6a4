"""Emits conversions of 8-bit floats to f32 and back, in integer arithmetic, because LLVM has no 8-bit float types.

Formats and rounding are those of PyTorch (c10/util/Float8_*.h): to nearest, ties to even. A number that is too large
becomes infinity. In a format without infinity it becomes the largest number, or NaN if the format has no negative zero.

The formats are defined in Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv:2209.05433), and those
without a negative zero in Noune et al. 2022, "8-bit Numerical Formats for Deep Neural Networks" (arXiv:2206.02915).
"""

from __future__ import annotations

from dataclasses import dataclass

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir

_F32_SIGN, _F32_BIAS, _F32_MANTISSA, _F32_NAN = 1 << 31, 127, 23, 0x7FC00000


@dataclass(frozen=True)
class Float8Format:
    """An 8-bit float format: the number of `mantissa` bits, the exponent `bias`, and the code of infinity, or `None`.

    With `one_zero`, there is no negative zero, and its code 0x80 is the only NaN. Otherwise a NaN has only ones after
    the sign.
    """

    mantissa: int
    bias: int
    infinity: int | None = None
    one_zero: bool = False

    @property
    def shift(self) -> int:
        """The difference in width between the mantissa of f32 and that of this format."""
        return _F32_MANTISSA - self.mantissa

    @property
    def least_normal(self) -> int:
        """The smallest normal number of the format, as the bits of an f32."""
        return (_F32_BIAS + 1 - self.bias) << _F32_MANTISSA

    @property
    def overflow_limit(self) -> int:
        """The f32 bits of the least magnitude that becomes infinity, NaN or the largest number without rounding."""
        largest_exponent = (0x7F >> self.mantissa) - self.bias
        if self.infinity is None and not self.one_zero:  # of the largest exponent, only the code with all ones is NaN
            return (_F32_BIAS + largest_exponent) << _F32_MANTISSA | ((1 << self.mantissa) - 2) << self.shift
        exponent = largest_exponent if self.infinity is not None else largest_exponent + 1
        return (_F32_BIAS + exponent) << _F32_MANTISSA


FORMATS = {
    TensorDType.Float8E4M3FN: Float8Format(mantissa=3, bias=7),
    TensorDType.Float8E5M2: Float8Format(mantissa=2, bias=15, infinity=0x7C),
    TensorDType.Float8E4M3FNUZ: Float8Format(mantissa=3, bias=8, one_zero=True),
    TensorDType.Float8E5M2FNUZ: Float8Format(mantissa=2, bias=16, one_zero=True),
}


def to_f32(value: ir.Value, dtype: TensorDType) -> ir.Value:
    """Converts an element of `dtype`, an 8-bit float, to f32, which represents it exactly."""
    format_ = FORMATS[dtype]
    byte = arith.extui(_i32(), arith.bitcast(ir.IntegerType.get_signless(8), value))
    magnitude, sign = arith.andi(byte, _int(0x7F)), arith.shli(arith.andi(byte, _int(0x80)), _int(24))
    shifted = arith.shli(magnitude, _int(format_.shift))
    normal = arith.addi(shifted, _int((_F32_BIAS - format_.bias) << _F32_MANTISSA))
    # A subnormal number is its code times the distance between two codes.
    subnormal = arith.mulf(arith.sitofp(_f32(), magnitude), _float(2.0 ** (1 - format_.bias - format_.mantissa)))
    is_normal = arith.cmpi(arith.CmpIPredicate.uge, magnitude, _int(1 << format_.mantissa))
    bits = arith.select(is_normal, normal, arith.bitcast(_i32(), subnormal))
    if format_.infinity is not None:
        is_special = arith.cmpi(arith.CmpIPredicate.uge, magnitude, _int(format_.infinity))
        bits = arith.select(is_special, arith.ori(bits, _int(0xFF << _F32_MANTISSA)), bits)
    else:
        nan_code, compared = (0x80, byte) if format_.one_zero else (0x7F, magnitude)
        bits = arith.select(arith.cmpi(arith.CmpIPredicate.eq, compared, _int(nan_code)), _int(_F32_NAN), bits)
    return arith.bitcast(_f32(), arith.ori(bits, sign))


def from_f32(value: ir.Value, dtype: TensorDType, element: ir.Type) -> ir.Value:
    """Converts an f32 to the nearest number of `dtype`; `element` is the MLIR type of the result."""
    format_ = FORMATS[dtype]
    signed_bits = arith.bitcast(_i32(), value)
    sign = arith.andi(signed_bits, _int(_F32_SIGN))
    bits = arith.xori(signed_bits, sign)
    # For a subnormal result: the last bit of the f32 `rounder` has the weight of the last bit of a subnormal number, so
    # adding `rounder` rounds to a subnormal number.
    rounder = (_F32_BIAS + 1 - format_.bias + format_.shift) << _F32_MANTISSA
    summed = arith.addf(arith.bitcast(_f32(), bits), arith.bitcast(_f32(), _int(rounder)))
    subnormal = arith.subi(arith.bitcast(_i32(), summed), _int(rounder))
    # For a normal result: changes the bias of the exponent, and adds one unit less than half of the last bit that
    # remains. If that bit is 1, adds the missing unit (`odd`), so that ties round to even.
    odd = arith.andi(arith.shrui(bits, _int(format_.shift)), _int(1))
    rounding = ((format_.bias - _F32_BIAS) << _F32_MANTISSA) + (1 << (format_.shift - 1)) - 1
    normal = arith.shrui(arith.addi(arith.addi(bits, _int(rounding)), odd), _int(format_.shift))
    code = arith.select(_at_least(bits, format_.least_normal), normal, subnormal)
    code = arith.ori(code, arith.shrui(sign, _int(24)))
    if format_.one_zero:
        is_zero = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(code, _int(0x7F)), _int(0))
        # A number just below the limit may round to the code of NaN.
        code = arith.select(arith.andi(is_zero, _below(bits, format_.least_normal)), _int(0), code)
        code = arith.select(_at_least(bits, format_.overflow_limit), _int(0x80), code)
    else:
        is_nan = arith.cmpi(arith.CmpIPredicate.ugt, bits, _int(0xFF << _F32_MANTISSA))
        too_large = arith.select(is_nan, _int(0x7F), _int(format_.infinity or 0x7E))
        too_large = arith.ori(too_large, arith.shrui(sign, _int(24)))
        code = arith.select(_at_least(bits, format_.overflow_limit), too_large, code)
    return arith.bitcast(element, arith.trunci(ir.IntegerType.get_signless(8), code))


def _at_least(bits: ir.Value, limit: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.uge, bits, _int(limit))


def _below(bits: ir.Value, limit: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.ult, bits, _int(limit))


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _f32() -> ir.Type:
    return ir.F32Type.get()


def _int(value: int) -> ir.Value:
    """Emits a constant of 32 bits; `value` is taken modulo 2**32."""
    value &= (1 << 32) - 1
    return arith.constant(_i32(), value - (1 << 32) if value >> 31 else value)


def _float(value: float) -> ir.Value:
    return arith.constant(_f32(), value)
