"""Lowers element-wise ops, written as expressions on one element; the builder adds broadcasting and type promotion.

A lowering is an expression on `Scalar`s that the decorator `elementwise` registers, such as

    @elementwise("AddOp")
    def add(x: Scalar, y: Operand) -> Scalar:
        return x + y
"""

from __future__ import annotations

# Importing these modules registers the lowerings of their ops.
from buddy.compiler.ops.elementwise import arithmetic, logic, series, special  # noqa: F401
from buddy.compiler.ops.elementwise.builder import elementwise, lower_expression, ops_registry, promoted_type

__all__ = ["elementwise", "lower_expression", "ops_registry", "promoted_type"]
