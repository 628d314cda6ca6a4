"""The TOSA registry: lowers ops to TOSA where TOSA supports their semantics, element type and rank.

Some lowerings combine several TOSA ops, if this adds at most the rounding of one product to the error of eager. A
lowering raises `LoweringError` for cases that TOSA cannot express; the next registry is tried, and the reason is shown
for the node.
"""

from __future__ import annotations

from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import contractions, elementwise, reductions, shapes

_FAMILIES = (elementwise, shapes, contractions, reductions)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
for _family in _FAMILIES:
    ops_registry.absent |= _family.ops_registry.absent
