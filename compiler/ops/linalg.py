"""The linalg registry: collects the lowerings to `linalg` on tensors from the other modules of this folder.

A new module with lowerings needs a line here.
"""

from __future__ import annotations

from buddy.compiler.ops import (
    attention,
    contractions,
    convolutions,
    data_movement,
    elementwise,
    indexing,
    matrices,
    pools,
    quantised,
    recurrent,
    recurrent_gradients,
    reductions,
    resize,
    scans,
    scatter,
    searching,
    shapes,
    sorting,
)
from buddy.compiler.ops.utils import Registry

ops_registry = Registry(
    elementwise.ops_registry,
    contractions.ops_registry,
    attention.ops_registry,
    recurrent.ops_registry,
    recurrent_gradients.ops_registry,
    reductions.ops_registry,
    scans.ops_registry,
    sorting.ops_registry,
    searching.ops_registry,
    shapes.ops_registry,
    data_movement.ops_registry,
    convolutions.ops_registry,
    indexing.ops_registry,
    scatter.ops_registry,
    quantised.ops_registry,
    pools.ops_registry,
    resize.ops_registry,
    matrices.ops_registry,
)
