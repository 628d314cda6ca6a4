"""The linalg registry: the lowerings of this project, to `linalg` on tensors."""

from __future__ import annotations

from buddy.compiler.ops import (
    attention,
    bags,
    checks,
    contractions,
    convolutions,
    elementwise,
    extremes,
    grouped,
    indexing,
    matrices,
    moves,
    pads,
    pools,
    random,
    reductions,
    resize,
    scans,
    scatter,
    searching,
    segments,
    shapes,
    sorting,
)
from buddy.compiler.ops.registry import Registry

_FAMILIES = (
    elementwise,
    contractions,
    grouped,
    attention,
    reductions,
    extremes,
    scans,
    sorting,
    searching,
    shapes,
    moves,
    pads,
    indexing,
    scatter,
    bags,
    segments,
    convolutions,
    pools,
    resize,
    matrices,
    checks,
    random,
)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
