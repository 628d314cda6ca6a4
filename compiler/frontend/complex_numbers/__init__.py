"""Rewrites complex ops of ATen graphs to ops on real and imaginary parts, and Fourier transforms to matrix products."""

# Importing a module registers its rules in `RULES`.
from buddy.compiler.frontend.complex_numbers import arithmetic, fourier, functions, layout, reductions  # noqa: F401
from buddy.compiler.frontend.complex_numbers.pair import RULES
from buddy.compiler.frontend.complex_numbers.rewriting import decompose_complex

__all__ = ["RULES", "decompose_complex"]
