"""The linalg registry: collects the lowerings to `linalg` on tensors from the other modules of this folder."""

from __future__ import annotations

from buddy.compiler.ops import (
    attention,
    bounds,
    contractions,
    convolutions,
    data_movement,
    elementwise,
    indexing,
    matrices,
    pools,
    quantised,
    random,
    recurrent,
    recurrent_gradients,
    reductions,
    resize,
    scans,
    scatter,
    searching,
    segments,
    shapes,
    sorting,
    windows,
)
from buddy.compiler.ops.registry import Registry

_FAMILIES = (
    elementwise,
    contractions,
    attention,
    recurrent,
    recurrent_gradients,
    reductions,
    scans,
    sorting,
    searching,
    shapes,
    data_movement,
    windows,
    indexing,
    scatter,
    segments,
    convolutions,
    quantised,
    pools,
    resize,
    matrices,
    bounds,
    random,
)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
