"""The linalg registry: every op that this project lowers, to `linalg` on tensors."""

from __future__ import annotations

from buddy.compiler.ops import contractions, elementwise, reductions, shapes
from buddy.compiler.ops.registry import Registry

ops_registry = Registry(
    {
        **elementwise.ops_registry,
        **contractions.ops_registry,
        **reductions.ops_registry,
        **shapes.ops_registry,
    }
)
