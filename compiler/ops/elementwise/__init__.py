"""Element-wise ops as expressions: plain Python per op; broadcasting and promotion belong to the builder."""

from __future__ import annotations

# Each of these registers the lowerings of its ops.
from buddy.compiler.ops.elementwise import (  # noqa: F401
    arithmetic,
    bits,
    choice,
    division,
    functions,
    incomplete_gamma,
    orthogonal,
    special,
)
from buddy.compiler.ops.elementwise.builder import elementwise, lower_expression, ops_registry, promoted

__all__ = ["elementwise", "lower_expression", "ops_registry", "promoted"]
