"""Arithmetic of contractions: the type that products are summed in, widening to it, multiply-add, rounding from it."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.passes.kernels.emit import element_of

FLOATS = ("bf16", "f16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
_NARROW_FLOATS = frozenset({"bf16", "f16"})


def accumulator(factors: tuple[str, str], result: str) -> str | None:
    """The element type that products of `factors` are summed in for a result of type `result`.

    Narrow floats are summed in f32 and rounded once, integers in the result's type, modulo its width. `None` where
    no kernel fits: factors of two types, or a result narrower than they are.
    """
    a, b = factors
    if a != b:
        return None
    if a in FLOATS and result in FLOATS and bits(result) >= bits(a):
        return "f32" if result in _NARROW_FLOATS else result
    return result if a in INTEGERS and result in INTEGERS and bits(result) >= bits(a) else None


def bits(element: str) -> int:
    """Width of an element type such as "bf16" or "i8"."""
    return int(element.lstrip("bfi"))


def bytes_of(element: str) -> int:
    return bits(element) // 8


def converted(value: Any, element: Any, unsigned: bool = False) -> Any:
    """A scalar or vector with elements of type `element`: widened with its sign, or rounded to nearest even.

    Integers that are `unsigned` are widened with zeros.
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
    """`left * right + total`: rounded once for vectors of floats, modulo the width for integers."""
    if not isinstance(element_of(total.type), ir.FloatType):
        return arith.addi(arith.muli(left, right), total)
    if not isinstance(total.type, ir.VectorType):
        return arith.addf(arith.mulf(left, right), total)
    return vector.fma(left, right, total)


def add(left: Any, right: Any) -> Any:
    """The sum of two scalars or vectors of one type."""
    is_float = isinstance(element_of(left.type), ir.FloatType)
    return arith.addf(left, right) if is_float else arith.addi(left, right)
