"""Lowers matrix exponentials: scaling and squaring of a Taylor polynomial (Higham, Functions of Matrices, 10.3)."""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loops import Extent, index_to_scalar, number, scalar_to_index
from buddy.compiler.ops.matrices.factorizations import identity
from buddy.compiler.ops.matrices.stack import (
    INT32,
    StackedProblem,
    as_stack,
    empty_stack,
    for_each_problem,
    reshape_to_results,
    results_or_eager,
    stack_shape,
)
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sums import cast_tensor
from buddy.compiler.ops.utils import LoweringError, SymbolTable

ops_registry = Registry()

WIDE = TensorDType.Float64
# The degree of the polynomial. For a matrix of norm 1, the next term is 1/20! = 4e-19.
TAYLOR_DEGREE = 19
# Eager computes matrices of a larger norm.
LARGEST_NORM = 2.0**1000


def multiply(p: StackedProblem, x: str, y: str, result: str) -> None:
    """Sets the matrix `result` to the product of the matrices `x` and `y`."""
    size = p.shape(result)[0]

    def compute_row(i: Extent) -> None:
        p.update((result, i), 0, size, lambda _, old: old.like(0))
        p.each(0, size, lambda k: add_row(i, k, p[x, i, k]))

    def add_row(i: Extent, k: Extent, factor: Scalar) -> None:
        p.update((result, i), 0, size, lambda j, total: total + factor * p[y, k, j])

    p.each(0, size, compute_row)


def infinity_norm(p: StackedProblem) -> Scalar:
    """Returns the infinity norm of "a": the largest row sum of magnitudes."""
    size, zero = p.shape("a")[0], number(0, WIDE)

    def step(i: Extent, largest: Scalar) -> list[Scalar]:
        (row_sum,) = p.fold(0, size, [zero], lambda j, sum_: [sum_ + s.modulus(p["a", i, j])])
        return [s.maximum(largest, row_sum)]

    return p.fold(0, size, [zero], step)[0]


def update_matrix(p: StackedProblem, name: str, body: Callable[[ir.Value, ir.Value, Scalar], Scalar]) -> None:
    """Replaces each element `x` of a matrix by `body(i, j, x)`."""
    size = p.shape(name)[0]
    p.each(0, size, lambda i: p.update((name, i), 0, size, lambda j, x: body(i, j, x)))


def exponential(p: StackedProblem) -> None:
    """Computes the exponential of "a" in "sum", which starts as the identity; "term" and "product" are scratch.

    Halves the matrix until its norm is at most 1, sums the Taylor series, and squares the sum as often.
    """
    matrix_norm = infinity_norm(p)
    # False also for NaN. Beyond the limit, 2 to the power of `-halvings` would be subnormal.
    is_scalable = matrix_norm.compare("lt", LARGEST_NORM)
    p["info"] = s.select(is_scalable, number(0, INT32), number(1, INT32))
    halvings = s.ceil(s.log2(s.maximum(s.select(is_scalable, matrix_norm, 1), 1)))
    factor = s.exp2(-halvings)
    update_matrix(p, "a", lambda i, j, x: x * factor)
    update_matrix(p, "term", lambda i, j, _: p["sum", i, j])

    def add_term(k: ir.Value) -> None:
        order = s.cast(index_to_scalar(k), WIDE)
        multiply(p, "term", "a", "product")
        update_matrix(p, "term", lambda i, j, _: p["product", i, j] / order)
        update_matrix(p, "sum", lambda i, j, total: total + p["term", i, j])

    def square(_: Extent) -> None:
        multiply(p, "sum", "sum", "product")
        update_matrix(p, "sum", lambda i, j, _: p["product", i, j])

    p.each(1, TAYLOR_DEGREE + 1, add_term)
    p.each(0, scalar_to_index(s.cast(halvings, TensorDType.Int64)), square)


@ops_registry.lowering("MatrixExponentialOp")
def matrix_exponential(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Computes in f64; falls back to eager for a matrix that is not finite, or whose norm is at least 2^1000."""
    dtype = node.tensor_meta.dtype
    if dtype in (TensorDType.Float16, TensorDType.BFloat16):
        raise LoweringError(f"eager rounds every step to {dtype.value}, and returns NaN if a step overflows")
    wide = WIDE.complex if dtype.is_complex else WIDE
    a = cast_tensor(as_stack(node.args[0], symbol_table), dtype.part, WIDE)
    shape = stack_shape(a, dtype)
    parts = {"sum": (identity(shape, wide), wide), "a": (a, wide), "info": (st.filled(0, shape[:1], INT32), INT32)}
    parts |= {name: (empty_stack(shape, wide), wide) for name in ("term", "product")}
    solved = dict(zip(parts, for_each_problem(parts, exponential), strict=True))
    results = reshape_to_results(node, [cast_tensor(solved["sum"], WIDE, dtype.part)])
    condition = "a matrix has an infinity or NaN, or a norm of at least 2^1000"
    return results_or_eager(solved["info"], node, symbol_table, results, condition)
