"""The functions of the math dialect that are expanded to arithmetic, by the name of their op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.passes.kernels.functions import double_functions, polynomials, trigonometry

_MODULES = {
    polynomials: ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf"),
    trigonometry: (
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "asinh", "acosh", "atanh", "powf"),
    ),
}

# The functions that emit an expansion: for operands in single precision.
EXPANSIONS: dict[str, Callable[..., Any]] = {
    f"math.{name}": getattr(module, name) for module, names in _MODULES.items() for name in names
}
# For operands in double precision.
DOUBLE_EXPANSIONS: dict[str, Callable[..., Any]] = {
    f"math.{name}": getattr(double_functions, name)
    for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf")
}
