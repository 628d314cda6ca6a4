"""Finds numbers that are rounded, limited to a range and converted to 8 bits, and emits code that needs no conversion.

A float that is added to 1.5 * 2^23 is rounded to an integer, ties to even, which is in the low bits of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import constant_of
from buddy.compiler.passes.kernels.functions.activations import only_user
from buddy.compiler.passes.kernels.functions.arithmetic import Arithmetic
from buddy.compiler.passes.kernels.functions.polynomials import ROUND

# The greatest magnitude of limits. With these, the sum is at least 2^23 and below 2^24, where floats are the integers.
_MAX_LIMIT = 1 << 20
_BYTE_VALUES = 256


@dataclass(frozen=True)
class ByteRounding:
    """Computes the result of `replaced`: `argument` rounded, plus `zero`, limited to `low` ... `high`, in 8 bits.

    `dead` has the ops that may be unused once `replaced` is erased, the last one of the program first.
    """

    argument: ir.Value
    zero: int
    low: int
    high: int
    replaced: ir.Operation
    dead: tuple[ir.Operation, ...]

    def emit(self, x: ir.Value) -> ir.Value:
        """Emits the computation for `x`: since limits are integers, they can be applied before the rounding.

        NaN becomes the byte 0, as by the conversion on x86.
        """
        s = Arithmetic(x.type)
        low, high = float(self.low - self.zero), float(self.high - self.zero)
        # Comparisons in this form are one instruction on x86, which returns the limit for NaN.
        limited = s.where("ogt", x, low, x, s.number(low))
        limited = s.where("olt", limited, high, limited, s.number(high))
        if self.low % _BYTE_VALUES:
            limited = arith.select(arith.cmpf(arith.CmpFPredicate.UNO, x, x), s.number(float(-self.zero)), limited)
        # An even number can be part of the addition: it changes no tie.
        added = self.zero if self.zero % 2 == 0 else 0
        bits = s.bits(arith.addf(limited, s.number(ROUND + added)))
        if added != self.zero:
            bits = arith.addi(bits, s.integer(self.zero))
        return arith.trunci(self.replaced.results[0].type, bits)


def byte_rounding_of(op: ir.Operation) -> ByteRounding | None:
    """Returns the rounding to 8 bits of which `op`, a `math.roundeven` of f32, is a part, or `None`.

    That is `roundeven`, `addf` of an integer, `maximumf` and `minimumf` with integers, `fptosi` to 32 bits, and
    `trunci` to 8 bits, each with one use. If the argument is a scaled maximum with 0, which changes only numbers below
    the lower limit, the IR is changed: the product then reads the operand of the maximum.
    """
    if str(op.results[0].type) != "f32":
        return None
    chain: list[Any] = [op]
    constants: list[int] = []
    for name in ("arith.addf", "arith.maximumf", "arith.minimumf"):
        user = only_user(chain[-1], name)
        number = None if user is None else _integer_beside(user, chain[-1].results[0])
        if number is None:
            return None
        chain.append(user)
        constants.append(number)
    for name, width in (("arith.fptosi", 32), ("arith.trunci", 8)):
        user = only_user(chain[-1], name)
        if user is None or user.results[0].type != ir.IntegerType.get_signless(width):
            return None
        chain.append(user)
    zero, low, high = constants
    if not low <= high or max(abs(zero), abs(low), abs(high)) > _MAX_LIMIT:
        return None
    dead = list(reversed(chain[:-1]))
    x = op.operands[0]
    # max(y, 0) * c, where c is positive, is below the limit if and only if y * c is.
    if low >= zero and (scaled_maximum := _scaled_maximum(x)):
        product, number, maximum, y = scaled_maximum
        product.operands[number] = y
        dead.append(maximum)
    return ByteRounding(x, zero, low, high, chain[-1], tuple(dead))


def _integer_beside(op: ir.Operation, value: ir.Value) -> int | None:
    """Returns the constant with which `op` combines `value`, if it is an integer."""
    left, right = op.operands
    number = _constant(right if left == value else left)
    return int(number) if number is not None and number.is_integer() else None


def _constant(value: ir.Value) -> float | None:
    """Returns the number of a constant float, or `None`."""
    constant = constant_of(value)
    return float(constant.value) if isinstance(constant, ir.FloatAttr) else None


def _scaled_maximum(value: ir.Value) -> tuple[ir.Operation, int, ir.Operation, ir.Value] | None:
    """Returns the ops of `maximumf(y, 0) * c`, each with one use, for a positive finite c; or `None`.

    These are the product, the number of its operand that is the maximum, the maximum, and y.
    """
    product = _only_used(value, "arith.mulf")
    if product is None:
        return None
    for number in (0, 1):
        factor = _constant(product.operands[1 - number])
        maximum = _only_used(product.operands[number], "arith.maximumf")
        y = None if maximum is None else _beside_zero(maximum)
        if factor is not None and 0 < factor < float("inf") and maximum is not None and y is not None:
            return product, number, maximum, y
    return None


def _only_used(value: ir.Value, name: str) -> ir.Operation | None:
    """Returns the op with the result `value` if it is called `name` and has one use; else `None`."""
    is_result = isinstance(value, ir.OpResult) and value.owner.name == name
    return value.owner.operation if is_result and len(list(value.uses)) == 1 else None


def _beside_zero(maximum: ir.Operation) -> ir.Value | None:
    """Returns the operand of a maximum whose other operand is 0, or `None`."""
    left, right = maximum.operands
    if _constant(right) == 0:
        return left
    return right if _constant(left) == 0 else None
