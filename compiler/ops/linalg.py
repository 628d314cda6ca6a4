"""The linalg registry: every op that this project lowers, to `linalg` on tensors."""

from __future__ import annotations

from buddy.compiler.ops import attention, contractions, elementwise, indexing, reductions, shapes, windows
from buddy.compiler.ops.registry import Registry

ops_registry = Registry(
    {
        **elementwise.ops_registry,
        **contractions.ops_registry,
        **attention.ops_registry,
        **reductions.ops_registry,
        **shapes.ops_registry,
        **indexing.ops_registry,
        **windows.ops_registry,
    }
)
