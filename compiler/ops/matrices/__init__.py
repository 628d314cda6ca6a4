"""Lowers dense linear algebra to loops: factorisations, linear systems, eigenvalues, singular values, exponentials.

An algorithm is a function of one problem (`p`, a `stack.StackedProblem`) of a stack, whose matrices and vectors have
names: `p["a", i, j]` is an element. A part named "info" is an error code as in LAPACK: it is not 0 if the algorithm has
failed on a matrix. The node then falls back to eager.
"""

from __future__ import annotations

from buddy.compiler.ops.matrices import factorizations, jacobi, ldl, stack
from buddy.compiler.ops.utils import Registry

ops_registry = Registry(
    stack.ops_registry,
    factorizations.ops_registry,
    ldl.ops_registry,
    jacobi.ops_registry,
)
