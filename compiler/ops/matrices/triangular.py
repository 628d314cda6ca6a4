"""Triangular systems, Cholesky factorisation, and solvers that combine them."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import positions
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loop_state import minus, plus
from buddy.compiler.ops.loops import index_of
from buddy.compiler.ops.matrices.failures import results_or_eager
from buddy.compiler.ops.matrices.stack import (
    INT32,
    StackedProblem,
    as_results,
    as_stack,
    solve_stack,
    transpose_matrices,
)
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering


def triangle(value: Any, dtype: TensorDType, upper: bool, unit: bool = False) -> Any:
    """Returns a triangle of each matrix [count, rows, columns], with zeros elsewhere; `unit` sets the diagonal to 1."""

    def body(x: Scalar) -> Scalar:
        row, column = positions.loops(1, 2)
        kept = s.select(column >= row if upper else column <= row, x, 0)
        return s.select(row.compare("eq", column), 1, kept) if unit else kept

    return st.pointwise([(value, dtype)], st.shape_of(value), dtype, body)


def identity(shape: tuple[Dim, ...], dtype: TensorDType) -> Any:
    """Returns a stack [count, rows, columns] of matrices with ones on the diagonal."""
    return positions.computed(shape, dtype, lambda _, i, j: s.cast(i.compare("eq", j), dtype))


def solve_triangular(a: Any, b: Any, dtype: TensorDType, upper: bool, unit: bool = False) -> Any:
    """Solves `a x = b` for a stack of triangles [count, n, n] and right-hand sides [count, n, m].

    Substitutes one row of `x` at a time. Reads only the triangle of `a`, and not its diagonal if `unit`.
    """
    size, width = st.shape_of(b)[1:]

    def steps(p: StackedProblem) -> None:
        def row(step: Any) -> None:
            i = minus(minus(size, 1), step) if upper else step
            first, last = (plus(i, 1), size) if upper else (0, i)
            p.each(first, last, lambda k: subtract(p, i, k))
            if not unit:
                diagonal = p["a", i, i]
                p.revise(("b", i), 0, width, lambda _, x: x / diagonal)

        p.each(0, size, row)

    def subtract(p: StackedProblem, i: Any, k: Any) -> None:
        factor = p["a", i, k]
        p.revise(("b", i), 0, width, lambda j, x: x - factor * p["b", k, j])

    return solve_stack({"b": (b, dtype)}, steps, {"a": (a, dtype)})[0]


@lowering("TriangularSolveOp")
def triangular_solve(node: Op, symbol_table: SymbolTable) -> Any:
    """Solves `x a = b` as the transposed system."""
    dtype, upper, batch = node.tensor_meta.dtype, argument(node, 2, "upper"), node.tensor_meta.shape[:-2]
    a, b = (as_stack(arg, symbol_table, batch=batch) for arg in node.args[:2])
    left, unit = argument(node, 3, "left", True), argument(node, 4, "unitriangular", False)
    if left:
        return as_results(node, [solve_triangular(a, b, dtype, upper, unit)])
    return as_results(
        node,
        [
            transpose_matrices(
                solve_triangular(transpose_matrices(a, dtype), transpose_matrices(b, dtype), dtype, not upper, unit),
                dtype,
            )
        ],
    )


def cholesky_factor(a: Any, dtype: TensorDType) -> tuple[Any, Any]:
    """Returns the upper triangle `u` with `uᵀ u = a` for a stack [count, n, n], and an i32 per matrix.

    The latter is 0, or the order of the first leading minor that is not positive. Only the upper triangle of `a` is
    read.
    """
    count, size, _ = st.shape_of(a)

    def steps(p: StackedProblem) -> None:
        def column(k: Any) -> None:
            pivot = p["u", k, k]
            sound, positive = p["info"].compare("eq", 0), pivot > 0
            p["info"] = s.select(sound & positive.compare("eq", 0), index_of(plus(k, 1), INT32), p["info"])
            p.choose(sound & positive, lambda: eliminate(p, k, s.sqrt(pivot)))

        p.each(0, size, column)

    def eliminate(p: StackedProblem, k: Any, root: Scalar) -> None:
        p.revise(("u", k), k, size, lambda _, x: x / root)

        def row(i: Any) -> None:
            factor = p["u", k, i]
            p.revise(("u", i), i, size, lambda j, x: x - factor * p["u", k, j])

        p.each(plus(k, 1), size, row)

    parts = {"u": (triangle(a, dtype, upper=True), dtype), "info": (st.filled(0, [count], INT32), INT32)}
    u, info = solve_stack(parts, steps)
    return u, info


@lowering("CholeskyOp")
def cholesky(node: Op, symbol_table: SymbolTable) -> Any:
    """Computes a lower factor as the transpose of the upper one, from the triangle that the node names.

    Falls back to eager for a matrix without a factor.
    """
    dtype, upper = node.args[0].tensor_meta.dtype, argument(node, 1, "upper", False)
    a = as_stack(node.args[0], symbol_table)
    factor, info = cholesky_factor(a if upper else transpose_matrices(a, dtype), dtype)
    factor = factor if upper else transpose_matrices(factor, dtype)
    return results_or_eager(info, node, symbol_table, as_results(node, [factor, info] if node.multiple else [factor]))


def solve_by_factor(factor: Any, b: Any, dtype: TensorDType, upper: bool) -> Any:
    """Solves `a x = b`, where `factor` is `u` of `a = uᵀ u` if `upper`, else `l` of `a = l lᵀ`."""
    other = transpose_matrices(factor, dtype)
    lower, upper_ = (other, factor) if upper else (factor, other)
    return solve_triangular(upper_, solve_triangular(lower, b, dtype, upper=False), dtype, upper=True)


@lowering("CholeskySolveOp")
def cholesky_solve(node: Op, symbol_table: SymbolTable) -> Any:
    batch, dtype = node.tensor_meta.shape[:-2], node.tensor_meta.dtype
    b, factor = (as_stack(arg, symbol_table, batch=batch) for arg in node.args[:2])
    return as_results(node, [solve_by_factor(factor, b, dtype, argument(node, 2, "upper", False))])


@lowering("CholeskyInverseOp")
def cholesky_inverse(node: Op, symbol_table: SymbolTable) -> Any:
    """Falls back to eager for a zero on the diagonal, which eager rejects."""
    factor, dtype = as_stack(node.args[0], symbol_table), node.tensor_meta.dtype
    shape = st.shape_of(factor)

    def find(p: StackedProblem) -> None:
        def look(i: Any) -> None:
            p["info"] = p["info"] | s.cast(p["a", i, i].compare("eq", 0), INT32)

        p.each(0, shape[1], look)

    (info,) = solve_stack({"info": (st.filled(0, shape[:1], INT32), INT32)}, find, {"a": (factor, dtype)})
    found = solve_by_factor(factor, identity(shape, dtype), dtype, argument(node, 1, "upper", False))
    return results_or_eager(info, node, symbol_table, as_results(node, [found]))
