"""`expand-math-to-polynomials`: replaces transcendental functions by arithmetic that vectorises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import is_used
from buddy.compiler.passes.kernels.emit import element_type, with_element_type
from buddy.compiler.passes.kernels.functions import double_functions, polynomials, trigonometry
from buddy.compiler.passes.kernels.functions.patterns import (
    Activation,
    ByteRounding,
    activation_around,
    byte_rounding_of,
)
from buddy.compiler.passes.kernels.structured import VECTOR_MATH

_FUNCTIONS_BY_MODULE = {
    polynomials: ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf"),
    trigonometry: (
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "asinh", "acosh", "atanh", "powf"),
    ),
}

# The functions that emit the expansion of an op, for operands in single precision.
EXPANSIONS: dict[str, Callable[..., Any]] = {
    f"math.{name}": getattr(module, name) for module, names in _FUNCTIONS_BY_MODULE.items() for name in names
}
# The same for operands in double precision.
DOUBLE_EXPANSIONS: dict[str, Callable[..., Any]] = {
    f"math.{name}": getattr(double_functions, name)
    for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf")
}


@register
@dataclass(frozen=True)
class ExpandMathToPolynomials(MlirPass):
    """Expands functions on f32, on f16 and bf16 through f32, and exponentials and logarithms on f64.

    Other functions are left to the math library. Roundings to 8-bit integers become additions.
    """

    name: ClassVar[str] = "expand-math-to-polynomials"
    summary: ClassVar[str] = (
        "replace exponentials, logarithms, powers, sines and similar functions, and roundings to 8 bits, by arithmetic"
    )

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in nested_ops(root):
            if op.name == "math.roundeven" and (rounding := byte_rounding_of(op)):
                context.remark(self.name, op.location, "math.roundeven of 8-bit integers became an addition")
                _replace(rounding)
                continue
            if op.name not in EXPANSIONS:
                if op.name.startswith("math.") and op.name not in VECTOR_MATH:
                    context.remark(self.name, op.location, f"{op.name} left to the math library")
                continue
            location = op.location
            activation = activation_around(op) if str(element_type(op.operands[0].type)) == "f32" else None
            text = _replace_activation(activation, op.name) if activation else _expand(op)
            context.remark(self.name, location, text)


def _replace_activation(activation: Activation, name: str) -> str:
    """Replaces the activation that contains the function `name`; returns the text of the remark."""
    _replace(activation)
    return f"{name}, as part of {activation.name}, became a polynomial"


def _replace(pattern: Activation | ByteRounding) -> None:
    """Replaces the last op of `pattern` by the code that `pattern.emit` emits; erases the ops that are unused then."""
    with ir.InsertionPoint(pattern.replaced), pattern.replaced.location:
        result = pattern.emit(pattern.argument)
    pattern.replaced.results[0].replace_all_uses_with(result)
    pattern.replaced.erase()
    for op in pattern.dead:
        if not is_used(op.results[0]):
            op.erase()


def _expand(op: ir.Operation) -> str:
    """Replaces `op` if its type has an expansion; returns the text of the remark."""
    value = op.operands[0]
    element = str(element_type(value.type))
    expansions = DOUBLE_EXPANSIONS if element == "f64" else EXPANSIONS
    if element not in ("f64", "f32", "f16", "bf16") or op.name not in expansions:
        return f"{op.name} left to the math library: no polynomial for {value.type}"
    is_16_bit = element in ("f16", "bf16")
    with ir.InsertionPoint(op), op.location:
        wide = with_element_type(value.type, ir.F32Type.get())
        operands = [arith.extf(wide, operand) if is_16_bit else operand for operand in op.operands]
        result = expansions[op.name](*operands)
        if is_16_bit:
            result = arith.truncf(value.type, result)
    name = op.name
    op.results[0].replace_all_uses_with(result)
    op.erase()
    return f"{name} became a polynomial"
