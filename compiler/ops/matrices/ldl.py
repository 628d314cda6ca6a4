"""Lowers LDLᵀ factorisation of symmetric matrices with Bunch-Kaufman pivoting, like LAPACK's `sytf2`, and its solver.

D has blocks of one or two rows. The pivot of a block is the row, counted from 1, with which the block's last row was
swapped. The pivots of a block of two rows are negative. Hermitian matrices have LDLᴴ, like `hetf2`: for them, `conj` is
the complex conjugate, otherwise it returns its operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.indexing import clamp_index, fall_back_if_outside
from buddy.compiler.ops.loops import Extent, compare, index_to_scalar, minus, pick, plus
from buddy.compiler.ops.matrices.factorizations import swap_rows, triangle
from buddy.compiler.ops.matrices.stack import (
    INT32,
    StackedProblem,
    as_stack,
    for_each_problem,
    reshape_to_results,
    results_or_eager,
    stack_shape,
)
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import Registry, SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering

# (1 + sqrt(17)) / 8, which minimises the bound on the growth of elements (Bunch and Kaufman 1977).
PIVOT_THRESHOLD = 0.6403882032022076
# The complex conjugate, or the identity.
Conj = Callable[[Scalar], Scalar]


def conj_of(node: Op, position: int, dtype: TensorDType) -> Conj:
    """Returns the function `conj` for a node with the argument `hermitian` at `position`; real matrices ignore this."""
    return s.conj if dtype.is_complex and argument(node, position, "hermitian", False) else lambda x: x


def diagonal(p: StackedProblem, i: Extent, conj: Conj) -> Scalar:
    """Returns an element of the diagonal; LAPACK reads only the real part of that of a Hermitian matrix."""
    x = p["a", i, i]
    return x.like(s.real_part(x)) if conj is s.conj else x


def make_diagonal_real(p: StackedProblem, i: Extent, conj: Conj) -> None:
    """Drops the imaginary part of an element of the diagonal of a Hermitian matrix, which is a rounding error."""
    if conj is s.conj:
        p["a", i, i] = diagonal(p, i, conj)


def choose_pivot(p: StackedProblem, k: ir.Value, conj: Conj) -> tuple[Scalar, Scalar, ir.Value]:
    """Chooses the pivot of column `k`.

    Returns whether the column is zero or starts with NaN, whether its block has two rows, and the row to swap with.
    """
    size, pivot = p.shape("a")[0], s.blas_magnitude(diagonal(p, k, conj))
    column_maximum, row = p.find_largest(plus(k, 1), size, lambda i: ("a", i, k))
    row = pick(compare("slt", row, size), row, k)  # the last column has no elements below it
    left, _ = p.find_largest(k, row, lambda j: ("a", row, j))
    below, _ = p.find_largest(plus(row, 1), size, lambda i: ("a", i, row))
    row_maximum = s.maximum(left, below)
    is_empty = s.maximum(pivot, column_maximum).compare("eq", 0) | pivot.compare("ne", pivot)
    # As in LAPACK, the quotient of two magnitudes avoids overflow.
    threshold = PIVOT_THRESHOLD * column_maximum
    is_unswapped = is_empty | (pivot >= threshold) | (pivot >= threshold * (column_maximum / row_maximum))
    is_single = is_unswapped | (s.blas_magnitude(diagonal(p, row, conj)) >= PIVOT_THRESHOLD * row_maximum)
    return is_empty, is_single.compare("eq", 0), pick(is_unswapped, k, row)


def swap(p: StackedProblem, k: Extent, last: Any, row: Extent, conj: Conj) -> None:
    """Swaps rows and columns `last` and `row` of the lower triangle, from column `k` on, where the block starts."""
    size = p.shape("a")[0]

    def exchange_conjugates(i: Any) -> None:
        p["a", i, last], p["a", row, i] = conj(p["a", row, i]), conj(p["a", i, last])

    p.exchange(lambda i: ("a", i, last), lambda i: ("a", i, row), plus(row, 1), size)
    p.each(plus(last, 1), row, exchange_conjugates)
    if conj is s.conj:
        p["a", row, last] = conj(p["a", row, last])
    p.exchange(lambda _: ("a", last, last), lambda _: ("a", row, row), 0, 1)
    p.exchange(lambda j: ("a", last, j), lambda j: ("a", row, j), k, last)


def eliminate(p: StackedProblem, k: Extent, conj: Conj) -> None:
    """Eliminates a block of one row."""
    size, inverse = p.shape("a")[0], 1 / p["a", k, k]

    def subtract_pivot_row(i: Extent) -> None:
        factor = p["a", i, k] * inverse
        p.update(("a", i), plus(k, 1), plus(i, 1), lambda j, x: x - factor * conj(p["a", j, k]))
        make_diagonal_real(p, i, conj)

    def scale(i: Extent) -> None:
        p["a", i, k] = p["a", i, k] * inverse

    p.each(plus(k, 1), size, subtract_pivot_row)
    p.each(plus(k, 1), size, scale)


def eliminate_pair(p: StackedProblem, k: Extent, conj: Conj) -> None:
    """Eliminates a block of two rows, whose inverse is `scale * [[low, -1], [-1, high]]`.

    For a Hermitian matrix, the inverse has `-phase` and its conjugate instead of -1; its other elements are real.
    """
    size, last, off_diagonal = p.shape("a")[0], plus(k, 1), p["a", plus(k, 1), k]
    length = s.modulus(off_diagonal) if conj is s.conj else off_diagonal
    phase = off_diagonal / length if conj is s.conj else off_diagonal.like(1)
    low, high = p["a", last, last] / length, p["a", k, k] / length
    scale = 1 / (low * high - 1) / length

    def eliminate_column(j: Extent) -> None:
        x, y = p["a", j, k], p["a", j, last]
        first, second = scale * (low * x - phase * y), scale * (high * y - conj(phase) * x)

        def update(i: Extent) -> None:
            p["a", i, j] = p["a", i, j] - p["a", i, k] * conj(first) - p["a", i, last] * conj(second)

        p.each(j, size, update)
        p["a", j, k], p["a", j, last] = first, second
        make_diagonal_real(p, j, conj)

    p.each(plus(k, 2), size, eliminate_column)


@lowering("LdlFactorOp")
def ldl_factor(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns L and D in one lower triangle, the pivots, and an error code: the first empty column, from 1, or 0."""
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, size, _ = stack_shape(a, dtype)
    conj = conj_of(node, 1, dtype)

    def factor_block(p: StackedProblem, k: ir.Value) -> list[ir.Value]:
        """Returns the start of the next block."""
        is_empty, is_pair, row = choose_pivot(p, k, conj)
        last = pick(is_pair, plus(k, 1), k)
        swap(p, k, last, row, conj)
        for i in (k, last, row):
            make_diagonal_real(p, i, conj)
        pivot = index_to_scalar(plus(row, 1), INT32)
        p["pivots", k] = p["pivots", last] = s.select(is_pair, -pivot, pivot)
        is_first_empty = is_empty & p["info"].compare("eq", 0)
        p["info"] = s.select(is_first_empty, index_to_scalar(plus(k, 1), INT32), p["info"])
        p.branch(
            is_pair,
            lambda: eliminate_pair(p, k, conj),
            lambda: p.branch(is_empty, lambda: None, lambda: eliminate(p, k, conj)),
        )
        return [plus(last, 1)]

    def algorithm(p: StackedProblem) -> None:
        p.while_loop([0], lambda k: (compare("slt", k, size), [k]), lambda k: factor_block(p, k))

    parts = {"a": (triangle(a, dtype, upper=False), dtype), "pivots": (st.empty([count, size], INT32), INT32)}
    parts["info"] = (st.filled(0, [count], INT32), INT32)
    results = reshape_to_results(node, for_each_problem(parts, algorithm))
    if not argument(node, 2, "check_errors", False):
        return results
    return results_or_eager(results[2], node, symbol_table, results, "a pivot is 0")


def subtract_row(p: StackedProblem, row: Extent, factor: Scalar, source: Extent) -> None:
    """Subtracts a multiple of row `source` of "b" from row `row`."""
    p.update(("b", row), 0, p.shape("b")[1], lambda j, x: x - factor * p["b", source, j])


def divide_rows(p: StackedProblem, k: Extent, last: Any, conj: Conj) -> None:
    """Divides rows `k` and `last` of "b" by the block of D that has these two rows."""
    off_diagonal = p["a", last, k]
    high, low = p["a", k, k] / conj(off_diagonal), p["a", last, last] / off_diagonal
    scale = 1 / (high * low - 1)

    def divide(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
        x, y = x / conj(off_diagonal), y / off_diagonal
        return scale * (low * x - y), scale * (high * y - x)

    p.update_pairs(lambda j: ("b", k, j), lambda j: ("b", last, j), 0, p.shape("b")[1], divide)


def _pivot_row(p: StackedProblem, k: Extent, size: Any) -> ir.Value:
    """Returns the row with which the last row of the block of row `k` was swapped, clamped to the matrix."""
    return clamp_index(s.cast(s.absolute(p["pivots", k]) - 1, TensorDType.Int64), size)


def solve_block_forward(p: StackedProblem, k: Extent, size: Any, conj: Conj) -> list[Any]:
    """Solves `l d x = b` for the block that starts at `k`. Returns the start of the next block."""
    is_single, row = p["pivots", k] > 0, _pivot_row(p, k, size)
    last = pick(is_single, k, clamp_index(index_to_scalar(plus(k, 1)), size))
    swap_rows(p, "b", last, row)

    def eliminate_below(i: Extent) -> None:
        subtract_row(p, i, p["a", i, k], k)
        p.branch(is_single, lambda: None, lambda: subtract_row(p, i, p["a", i, last], last))

    p.each(plus(last, 1), size, eliminate_below)
    pivot = diagonal(p, k, conj)
    p.branch(
        is_single,
        lambda: p.update(("b", k), 0, p.shape("b")[1], lambda _, x: x / pivot),
        lambda: divide_rows(p, k, last, conj),
    )
    return [plus(last, 1)]


def solve_block_backward(p: StackedProblem, k: Extent, size: Any, conj: Conj) -> list[Any]:
    """Solves `lᵀ x = b` or `lᴴ x = b` for the block that ends at `k`. Returns the end of the previous block."""
    is_single, row = p["pivots", k] > 0, _pivot_row(p, k, size)
    first = pick(is_single, k, clamp_index(index_to_scalar(minus(k, 1)), size))
    p.each(first, plus(k, 1), lambda r: p.each(plus(k, 1), size, lambda i: subtract_row(p, r, conj(p["a", i, r]), i)))
    swap_rows(p, "b", k, row)
    return [minus(pick(is_single, k, minus(k, 1)), 1)]


@lowering("LdlSolveOp")
def ldl_solve(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Solves `a x = b` from the factors and pivots of `ldl_factor`; the arguments are factors, pivots, b."""
    dtype, batch = node.tensor_meta.dtype, node.tensor_meta.shape[:-2]
    a, b = (as_stack(node.args[i], symbol_table, batch=batch) for i in (0, 2))
    pivots = as_stack(node.args[1], symbol_table, rank=1, batch=batch)
    size, conj = st.shape_of(a)[1], conj_of(node, 3, dtype)
    fall_back_if_outside(node, symbol_table, [(node.args[1], size)], read=lambda pivot: s.absolute(pivot) - 1)

    def algorithm(p: StackedProblem) -> None:
        p.while_loop([0], lambda k: (compare("slt", k, size), [k]), lambda k: solve_block_forward(p, k, size, conj))
        last = minus(size, 1)
        p.while_loop([last], lambda k: (compare("sge", k, 0), [k]), lambda k: solve_block_backward(p, k, size, conj))

    return reshape_to_results(
        node, for_each_problem({"b": (b, dtype)}, algorithm, {"a": (a, dtype), "pivots": (pivots, INT32)})
    )
