"""Converts 8-bit floats to f32 and back, in integer arithmetic, since LLVM has no such types.

Formats and rounding are those of PyTorch (c10/util/Float8_*.h): to nearest, ties to even. A number that is too large
becomes infinity; in formats without infinity it becomes the largest number, or NaN if the format has no negative zero.

The formats: Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv:2209.05433), and for those without a
negative zero Noune et al. 2022, "8-bit Numerical Formats for Deep Neural Networks" (arXiv:2206.02915).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir

_SIGN, _F32_BIAS, _F32_MANTISSA, _F32_NAN = 1 << 31, 127, 23, 0x7FC00000


@dataclass(frozen=True)
class Float8Format:
    """An 8-bit float format: `mantissa` bits, exponent `bias`, and the code of infinity, or `None`.

    With `one_zero`, the code of a negative zero is the only NaN; otherwise NaN is all ones after the sign.
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
        """The bits, as f32, of the smallest normal number."""
        return (_F32_BIAS + 1 - self.bias) << _F32_MANTISSA

    @property
    def beyond(self) -> int:
        """The bits, as f32, of the smallest number that overflows."""
        largest_exponent = (0x7F >> self.mantissa) - self.bias
        if self.infinity is None and not self.one_zero:  # all ones are NaN, the rest of that exponent are numbers
            return (_F32_BIAS + largest_exponent) << _F32_MANTISSA | ((1 << self.mantissa) - 2) << self.shift
        exponent = largest_exponent if self.infinity is not None else largest_exponent + 1
        return (_F32_BIAS + exponent) << _F32_MANTISSA


FORMATS = {
    TensorDType.Float8E4M3FN: Float8Format(mantissa=3, bias=7),
    TensorDType.Float8E5M2: Float8Format(mantissa=2, bias=15, infinity=0x7C),
    TensorDType.Float8E4M3FNUZ: Float8Format(mantissa=3, bias=8, one_zero=True),
    TensorDType.Float8E5M2FNUZ: Float8Format(mantissa=2, bias=16, one_zero=True),
}


def to_f32(value: Any, dtype: TensorDType) -> Any:
    """Converts an element of `dtype` to f32."""
    form = FORMATS[dtype]
    byte = arith.extui(_i32(), arith.bitcast(ir.IntegerType.get_signless(8), value))
    magnitude, sign = arith.andi(byte, _int(0x7F)), arith.shli(arith.andi(byte, _int(0x80)), _int(24))
    shifted = arith.shli(magnitude, _int(form.shift))
    normal = arith.addi(shifted, _int((_F32_BIAS - form.bias) << _F32_MANTISSA))
    steps = arith.mulf(arith.sitofp(_f32(), magnitude), _float(2.0 ** (1 - form.bias - form.mantissa)))
    is_normal = arith.cmpi(arith.CmpIPredicate.uge, magnitude, _int(1 << form.mantissa))
    bits = arith.select(is_normal, normal, arith.bitcast(_i32(), steps))
    if form.infinity is not None:
        at_least = arith.cmpi(arith.CmpIPredicate.uge, magnitude, _int(form.infinity))
        bits = arith.select(at_least, arith.ori(bits, _int(0xFF << _F32_MANTISSA)), bits)
    else:
        code, compared = (0x80, byte) if form.one_zero else (0x7F, magnitude)
        bits = arith.select(arith.cmpi(arith.CmpIPredicate.eq, compared, _int(code)), _int(_F32_NAN), bits)
    return arith.bitcast(_f32(), arith.ori(bits, sign))


def from_f32(value: Any, dtype: TensorDType, element: Any) -> Any:
    """Converts an f32 to the nearest element of `dtype`, of the MLIR type `element`."""
    form = FORMATS[dtype]
    given = arith.bitcast(_i32(), value)
    sign = arith.andi(given, _int(_SIGN))
    bits = arith.xori(given, sign)
    # Adding this number to a subnormal shifts its last bit to the last bit of f32, which rounds it.
    magic = (_F32_BIAS + 1 - form.bias + form.shift) << _F32_MANTISSA
    summed = arith.addf(arith.bitcast(_f32(), bits), arith.bitcast(_f32(), _int(magic)))
    subnormal = arith.subi(arith.bitcast(_i32(), summed), _int(magic))
    odd = arith.andi(arith.shrui(bits, _int(form.shift)), _int(1))
    rounding = ((form.bias - _F32_BIAS) << _F32_MANTISSA) + (1 << (form.shift - 1)) - 1
    normal = arith.shrui(arith.addi(arith.addi(bits, _int(rounding)), odd), _int(form.shift))
    code = arith.select(_at_least(bits, form.least_normal), normal, subnormal)
    code = arith.ori(code, arith.shrui(sign, _int(24)))
    if form.one_zero:
        is_zero = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(code, _int(0x7F)), _int(0))
        # A number just below the limit may round to the code of NaN.
        code = arith.select(arith.andi(is_zero, _below(bits, form.least_normal)), _int(0), code)
        code = arith.select(_at_least(bits, form.beyond), _int(0x80), code)
    else:
        is_nan = arith.cmpi(arith.CmpIPredicate.ugt, bits, _int(0xFF << _F32_MANTISSA))
        too_large = arith.select(is_nan, _int(0x7F), _int(form.infinity or 0x7E))
        too_large = arith.ori(too_large, arith.shrui(sign, _int(24)))
        code = arith.select(_at_least(bits, form.beyond), too_large, code)
    return arith.bitcast(element, arith.trunci(ir.IntegerType.get_signless(8), code))


def _at_least(bits: Any, limit: int) -> Any:
    return arith.cmpi(arith.CmpIPredicate.uge, bits, _int(limit))


def _below(bits: Any, limit: int) -> Any:
    return arith.cmpi(arith.CmpIPredicate.ult, bits, _int(limit))


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _f32() -> Any:
    return ir.F32Type.get()


def _int(value: int) -> Any:
    value &= (1 << 32) - 1
    return arith.constant(_i32(), value - (1 << 32) if value >> 31 else value)


def _float(value: float) -> Any:
    return arith.constant(_f32(), value)
