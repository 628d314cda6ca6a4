"""The linalg registry: every op that this project lowers, to `linalg` on tensors."""

from __future__ import annotations

from buddy.compiler.ops import (
    attention,
    contractions,
    elementwise,
    extremes,
    indexing,
    reductions,
    scans,
    scatter,
    shapes,
    sorting,
    windows,
)
from buddy.compiler.ops.registry import Registry

_FAMILIES = (
    windows,
    elementwise,
    contractions,
    attention,
    reductions,
    extremes,
    scans,
    sorting,
    shapes,
    indexing,
    scatter,
)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
