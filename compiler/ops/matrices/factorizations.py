"""Lowers LU, QR and Cholesky factorisations, the solvers that use them, and matrix exponentials.

Exponentials are computed by scaling and squaring of a Taylor polynomial (Higham, Functions of Matrices, 10.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import data_movement
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.indexing import clamp_index, fall_back_if_outside
from buddy.compiler.ops.loops import Extent, index_to_scalar, minus, number, plus, scalar_to_index
from buddy.compiler.ops.matrices.stack import (
    INT32,
    StackedProblem,
    adjoint_matrices,
    as_stack,
    conjugate,
    empty_stack,
    for_each_problem,
    meta_of,
    reshape_to_results,
    results_or_eager,
    smaller_extent,
    stack_shape,
    transpose_matrices,
)
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.structured import cast_tensor
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering


def norm(p: StackedProblem, name: str, start: Extent, end: Extent, column: Extent) -> Scalar:
    """Returns the Euclidean norm of rows `start` to `end` - 1 of a column; scales them so that no square overflows."""
    zero = number(0, p.dtypes[name].part)
    (largest,) = p.fold(start, end, [zero], lambda i, x: [s.maximum(x, s.largest_part(p[name, i, column]))])
    divisor = s.select(largest.compare("eq", 0), 1, largest)

    def add_square(i: Extent, total: Scalar) -> list[Scalar]:
        return [total + s.square_modulus(p[name, i, column] / divisor)]

    return largest * s.sqrt(p.fold(start, end, [zero], add_square)[0])


def reflect(p: StackedProblem, reflectors: str, k: Extent, tau: Scalar, target: str, first: Extent) -> None:
    """Multiplies the columns of `target` from `first` on by `1 - tau v vᴴ` from the left.

    `v` is column `k` of `reflectors` below row `k`, with an implicit 1 at row `k`. The part "products" stores `vᴴ
    target`.
    """
    rows, columns = p.shape(target)

    def add_product(i: Extent) -> None:
        v = s.conj(p[reflectors, i, k])
        p.update(("products",), first, columns, lambda j, x: x + v * p[target, i, j])

    def subtract_product(i: Extent) -> None:
        v = p[reflectors, i, k] * tau
        p.update((target, i), first, columns, lambda j, x: x - v * p["products", j])

    p.update(("products",), first, columns, lambda j, _: p[target, k, j])
    p.each(plus(k, 1), rows, add_product)
    p.update((target, k), first, columns, lambda j, x: x - tau * p["products", j])
    p.each(plus(k, 1), rows, subtract_product)


@lowering("HouseholderFactorOp")
def householder_factor(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns R with the reflectors below the diagonal, and the coefficient tau of each reflector.

    Step `k` makes the reflector that maps column `k`, from row `k` on, to a multiple `beta` of the first unit vector,
    like LAPACK's `larfg`, and applies it to the columns behind. The diagonal of a complex R is real, and `tau` complex,
    as in LAPACK.
    """
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, rows, columns = stack_shape(a, dtype)
    taus = empty_stack([count, meta_of(node, 1).shape[-1]], dtype)

    def step(p: StackedProblem, k: ir.Value) -> None:
        alpha, norm_below = p["a", k, k], norm(p, "a", plus(k, 1), rows, k)
        is_reduced = norm_below.compare("eq", 0) & s.imaginary_part(alpha).compare("eq", 0)
        real = s.real_part(alpha)
        beta = s.select(is_reduced, real, -s.copysign(norm(p, "a", k, rows, k), real))
        divisor = s.select(is_reduced, alpha.like(1), alpha - beta)
        p["taus", k] = tau = s.select(is_reduced, alpha.like(0), (beta - alpha) / s.select(is_reduced, 1, beta))

        def scale(i: Extent) -> None:
            p["a", i, k] = p["a", i, k] / divisor

        p.each(plus(k, 1), rows, scale)
        reflect(p, "a", k, s.conj(tau), "a", plus(k, 1))
        p["a", k, k] = alpha.like(beta)

    def algorithm(p: StackedProblem) -> None:
        p.each(0, smaller_extent(rows, columns), lambda k: step(p, k))

    parts = {"a": (a, dtype), "taus": (taus, dtype), "products": (empty_stack([count, columns], dtype), dtype)}
    factored, new_taus, _ = for_each_problem(parts, algorithm)
    return reshape_to_results(node, [factored, new_taus])


@lowering("ReflectOp")
def multiply_by_reflectors(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns `q c`, `qᴴ c`, `c q` or `c qᴴ` for the product `q` of the reflectors; the last two by transposition.

    The arguments are the reflectors, taus, c, left, transpose.
    """
    dtype = node.tensor_meta.dtype
    left, is_transposed = argument(node, 3, "left", True), argument(node, 4, "transpose", False)
    reflectors, other = as_stack(node.args[0], symbol_table), as_stack(node.args[2], symbol_table)
    taus = as_stack(node.args[1], symbol_table, rank=1)
    count, length = stack_shape(taus, dtype)
    other = other if left else adjoint_matrices(other, dtype)

    def algorithm(p: StackedProblem) -> None:
        def step(i: Extent) -> None:
            # `q c` applies the last reflector first, `qᴴ c` the first one.
            k = i if is_transposed == left else minus(minus(length, 1), i)
            tau = p["taus", k]
            reflect(p, "a", k, s.conj(tau) if is_transposed == left else tau, "c", 0)

        p.each(0, length, step)

    products = empty_stack([count, st.shape_of(other)[2]], dtype)
    inputs = {"a": (reflectors, dtype), "taus": (taus, dtype)}
    product = for_each_problem({"c": (other, dtype), "products": (products, dtype)}, algorithm, inputs)[0]
    return reshape_to_results(node, [product if left else adjoint_matrices(product, dtype)])


def triangle(value: ir.Value, dtype: TensorDType, upper: bool, unit: bool = False) -> ir.Value:
    """Returns the upper or lower triangle of each matrix, and zeros elsewhere; `unit` sets the diagonal to 1."""

    def body(x: Scalar) -> Scalar:
        row, column = data_movement.loop_indices(1, 2)
        masked = s.select(column >= row if upper else column <= row, x, 0)
        if not unit:
            return masked
        return s.select(row.compare("eq", column), _one(data_movement.loop_indices(3, rank - 3), dtype), masked)

    rank = len(st.shape_of(value))
    return st.pointwise([(value, dtype.part)], st.shape_of(value), dtype.part, body)


def _one(part: Sequence[Scalar], dtype: TensorDType) -> Scalar:
    """Returns the part of the number 1 that the index `part` selects; for a real number, there is no such index."""
    return s.cast(part[0].compare("eq", 0), dtype.part) if part else number(1, dtype)


def identity(shape: tuple[Dim, ...], dtype: TensorDType) -> ir.Value:
    """Returns a stack [count, rows, columns] of matrices with ones on the diagonal."""

    def body(_: Scalar, i: Scalar, j: Scalar, *part: Scalar) -> Scalar:
        one = _one(part, dtype)
        return s.select(i.compare("eq", j), one, one.like(0))

    return data_movement.compute_tensor(TensorMeta(shape, dtype).stored.shape, dtype.part, body)


def solve_triangular(a: ir.Value, b: ir.Value, dtype: TensorDType, upper: bool, unit: bool = False) -> ir.Value:
    """Solves `a x = b` for a stack of triangles [count, n, n] and right-hand sides [count, n, m].

    Computes one row of `x` at a time. Reads only the triangle of `a`; if `unit`, treats the diagonal as 1.
    """
    size, width = stack_shape(b, dtype)[1:]

    def algorithm(p: StackedProblem) -> None:
        def solve_row(step: Extent) -> None:
            i = minus(minus(size, 1), step) if upper else step
            start, end = (plus(i, 1), size) if upper else (0, i)
            p.each(start, end, lambda k: subtract_row(p, i, k))
            if not unit:
                diagonal = p["a", i, i]
                p.update(("b", i), 0, width, lambda _, x: x / diagonal)

        p.each(0, size, solve_row)

    def subtract_row(p: StackedProblem, i: Extent, k: Extent) -> None:
        factor = p["a", i, k]
        p.update(("b", i), 0, width, lambda j, x: x - factor * p["b", k, j])

    return for_each_problem({"b": (b, dtype)}, algorithm, {"a": (a, dtype)})[0]


@lowering("TriangularSolveOp")
def triangular_solve(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Solves `a x = b`, or `x a = b` as the transposed system."""
    dtype, upper, batch = node.tensor_meta.dtype, argument(node, 2, "upper"), node.tensor_meta.shape[:-2]
    a, b = (as_stack(arg, symbol_table, batch=batch) for arg in node.args[:2])
    left, unit = argument(node, 3, "left", True), argument(node, 4, "unitriangular", False)
    if left:
        return reshape_to_results(node, [solve_triangular(a, b, dtype, upper, unit)])
    a, b = transpose_matrices(a, dtype), transpose_matrices(b, dtype)
    return reshape_to_results(node, [transpose_matrices(solve_triangular(a, b, dtype, not upper, unit), dtype)])


def cholesky_factor(a: ir.Value, dtype: TensorDType) -> tuple[ir.Value, ir.Value]:
    """Returns the upper triangles `u` with `uᴴ u = a` for a stack [count, n, n], and an error code (i32) per matrix.

    The code is 0, or the order of the first leading minor that is not positive. Reads only the upper triangle of `a`,
    and of a complex diagonal only the real part.
    """
    count, size, _ = stack_shape(a, dtype)

    def algorithm(p: StackedProblem) -> None:
        def factor_column(k: Extent) -> None:
            pivot = s.real_part(p["u", k, k])
            has_no_error, is_positive = p["info"].compare("eq", 0), pivot > 0
            is_first_error = has_no_error & is_positive.compare("eq", 0)
            p["info"] = s.select(is_first_error, index_to_scalar(plus(k, 1), INT32), p["info"])
            p.branch(has_no_error & is_positive, lambda: eliminate(p, k, pivot))

        p.each(0, size, factor_column)

    def eliminate(p: StackedProblem, k: Extent, pivot: Scalar) -> None:
        root = s.sqrt(pivot)
        p["u", k, k] = p["u", k, k].like(pivot)
        p.update(("u", k), k, size, lambda _, x: x / root)

        def subtract_pivot_row(i: Extent) -> None:
            factor = s.conj(p["u", k, i])
            p.update(("u", i), i, size, lambda j, x: x - factor * p["u", k, j])

        p.each(plus(k, 1), size, subtract_pivot_row)

    parts = {"u": (triangle(a, dtype, upper=True), dtype), "info": (st.filled(0, [count], INT32), INT32)}
    u, info = for_each_problem(parts, algorithm)
    return u, info


@lowering("CholeskyOp")
def cholesky(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the upper or lower factor, computed from the same triangle; a lower one is the adjoint of an upper one.

    Falls back to eager for a matrix that is not positive definite.
    """
    dtype, upper = node.args[0].tensor_meta.dtype, argument(node, 1, "upper", False)
    a = as_stack(node.args[0], symbol_table)
    factor, info = cholesky_factor(a if upper else adjoint_matrices(a, dtype), dtype)
    factor = factor if upper else adjoint_matrices(factor, dtype)
    results = reshape_to_results(node, [factor, info] if node.multiple else [factor])
    return results_or_eager(info, node, symbol_table, results, "a matrix is not positive definite")


def solve_by_factor(factor: Any, b: ir.Value, dtype: TensorDType, upper: bool) -> Any:
    """Solves `a x = b`, where `factor` is `u` of `a = uᴴ u` if `upper`, else `l` of `a = l lᴴ`."""
    adjoint = adjoint_matrices(factor, dtype)
    lower_factor, upper_factor = (adjoint, factor) if upper else (factor, adjoint)
    return solve_triangular(upper_factor, solve_triangular(lower_factor, b, dtype, upper=False), dtype, upper=True)


@lowering("CholeskySolveOp")
def cholesky_solve(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    batch, dtype = node.tensor_meta.shape[:-2], node.tensor_meta.dtype
    b, factor = (as_stack(arg, symbol_table, batch=batch) for arg in node.args[:2])
    return reshape_to_results(node, [solve_by_factor(factor, b, dtype, argument(node, 2, "upper", False))])


# The condition on which eager computes the inverse from a Cholesky factor, for messages.
UNUSUAL_DIAGONAL = "the diagonal has a zero, or a number that is not real"


@lowering("CholeskyInverseOp")
def cholesky_inverse(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the inverse of the matrix with this Cholesky factor.

    Falls back to eager if the diagonal of the factor has a zero, or a number that is not real: LAPACK ignores the
    imaginary part in only one of its two steps.
    """
    factor, dtype = as_stack(node.args[0], symbol_table), node.tensor_meta.dtype
    shape = stack_shape(factor, dtype)

    def check(p: StackedProblem) -> None:
        def check_diagonal(i: Extent) -> None:
            x = p["a", i, i]
            is_unusual = x.compare("eq", 0) | s.imaginary_part(x).compare("ne", 0)
            p["info"] = p["info"] | s.cast(is_unusual, INT32)

        p.each(0, shape[1], check_diagonal)

    (info,) = for_each_problem({"info": (st.filled(0, shape[:1], INT32), INT32)}, check, {"a": (factor, dtype)})
    inverse = solve_by_factor(factor, identity(shape, dtype), dtype, argument(node, 1, "upper", False))
    return results_or_eager(info, node, symbol_table, reshape_to_results(node, [inverse]), UNUSUAL_DIAGONAL)


def swap_rows(p: StackedProblem, name: str, i: Extent, k: Extent) -> None:
    """Swaps rows `i` and `k` of the matrix `name`."""
    p.exchange(lambda j: (name, i, j), lambda j: (name, k, j), 0, p.shape(name)[1])


@lowering("LuFactorOp")
def lu_factor(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns L and U in one matrix, the pivots, and an error code.

    Step `k` eliminates column `k`, after it swaps row `k` with the row that the pivot names. The error code is the
    first step in which the element on the diagonal is 0, or 0. Pivots and steps count from 1.
    """
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, rows, columns = stack_shape(a, dtype)
    pivots = st.empty([count, meta_of(node, 1).shape[-1]], INT32)
    if not argument(node, 1, "pivot", True):
        raise LoweringError("eager does not support LU without pivoting on the CPU")

    def algorithm(p: StackedProblem) -> None:
        def step(k: ir.Value) -> None:
            _, row = p.find_largest(k, rows, lambda i: ("a", i, k))
            p["pivots", k] = index_to_scalar(plus(row, 1), INT32)
            swap_rows(p, "a", k, row)
            pivot = p["a", k, k]
            is_first_error = p["info"].compare("eq", 0) & pivot.compare("eq", 0)
            p["info"] = s.select(is_first_error, index_to_scalar(plus(k, 1), INT32), p["info"])
            p.each(plus(k, 1), rows, lambda i: _eliminate(p, k, i, pivot, columns))

        p.each(0, smaller_extent(rows, columns), step)

    parts = {"a": (a, dtype), "pivots": (pivots, INT32), "info": (st.filled(0, [count], INT32), INT32)}
    results = reshape_to_results(node, for_each_problem(parts, algorithm))
    if not argument(node, 2, "check_errors", False):
        return results
    return results_or_eager(results[2], node, symbol_table, results, "a pivot is 0")


def _eliminate(p: StackedProblem, k: Extent, i: Extent, pivot: Scalar, columns: Extent) -> None:
    """Subtracts a multiple of row `k` from row `i` to eliminate column `k`, and stores the factor in that column."""
    is_zero = pivot.compare("eq", 0)
    factor = s.select(is_zero, p["a", i, k], p["a", i, k] / s.select(is_zero, pivot.like(1), pivot))
    p["a", i, k] = factor
    p.update(("a", i), plus(k, 1), columns, lambda j, x: x - factor * p["a", k, j])


def _permute_rows(b: ir.Value, dtype: TensorDType, pivots: ir.Value, inverse: bool = False) -> ir.Value:
    """Applies the row swaps of a factorisation to `b` [count, n, m]; with `inverse`, reverts them."""
    pivot_count = st.shape_of(pivots)[1]
    rows = st.shape_of(b)[1]

    def algorithm(p: StackedProblem) -> None:
        def step(i: Extent) -> None:
            k = minus(minus(pivot_count, 1), i) if inverse else i
            swap_rows(p, "b", k, clamp_index(s.cast(p["pivots", k] - 1, TensorDType.Int64), rows))

        p.each(0, pivot_count, step)

    return for_each_problem({"b": (b, dtype)}, algorithm, {"pivots": (pivots, INT32)})[0]


@lowering("LuSolveOp")
def lu_solve(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Solves `a x = b` or `aᴴ x = b` from `a = p l u`; `x a = b` is solved as the transposed system."""
    dtype, batch = node.tensor_meta.dtype, node.tensor_meta.shape[:-2]
    factors, b = (as_stack(node.args[i], symbol_table, batch=batch) for i in (0, 2))
    fall_back_if_outside(node, symbol_table, [(node.args[1], st.shape_of(factors)[1])], read=lambda pivot: pivot - 1)
    pivots = as_stack(node.args[1], symbol_table, rank=1, batch=batch)
    left, adjoint = argument(node, 3, "left", True), argument(node, 4, "adjoint", False)
    b = b if left else transpose_matrices(b, dtype)
    factors = conjugate(factors, dtype) if adjoint else factors
    if adjoint == left:
        transposed = transpose_matrices(factors, dtype)
        x = solve_triangular(transposed, b, dtype, upper=False)
        x = _permute_rows(solve_triangular(transposed, x, dtype, upper=True, unit=True), dtype, pivots, inverse=True)
    else:
        x = solve_triangular(factors, _permute_rows(b, dtype, pivots), dtype, upper=False, unit=True)
        x = solve_triangular(factors, x, dtype, upper=True)
    return reshape_to_results(node, [x if left else transpose_matrices(x, dtype)])


@lowering("LuUnpackOp")
def lu_unpack(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns P, L and U; matrices that were not requested are empty."""
    factors, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, rows, columns = stack_shape(factors, dtype)
    inner = meta_of(node, 1).shape[-1]
    metas = [meta_of(node, number).stored for number in range(3)]
    results = [st.empty(meta.shape, meta.dtype) for meta in metas]
    if argument(node, 3, "unpack_pivots", True):
        fall_back_if_outside(node, symbol_table, [(node.args[1], rows)], read=lambda pivot: pivot - 1)
        pivots = as_stack(node.args[1], symbol_table, rank=1)
        results[0] = _permute_rows(identity((count, rows, rows), dtype), dtype, pivots, inverse=True)
    if argument(node, 2, "unpack_data", True):
        results[1] = triangle(_corner(factors, (count, rows, inner), dtype), dtype, upper=False, unit=True)
        results[2] = triangle(_corner(factors, (count, inner, columns), dtype), dtype, upper=True)
    return reshape_to_results(node, results)


def _corner(value: ir.Value, shape: tuple[Dim, ...], dtype: TensorDType) -> ir.Value:
    """Returns the leading rows and columns of each matrix."""
    shape = TensorMeta(shape, dtype).stored.shape
    if 0 in shape:
        return st.empty(shape, dtype.part)
    return st.slice_of(value, [0] * len(shape), shape, [1] * len(shape), shape, dtype.part)


# ---- matrix exponentials ---------------------------------------------------------------------------------------------


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
