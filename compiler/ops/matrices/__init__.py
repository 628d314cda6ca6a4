"""Lowers dense linear algebra to loops: factorisations, linear systems, eigenvalues, singular values, exponentials."""

from __future__ import annotations

from buddy.compiler.ops.matrices import exponential, factorizations, jacobi, stack, symmetric
from buddy.compiler.ops.registry import Registry

_FAMILIES = (stack, factorizations, symmetric, jacobi, exponential)

ops_registry = Registry(*(family.ops_registry for family in _FAMILIES))
