"""Linear algebra that reduces to loops: factorisations, systems of equations and spectra of stacks of matrices."""

from __future__ import annotations

from buddy.compiler.ops.matrices import failures, householder, lu, triangular
from buddy.compiler.ops.registry import Registry

ops_registry = Registry(*(family.ops_registry for family in (failures, lu, triangular, householder)))
