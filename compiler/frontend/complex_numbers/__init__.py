"""Rewrites complex ops of ATen graphs to ops on real and imaginary parts, and Fourier transforms to matrix products."""

from buddy.compiler.frontend.complex_numbers import arithmetic, fourier, functions, layout, reductions
from buddy.compiler.frontend.complex_numbers.pair import RULES
from buddy.compiler.frontend.complex_numbers.rewriting import by_parts

__all__ = ["RULES", "arithmetic", "by_parts", "choice", "fourier", "functions", "layout", "products", "reductions"]
