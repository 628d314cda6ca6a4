"""The programs that every lowering is tried on: for each group, its inputs and named functions of them."""

from __future__ import annotations

from tests.ops.cases import (
    complexes,
    contractions,
    corners,
    division,
    edges,
    elementwise,
    indexing,
    linear_algebra,
    recurrent,
    reductions,
    sampling,
    shapes,
    sorting,
    special,
    windows,
)  # fmt: skip
from tests.ops.cases.base import Group, aten, normal, whole

__all__ = ["CORE", "GROUPS", "TYPES_OF_TOSA", "Group", "aten", "normal", "whole"]

GROUPS: dict[str, Group] = {
    **elementwise.GROUPS,
    **division.GROUPS,
    **special.GROUPS,
    **complexes.GROUPS,
    **edges.GROUPS,
    **shapes.GROUPS,
    **reductions.GROUPS,
    **contractions.GROUPS,
    **corners.GROUPS,
    **indexing.GROUPS,
    **sorting.GROUPS,
    **windows.GROUPS,
    **linear_algebra.GROUPS,
    **recurrent.GROUPS,
    **sampling.GROUPS,
}

# These hold every op class of the registries, and are tried in every dialect under every preset.
CORE = (
    "division of whole numbers", "parts of numbers", "special functions", "functions of shares",
    "orthogonal polynomials", "incomplete gamma functions",
    "complex numbers",
    "arithmetic", "division", "bools", "functions", "casts of floats", "shapes", "reductions", "a weighted norm",
    "products", "products of bytes", "products with 4-bit weights",
    "grouped products", "attention", "indexing", "factories", "windows", "parts",
    "special values", "folds, scans and positions", "sorting", "sorting of int64", "writes by index", "moves", "bits",
    "random bits",
    "gradients of convolutions", "pools", "resampling", "linear algebra", "recurrent layers",
    "gradients of recurrent layers",
)  # fmt: skip

# Of the others, those with a type or a shape that TOSA's own lowerings meet.
TYPES_OF_TOSA = (
    "broadcast", "rank 0", "a scalar tensor among others", "int32", "bfloat16", "float16", "empty",
    "pairs of special values", "shapes of integers", "reductions of int32", "reductions of special values", "int64",
    "uint8", "functions of bfloat16", "functions of float16", "casts of integers", "casts of bools", "casts of bytes",
    "reductions of int64", "reductions of bools", "reductions of bfloat16", "rounded numbers of float16",
    "corners", "powers of special values",
)  # fmt: skip
