"""Arithmetic of contractions: accumulator type, widening, multiply-add, rounding."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.passes.kernels.emit import element_of

FLOATS = ("bf16", "f16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
_NARROW_FLOATS = frozenset({"bf16", "f16"})


def accumulator(factors: tuple[str, str], result: str) -> str | None:
    """Returns the accumulator type for products of `factors` with a result of type `result`.

    Narrow floats accumulate in f32 and are rounded once, integers in the result's type, modulo its width. `None` if no
    kernel fits: factors of different types, or a result narrower than they are.
    """
    a, b = factors
    if a != b:
        return None
    if a in FLOATS and result in FLOATS and bits(result) >= bits(a):
        return "f32" if result in _NARROW_FLOATS else result
    return result if a in INTEGERS and result in INTEGERS and bits(result) >= bits(a) else None


def bits(element: str) -> int:
    """Returns the width of an element type such as "bf16" or "i8"."""
    return int(element.lstrip("bfi"))


def bytes_of(element: str) -> int:
    return bits(element) // 8


def converted(value: Any, element: Any, unsigned: bool = False) -> Any:
    """Converts a scalar or vector to elements of type `element`: sign-extends, or rounds to nearest even.

    `unsigned` integers are zero-extended.
    """
    old = element_of(value.type)
    if old == element:
        return value
    type_ = ir.VectorType.get(value.type.shape, element) if isinstance(value.type, ir.VectorType) else element
    widens = element.width > old.width
    if isinstance(element, ir.FloatType):
        return arith.extf(type_, value) if widens else arith.truncf(type_, value)
    if not widens:
        return arith.trunci(type_, value)
    return (arith.extui if unsigned else arith.extsi)(type_, value)


def multiply_add(left: Any, right: Any, total: Any) -> Any:
    """Returns `left * right + total`: rounded once for vectors of floats, modulo the width for integers."""
    if not isinstance(element_of(total.type), ir.FloatType):
        return arith.addi(arith.muli(left, right), total)
    if not isinstance(total.type, ir.VectorType):
        return arith.addf(arith.mulf(left, right), total)
    return vector.fma(left, right, total)


def add(left: Any, right: Any) -> Any:
    """Returns the sum of two scalars or vectors of the same type."""
    is_float = isinstance(element_of(left.type), ir.FloatType)
    return arith.addf(left, right) if is_float else arith.addi(left, right)
