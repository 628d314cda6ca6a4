"""`expand-math-to-polynomials`: replaces transcendental functions by arithmetic that vectorises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.functions.activations import Activation, activation_around
from buddy.compiler.passes.kernels.functions.table import DOUBLE_EXPANSIONS, EXPANSIONS
from buddy.compiler.passes.kernels.structured import VECTOR_MATH


@register
@dataclass(frozen=True)
class ExpandMathToPolynomials(MlirPass):
    """Expands functions on f32, on f16 and bf16 through f32, and exponentials and logarithms on f64.

    The other functions are left to the library.
    """

    name: ClassVar[str] = "expand-math-to-polynomials"
    summary: ClassVar[str] = "exponentials, logarithms, powers, sines and their like become plain arithmetic"

    def run(self, root: Any, context: PassContext) -> None:
        for op in collect(root):
            if op.name not in EXPANSIONS:
                if op.name.startswith("math.") and op.name not in VECTOR_MATH:
                    context.remark(self.name, op.location, f"{op.name} left to the math library")
                continue
            found = activation_around(op) if str(_element(op.operands[0].type)) == "f32" else None
            context.remark(self.name, op.location, _replace(found, op.name) if found else _expand(op))


def _replace(found: Activation, name: str) -> str:
    with ir.InsertionPoint(found.replaced), found.replaced.location:
        result = found.emit(found.argument)
    found.replaced.results[0].replace_all_uses_with(result)
    found.replaced.erase()
    for op in found.dead:
        if not any(True for _ in op.results[0].uses):
            op.erase()
    return f"{name}, as part of {found.name}, became a polynomial"


def _expand(op: Any) -> str:
    """Replaces `op`; returns the text of the remark."""
    value = op.operands[0]
    element = str(_element(value.type))
    known = DOUBLE_EXPANSIONS if element == "f64" else EXPANSIONS
    if element not in ("f64", "f32", "f16", "bf16") or op.name not in known:
        return f"{op.name} left to the math library: no polynomial for {value.type}"
    half = element in ("f16", "bf16")
    with ir.InsertionPoint(op), op.location:
        operands = [arith.extf(_single(value.type), operand) if half else operand for operand in op.operands]
        result = known[op.name](*operands)
        if half:
            result = arith.truncf(value.type, result)
    name = op.name
    op.results[0].replace_all_uses_with(result)
    op.erase()
    return f"{name} became a polynomial"


def _element(type_: Any) -> Any:
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


def _single(type_: Any) -> Any:
    f32 = ir.F32Type.get()
    return ir.VectorType.get(list(type_.shape), f32) if isinstance(type_, ir.VectorType) else f32
