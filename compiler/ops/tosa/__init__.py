"""The TOSA registry: TOSA ops wherever TOSA has one for the meaning, the element type and the rank.

Some meanings take several TOSA ops; those are here too where no step of them is less exact than eager's own kernel by
more than the rounding of one product. What TOSA cannot say raises `LoweringError`, and the node falls to the next
registry with that reason beside it.
"""

from __future__ import annotations

from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import elementwise, indexing, products, reductions, shapes, windows

_FAMILIES = (elementwise, indexing, products, reductions, shapes, windows)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
for _family in _FAMILIES:
    ops_registry.absent |= _family.ops_registry.absent
