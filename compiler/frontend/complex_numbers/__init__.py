"""Complex ops of an ATen graph as ops on real and imaginary parts, Fourier transforms as products with matrices."""

from buddy.compiler.frontend.complex_numbers import (  # they register their rules
    arithmetic,
    choice,
    fourier,
    functions,
    layout,
    products,
    reductions,
)
from buddy.compiler.frontend.complex_numbers.pair import RULES
from buddy.compiler.frontend.complex_numbers.rewriting import by_parts

__all__ = ["RULES", "arithmetic", "by_parts", "choice", "fourier", "functions", "layout", "products", "reductions"]
