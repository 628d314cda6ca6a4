"""Comparisons, selection by a mask, and casts."""

from __future__ import annotations

import math as pymath
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.builder import as_scalar, elementwise, promoted, rounded_operands
from buddy.compiler.ops.scalar import Operand, Scalar
from buddy.compiler.ops.utils import constant

BOOL = TensorDType.Bool


def _comparison(name: str, relation: str) -> None:
    @elementwise(name, among_operands=True, narrow=True)
    def compared(x: Scalar, y: Operand) -> Scalar:
        """For half types, eager rounds a number to the element type before comparing."""
        left, right = rounded_operands(x, y)
        return left.compare(relation, right)


for _name, _relation in {
    "EqualOp": "eq", "NeOp": "ne", "LtOp": "lt", "LeOp": "le", "GtOp": "gt", "GeOp": "ge",
}.items():  # fmt: skip
    _comparison(_name, _relation)


@elementwise("IsNanOp", among_operands=True)
def isnan(x: Scalar) -> Scalar:
    return x.compare("ne", x)


@elementwise("IsInfOp", among_operands=True)
def isinf(x: Scalar) -> Scalar:
    return s.absolute(x).compare("eq", pymath.inf) if x.dtype.is_float else Scalar(constant(False, BOOL), BOOL)


@elementwise("WhereOp", uncast=(0,))
def where(condition: Scalar, yes: Operand, no: Operand) -> Scalar:
    shaped = no if isinstance(no, Scalar) else yes
    if not isinstance(shaped, Scalar):
        return _choice_of_numbers(condition, yes, no)
    return s.select(condition, shaped.like(yes), shaped.like(no))


def _choice_of_numbers(condition: Scalar, yes: Any, no: Any) -> Scalar:
    kind = promoted((yes, no))
    return s.select(condition, as_scalar(yes, kind), as_scalar(no, kind))


@elementwise("MaskedFillOp", uncast=(1,))
def masked_fill(x: Scalar, mask: Scalar, value: Operand) -> Scalar:
    return s.select(mask, x.like(value), x)


@elementwise("ConvertElementTypeOp", uncast=(0,))
def convert(x: Operand, _dtype: object = None) -> Scalar:
    """Converts to the result's element type, which prims pass as an argument; `x` may be a number under `vmap`."""
    if isinstance(x, Scalar):
        return x
    return as_scalar(x, TensorDType.Float64 if isinstance(x, float) else TensorDType.Int64)
