"""The TOSA registry: lowers ops to TOSA where TOSA supports their semantics, element type and rank.

A lowering may combine several TOSA ops, if the error exceeds that of eager at most by the rounding of one product. It
raises `LoweringError` for cases that TOSA cannot express; then the next registry is tried, and the node shows the
reason.
"""

from __future__ import annotations

from buddy.compiler.ops.tosa import contractions, elementwise, reductions, shapes
from buddy.compiler.ops.utils import Registry

_FAMILIES = (elementwise, shapes, contractions, reductions)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
for _family in _FAMILIES:
    ops_registry.absence_reasons |= _family.ops_registry.absence_reasons
