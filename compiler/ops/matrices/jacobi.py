"""Singular values, eigenvalues of symmetric matrices and pseudo-inverses by Jacobi rotations.

A sweep rotates each pair of rows so that the rows become orthogonal, or an off-diagonal element becomes 0. Sweeps are
repeated until one makes no rotation (Golub and Van Loan, Matrix Computations, 8.5 and 8.6.3). The signs of the vectors
differ from LAPACK's, so a node whose vectors are read falls back to eager. Computes in f64, on matrices scaled to a
largest element of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loops import compare, number, plus
from buddy.compiler.ops.matrices.factorizations import identity
from buddy.compiler.ops.matrices.stack import (
    INT32,
    Part,
    Place,
    StackedProblem,
    as_results,
    as_stack,
    meta_of,
    results_or_eager,
    solve_stack,
    transpose_matrices,
)
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.selection import Order
from buddy.compiler.ops.sorting import ascending, descending, sort_lines
from buddy.compiler.ops.sums import cast_tensor
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering

WIDE = TensorDType.Float64
# Many times the number that is needed: convergence is quadratic once the off-diagonal elements are small.
MAX_SWEEPS = 60
EPSILON = {TensorDType.Float32: 2.0**-23, WIDE: 2.0**-52}
ZERO = EPSILON[WIDE]
# When "info" is set.
NOT_SOLVED = f"a matrix has an infinity or NaN, or does not converge in {MAX_SWEEPS} sweeps"


def sweeps(p: StackedProblem, size: Any, turn: Callable[[Any, Any], None]) -> None:
    """Calls `turn(i, k)` for all pairs `i < k`, repeatedly until no call sets "rotated".

    Sets "info" if `MAX_SWEEPS` are not enough.
    """

    def test(count: Any) -> tuple[Scalar, list[Any]]:
        return p["rotated"].compare("ne", 0) & compare("slt", count, MAX_SWEEPS), [count]

    def sweep(count: Any) -> list[Any]:
        p["rotated"] = number(0, INT32)
        p.each(0, size, lambda i: p.each(plus(i, 1), size, lambda k: turn(i, k)))
        return [plus(count, 1)]

    p["rotated"] = number(1, INT32)
    p.repeat([0], test, sweep)
    p["info"] = p["info"] | p["rotated"]


def angle(first: Scalar, last: Scalar, between: Scalar) -> tuple[Scalar, Scalar]:
    """Returns cosine and sine of the smaller angle that makes [[first, between], [between, last]] diagonal."""
    zeta = (last - first) / (2 * between)
    tangent = s.copysign(zeta.like(1), zeta) / (s.absolute(zeta) + s.sqrt(1 + zeta * zeta))
    cosine = 1 / s.sqrt(1 + tangent * tangent)
    return cosine, cosine * tangent


def rotate(p: StackedProblem, one: Place, other: Place, size: Any, by: tuple[Scalar, Scalar]) -> None:
    """Rotates two rows or columns of a part in their plane."""
    cosine, sine = by
    p.revise_both(one, other, 0, size, lambda x, y: (cosine * x - sine * y, sine * x + cosine * y))


def rotate_rows(p: StackedProblem, name: str, i: Any, k: Any, by: tuple[Scalar, Scalar]) -> None:
    rotate(p, lambda j: (name, i, j), lambda j: (name, k, j), p.shape(name)[1], by)


def scale(p: StackedProblem, name: str) -> None:
    """Divides a matrix by its largest magnitude and stores that in "scale"; sets "info" for an infinity or NaN."""
    rows, columns = p.shape(name)

    def over(i: Any, most: Scalar) -> list[Any]:
        return p.fold(0, columns, [most], lambda j, m: [s.maximum(m, s.absolute(p[name, i, j]))])

    (top,) = p.fold(0, rows, [number(0, WIDE)], over)
    p["info"] = s.cast((top - top).compare("ne", 0), INT32)
    p["scale"] = top = s.select(top.compare("eq", 0), 1, top)
    p.each(0, rows, lambda i: p.revise((name, i), 0, columns, lambda _, x: x / top))


def common_parts(count: Any, values: Any) -> dict[str, Part]:
    """Returns the parts that all algorithms of this module need: "values", and those that `scale` and `sweeps` write.

    "info" is initialised, because it is read even if the matrices have no elements and `steps` do not run.
    """
    return {
        "rotated": (st.empty([count], INT32), INT32),
        "info": (st.filled(0, [count], INT32), INT32),
        "scale": (st.empty([count], WIDE), WIDE),
        "values": (st.empty([count, values], WIDE), WIDE),
    }


def make_rows_orthogonal(p: StackedProblem, following: tuple[str, ...] = ()) -> None:
    """Rotates the rows of "b" until they are orthogonal, and the rows of the parts `following` by the same angles.

    Sets "values" to the norms of the rows of "b".
    """
    rows, columns = p.shape("b")

    def product(i: Any, k: Any) -> Scalar:
        return p.fold(0, columns, [number(0, WIDE)], lambda j, total: [total + p["b", i, j] * p["b", k, j]])[0]

    def turn(i: Any, k: Any) -> None:
        first, last, between = product(i, i), product(k, k), product(i, k)

        def change() -> None:
            p["rotated"] = number(1, INT32)
            for name in ("b", *following):
                rotate_rows(p, name, i, k, angle(first, last, between))

        # A product counts as 0 if it is within the rounding error of its sum.
        tolerance = s.sqrt(first) * s.sqrt(last) * (ZERO * columns)
        p.choose(s.absolute(between) > tolerance, change)

    scale(p, "b")
    sweeps(p, rows, turn)
    p.revise(("values",), 0, rows, lambda i, _: s.sqrt(product(i, i)))


def reads_only(node: Op, result: int) -> bool:
    """True if `result` is the only result of `node` that other nodes read."""
    return all(isinstance(user, GetItemOp) and user.args[1] == result for user in node._children)


def sorted_values(values: Any, dtype: TensorDType, order: Order) -> Any:
    """Sorts each row of `values` [count, n] and converts it to the type of the result."""
    return cast_tensor(sort_lines(values, WIDE, order).keys, WIDE, dtype)


def wide_rows(node: Op, symbol_table: SymbolTable) -> tuple[Any, bool]:
    """Returns the matrices in f64, transposed if they have more rows than columns, and whether they are transposed."""
    value, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    rows, columns = st.shape_of(value)[1:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise LoweringError("the sizes are dynamic, so the longer side is unknown")
    return cast_tensor(transpose_matrices(value, dtype) if rows > columns else value, dtype, WIDE), rows > columns


@lowering("SingularValuesOp")
def singular_values(node: Op, symbol_table: SymbolTable) -> list[Any]:
    if not reads_only(node, 1):
        raise LoweringError("the signs of singular vectors depend on LAPACK")
    dtype = meta_of(node, 1).dtype
    b, _ = wide_rows(node, symbol_table)

    def steps(p: StackedProblem) -> None:
        make_rows_orthogonal(p)
        top = p["scale"]
        p.revise(("values",), 0, p.shape("values")[0], lambda _, x: x * top)

    parts = {"b": (b, WIDE)} | common_parts(*st.shape_of(b)[:2])
    found = dict(zip(parts, solve_stack(parts, steps), strict=True))
    values = st.reshape(sorted_values(found["values"], dtype, descending), meta_of(node, 1).shape, dtype)
    return results_or_eager(found["info"], node, symbol_table, [None, values, None], NOT_SOLVED)


@lowering("SymmetricEigenvaluesOp")
def symmetric_eigenvalues(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the eigenvalues in ascending order, from the triangle that `UPLO` names."""
    if not reads_only(node, 0):
        raise LoweringError("the signs of eigenvectors depend on LAPACK")
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    a = transpose_matrices(a, dtype) if argument(node, 1, "UPLO", "L").upper() == "U" else a

    def steps(p: StackedProblem) -> None:
        size = p.shape("a")[0]
        p.each(0, size, lambda i: p.revise(("a", i), plus(i, 1), size, lambda j, _: p["a", j, i]))
        scale(p, "a")
        sweeps(p, size, lambda i, k: rotate_rows_and_columns(p, i, k))
        top = p["scale"]
        p.revise(("values",), 0, size, lambda i, _: p["a", i, i] * top)

    parts = {"a": (cast_tensor(a, dtype, WIDE), WIDE)} | common_parts(*st.shape_of(a)[:2])
    found = dict(zip(parts, solve_stack(parts, steps), strict=True))
    values = st.reshape(sorted_values(found["values"], dtype, ascending), meta_of(node, 0).shape, dtype)
    return results_or_eager(found["info"], node, symbol_table, [values, None], NOT_SOLVED)


def rotate_rows_and_columns(p: StackedProblem, i: Any, k: Any) -> None:
    """Rotates rows and columns `i` and `k` of a symmetric "a" so that their off-diagonal element becomes 0."""
    size, between = p.shape("a")[0], p["a", i, k]

    def change() -> None:
        by = angle(p["a", i, i], p["a", k, k], between)
        p["rotated"] = number(1, INT32)
        rotate_rows(p, "a", i, k, by)
        rotate(p, lambda j: ("a", j, i), lambda j: ("a", j, k), size, by)
        p["a", i, k] = p["a", k, i] = number(0, WIDE)

    p.choose(s.absolute(between) > ZERO, change)


@lowering("PseudoInverseOp")
def pseudo_inverse(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the sum of `r bᵀ / |b|²` over the orthogonal rows `b` and the rows `r` of their rotation.

    Rows whose singular value does not exceed the tolerance are left out. As in eager, only the lower triangle of a
    `hermitian` matrix is read.
    """
    (b, across), dtype = wide_rows(node, symbol_table), node.tensor_meta.dtype
    count, rows, columns = st.shape_of(b)
    tolerances = tolerances_of(node, symbol_table, count, EPSILON[dtype] * columns)
    mirrored = argument(node, 3, "hermitian", False)

    def steps(p: StackedProblem) -> None:
        if mirrored:
            p.each(0, rows, lambda i: p.revise(("b", i), plus(i, 1), rows, lambda j, _: p["b", j, i]))
        make_rows_orthogonal(p, ("r",))
        (top,) = p.fold(0, rows, [number(0, WIDE)], lambda i, most: [s.maximum(most, p["values", i])])
        size = p["scale"]
        least = s.maximum(p["absolute"] / size, p["relative"] * top)

        def weigh(i: Any) -> None:
            length = p["values", i]
            kept = length > least
            weight = s.select(kept, 1 / s.select(kept, length, 1), 0)
            p.revise(("r", i), 0, rows, lambda _, x: x * weight)
            p.revise(("b", i), 0, columns, lambda _, x: x * weight / size)

        p.each(0, rows, weigh)

    parts = {"b": (b, WIDE), "r": (identity((count, rows, rows), WIDE), WIDE)} | common_parts(count, rows)
    found = dict(zip(parts, solve_stack(parts, steps, tolerances), strict=True))
    inverse = st.contract(found["r"], found["b"], "zki", "zkj", "zij" if across else "zji", WIDE)
    results = as_results(node, [cast_tensor(inverse, WIDE, dtype)])
    return results_or_eager(found["info"], node, symbol_table, results, NOT_SOLVED)


def tolerances_of(node: Op, symbol_table: SymbolTable, count: Any, usual: float) -> dict[str, Part]:
    """Returns the "absolute" and "relative" tolerance of each matrix; the defaults are 0 and `usual`.

    If the absolute tolerance is above 0, the default of the relative one is 0.
    """
    batch = node.tensor_meta.shape[:-2]
    named = [argument(node, i + 1, name) for i, name in enumerate(("atol", "rtol"))]
    given = [
        cast_tensor(as_stack(arg, symbol_table, 0, batch), arg.tensor_meta.dtype, WIDE) if arg else None
        for arg in named
    ]
    absolute, relative = (st.filled(0, [count], WIDE) if value is None else value for value in given)
    if named[1] is None:
        relative = st.pointwise([(absolute, WIDE)], [count], WIDE, lambda x: s.select(x > 0, x.like(0), x.like(usual)))
    return {"absolute": (absolute, WIDE), "relative": (relative, WIDE)}
