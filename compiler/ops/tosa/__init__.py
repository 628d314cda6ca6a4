"""The TOSA registry: lowers to TOSA ops wherever TOSA supports the semantics, the element type and the rank.

Some lowerings combine several TOSA ops, if no step is less exact than eager's kernel by more than the rounding of one
product. A lowering that TOSA cannot express raises `LoweringError`; the next registry is tried, and the reason is shown
for the node.
"""

from __future__ import annotations

from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import elementwise, indexing, products, reductions, shapes, windows

_FAMILIES = (elementwise, indexing, products, reductions, shapes, windows)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
for _family in _FAMILIES:
    ops_registry.absent |= _family.ops_registry.absent
