"""Lowers singular values, eigenvalues of symmetric matrices and pseudo-inverses, by Jacobi rotations.

A sweep rotates each pair of rows so that both become orthogonal, or their off-diagonal element becomes 0. Sweeps are
repeated until a sweep makes no rotation (Golub and Van Loan, Matrix Computations, 8.5 and 8.6.3). The signs of the
vectors differ from LAPACK's, so a node whose vectors are read falls back to eager. Computes in f64, on matrices that
are scaled so that the largest magnitude is 1.
"""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.node import Op, is_only_result_read
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loops import Extent, compare, index_to_scalar, number, plus, scalar_to_index
from buddy.compiler.ops.matrices.factorizations import identity
from buddy.compiler.ops.matrices.stack import (
    INT32,
    StackedProblem,
    StackedTensor,
    SubscriptAt,
    as_stack,
    conjugate,
    for_each_problem,
    meta_of,
    reshape_to_results,
    results_or_eager,
    stack_shape,
    transpose_matrices,
)
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.selection import Order
from buddy.compiler.ops.sorting import ascending, descending, sort_rows
from buddy.compiler.ops.structured import cast_tensor
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering

WIDE = TensorDType.Float64
# Many times the number that is needed: convergence is quadratic once the off-diagonal elements are small.
MAX_SWEEPS = 60
EPSILON = {TensorDType.Float32: 2.0**-23, WIDE: 2.0**-52}
# Off-diagonal elements up to this size count as 0.
ROTATION_THRESHOLD = EPSILON[WIDE]
# The conditions on which "info" is set, for messages.
NOT_SOLVED = f"a matrix has an infinity or NaN, or does not converge in {MAX_SWEEPS} sweeps"
NOT_DETERMINED = f"{NOT_SOLVED}, or its singular vectors are not determined: values are 0 or equal"


def repeat_sweeps(p: StackedProblem, size: Extent, rotate_pair: Callable[[ir.Value, ir.Value], None]) -> None:
    """Emits sweeps of `rotate_pair(i, k)` for all pairs `i < k`, until a sweep does not set "rotated".

    Sets "info" if `MAX_SWEEPS` are not enough.
    """

    def test(count: Extent) -> tuple[Scalar, list[Extent]]:
        return p["rotated"].compare("ne", 0) & compare("slt", count, MAX_SWEEPS), [count]

    def sweep(count: ir.Value) -> list[ir.Value]:
        p["rotated"] = number(0, INT32)
        p.each(0, size, lambda i: p.each(plus(i, 1), size, lambda k: rotate_pair(i, k)))
        return [plus(count, 1)]

    p["rotated"] = number(1, INT32)
    p.while_loop([0], test, sweep)
    p["info"] = p["info"] | p["rotated"]


def rotation(a: Scalar, d: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Returns cosine and sine of the smaller angle whose rotation makes [[a, b], [b, d]] diagonal."""
    zeta = (d - a) / (2 * b)
    tangent = s.copysign(zeta.like(1), zeta) / (s.absolute(zeta) + s.sqrt(1 + zeta * zeta))
    cosine = 1 / s.sqrt(1 + tangent * tangent)
    return cosine, cosine * tangent


def rotate(
    p: StackedProblem, first: SubscriptAt, second: SubscriptAt, size: Extent, angle: tuple[Scalar, Scalar]
) -> None:
    """Rotates two rows or columns of `size` elements by `angle`, which is (cosine, sine)."""
    cosine, sine = angle
    p.update_pairs(first, second, 0, size, lambda x, y: (cosine * x - sine * y, sine * x + cosine * y))


def phase_of(x: Scalar) -> Scalar | None:
    """Returns the number on the unit circle in the direction of a complex `x`, which is not 0; `None` if it is real."""
    return x / s.modulus(x) if isinstance(x, s.ComplexScalar) else None


def multiply_row(p: StackedProblem, name: str, row: Extent, factor: Scalar) -> None:
    """Multiplies a row of the matrix `name` by `factor`."""
    p.update((name, row), 0, p.shape(name)[1], lambda _, x: x * factor)


def multiply_column(p: StackedProblem, name: str, column: Extent, factor: Scalar) -> None:
    """Multiplies a column of the matrix `name` by `factor`."""

    def visit(i: ir.Value) -> None:
        p[name, i, column] = p[name, i, column] * factor

    p.each(0, p.shape(name)[0], visit)


def rotate_rows(p: StackedProblem, name: str, i: Extent, k: Extent, angle: tuple[Scalar, Scalar]) -> None:
    """Rotates rows `i` and `k` of the matrix `name` by `angle`, which is (cosine, sine)."""
    rotate(p, lambda j: (name, i, j), lambda j: (name, k, j), p.shape(name)[1], angle)


def scale(p: StackedProblem, name: str) -> None:
    """Divides a matrix by its largest magnitude, which "scale" stores; sets "info" for an infinity or NaN."""
    rows, columns = p.shape(name)

    def row_maximum(i: Extent, largest: Scalar) -> list[Scalar]:
        return p.fold(0, columns, [largest], lambda j, x: [s.maximum(x, s.largest_part(p[name, i, j]))])

    (largest,) = p.fold(0, rows, [number(0, WIDE)], row_maximum)
    # The difference is NaN if the magnitude is not finite.
    p["info"] = s.cast((largest - largest).compare("ne", 0), INT32)
    p["scale"] = largest = s.select(largest.compare("eq", 0), 1, largest)
    p.each(0, rows, lambda i: p.update((name, i), 0, columns, lambda _, x: x / largest))


def common_tensors(count: Dim, value_count: Dim) -> dict[str, StackedTensor]:
    """Returns the parts that all algorithms of this module use.

    These are "values", and those that `scale` and `repeat_sweeps` write. "info" is initialised, because it is read even
    if the matrices are empty and the algorithm does not run.
    """
    return {
        "rotated": (st.empty([count], INT32), INT32),
        "info": (st.filled(0, [count], INT32), INT32),
        "scale": (st.empty([count], WIDE), WIDE),
        "values": (st.empty([count, value_count], WIDE), WIDE),
    }


def make_rows_orthogonal(p: StackedProblem, other_parts: tuple[str, ...] = ()) -> None:
    """Rotates the rows of "b" until they are orthogonal, and the rows of `other_parts` by the same angles.

    Sets "values" to the norms of the rows of "b".
    """
    rows, columns = p.shape("b")

    def square(i: Extent) -> Scalar:
        (total,) = p.fold(0, columns, [number(0, WIDE)], lambda j, x: [x + s.square_modulus(p["b", i, j])])
        return total

    def product(i: Extent, k: Extent) -> Scalar:
        zero = p["b", 0, 0].like(0)
        return p.fold(0, columns, [zero], lambda j, total: [total + p["b", i, j] * s.conj(p["b", k, j])])[0]

    def rotate_pair(i: Extent, k: Extent) -> None:
        # The elements of the Gram matrix of both rows.
        ii, kk, ik = square(i), square(k), product(i, k)

        def rotate_parts() -> None:
            """Rotates rows `i` and `k`; first multiplies a complex row `k` by a phase that makes the product real."""
            p["rotated"] = number(1, INT32)
            phase = phase_of(ik)
            for name in ("b", *other_parts):
                if phase is not None:
                    multiply_row(p, name, k, phase)
                rotate_rows(p, name, i, k, rotation(ii, kk, ik if phase is None else s.modulus(ik)))

        # A product counts as 0 if it is within the rounding error of its sum.
        tolerance = s.sqrt(ii) * s.sqrt(kk) * (ROTATION_THRESHOLD * float(columns))
        p.branch(s.modulus(ik) > tolerance, rotate_parts)

    scale(p, "b")
    repeat_sweeps(p, rows, rotate_pair)
    p.update(("values",), 0, rows, lambda i, _: s.sqrt(square(i)))


def sort_values(values: ir.Value, dtype: TensorDType, order: Order) -> ir.Value:
    """Sorts each row of `values` [count, n] and converts it to the type of the result."""
    return cast_tensor(sort_rows(values, WIDE, order).keys, WIDE, dtype)


def wide_type(dtype: TensorDType) -> TensorDType:
    """Returns the type in which matrices of `dtype` are computed: f64, or the complex type with parts in f64."""
    return WIDE.complex if dtype.is_complex else WIDE


def wide_rows(node: Op, symbol_table: SymbolTable) -> tuple[ir.Value, bool]:
    """Returns the matrices in f64, transposed if they have more rows than columns, and whether they are transposed."""
    value, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    rows, columns = stack_shape(value, dtype)[1:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise LoweringError("the sizes are dynamic, so the longer dim is unknown")
    value = transpose_matrices(value, dtype) if rows > columns else value
    return cast_tensor(value, dtype.part, WIDE), rows > columns


@lowering("SingularValuesOp")
def singular_values(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the singular values as the second of three results; the others, the vectors, are not computed.

    Raises `LoweringError` if a node reads the vectors.
    """
    if not is_only_result_read(node, 1):
        raise LoweringError("the signs of singular vectors depend on LAPACK")
    dtype = meta_of(node, 1).dtype
    b, _ = wide_rows(node, symbol_table)

    def algorithm(p: StackedProblem) -> None:
        make_rows_orthogonal(p)
        factor = p["scale"]
        p.update(("values",), 0, p.shape("values")[0], lambda _, x: x * factor)

    parts = {"b": (b, wide_type(node.args[0].tensor_meta.dtype))} | common_tensors(*st.shape_of(b)[:2])
    solved = dict(zip(parts, for_each_problem(parts, algorithm), strict=True))
    values = st.reshape(sort_values(solved["values"], dtype, descending), meta_of(node, 1).shape, dtype)
    return results_or_eager(solved["info"], node, symbol_table, [None, values, None], NOT_SOLVED)


@lowering("SingularValuesGradientOp")
def singular_values_gradient(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the gradient of the matrices, for that of their singular values.

    It is the sum of `rᴴ b / |b|` over the orthogonal rows `b` and the rows `r` of the rotation matrix, each times the
    gradient of its singular value, and does not depend on the signs of the vectors. It depends on LAPACK's choice of
    vectors if a singular value of 0 has a gradient other than 0, or if equal values have different gradients. Eager
    computes these.
    """
    (b, is_transposed), dtype = wide_rows(node, symbol_table), node.tensor_meta.dtype
    count, rows, columns = stack_shape(b, dtype)
    incoming = as_stack(node.args[1], symbol_table, 1, node.tensor_meta.shape[:-2])
    gradient = cast_tensor(incoming, node.args[1].tensor_meta.dtype, WIDE)

    def algorithm(p: StackedProblem) -> None:
        make_rows_orthogonal(p, ("r",))
        (largest,) = p.fold(0, rows, [number(0, WIDE)], lambda i, x: [s.maximum(x, p["values", i])])
        tolerance = largest * (EPSILON[dtype.part] * float(columns))

        def scale_row(i: Extent) -> None:
            length, weight = p["values", i], p["weights", i]
            factor = weight / s.select(length > tolerance, length, 1)
            p.update(("b", i), 0, columns, lambda _, x: x * factor)

        p.update(("weights",), 0, rows, lambda i, _: p["gradient", rank_of_value(p, i)])
        p.each(0, rows, lambda i: check_vectors(p, i, tolerance))
        p.each(0, rows, scale_row)

    wide = wide_type(dtype)
    parts = {"b": (b, wide), "r": (identity((count, rows, rows), wide), wide)} | common_tensors(count, rows)
    parts["weights"] = (st.empty([count, rows], WIDE), WIDE)
    solved = dict(zip(parts, for_each_problem(parts, algorithm, {"gradient": (gradient, WIDE)}), strict=True))
    contract = contract_complex if dtype.is_complex else st.contract
    left = conjugate(solved["r"], wide)
    result = contract(left, solved["b"], "zki", "zkj", "zji" if is_transposed else "zij", WIDE)
    results = reshape_to_results(node, [cast_tensor(result, WIDE, dtype.part)])
    return results_or_eager(solved["info"], node, symbol_table, results, NOT_DETERMINED)


def rank_of_value(p: StackedProblem, i: Extent) -> ir.Value:
    """Returns the index of "values" `i` in descending order; equal values keep their order."""
    value = p["values", i]

    def add(k: Extent, before: Scalar) -> list[Scalar]:
        other = p["values", k]
        is_before = (other > value) | (other.compare("eq", value) & compare("slt", k, i))
        return [before + s.cast(is_before, TensorDType.Int64)]

    return scalar_to_index(p.fold(0, p.shape("values")[0], [number(0, TensorDType.Int64)], add)[0])


def check_vectors(p: StackedProblem, i: Extent, tolerance: Scalar) -> None:
    """Sets "info" if the matrix does not determine the vectors of "values" `i`, and the gradient depends on them.

    "weights" are the gradients of the values. Values whose difference is at most `tolerance` count as equal.
    """
    value, weight = p["values", i], p["weights", i]

    def add(k: Extent, flag: Scalar) -> list[Scalar]:
        is_equal = s.absolute(p["values", k] - value).compare("le", tolerance)
        return [flag | s.cast(is_equal & p["weights", k].compare("ne", weight), INT32)]

    (flag,) = p.fold(0, p.shape("values")[0], [p["info"]], add)
    p["info"] = flag | s.cast(value.compare("le", tolerance) & weight.compare("ne", 0), INT32)


@lowering("SymmetricEigenvaluesOp")
def symmetric_eigenvalues(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the eigenvalues in ascending order, from the triangle that `UPLO` names."""
    if not is_only_result_read(node, 0):
        raise LoweringError("the signs of eigenvectors depend on LAPACK")
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    a = transpose_matrices(a, dtype) if argument(node, 1, "UPLO", "L").upper() == "U" else a

    def algorithm(p: StackedProblem) -> None:
        size = p.shape("a")[0]
        complete_from_lower_triangle(p, "a")
        scale(p, "a")
        repeat_sweeps(p, size, lambda i, k: rotate_rows_and_columns(p, i, k))
        factor = p["scale"]
        p.update(("values",), 0, size, lambda i, _: s.real_part(p["a", i, i]) * factor)

    parts = {"a": (cast_tensor(a, dtype.part, WIDE), wide_type(dtype))} | common_tensors(*st.shape_of(a)[:2])
    solved = dict(zip(parts, for_each_problem(parts, algorithm), strict=True))
    values = st.reshape(sort_values(solved["values"], dtype.part, ascending), meta_of(node, 0).shape, dtype.part)
    return results_or_eager(solved["info"], node, symbol_table, [values, None], NOT_SOLVED)


def complete_from_lower_triangle(p: StackedProblem, name: str) -> None:
    """Makes a matrix symmetric, or Hermitian: as in LAPACK, only the real part of its diagonal counts."""
    size = p.shape(name)[0]

    def complete_row(i: Extent) -> None:
        p[name, i, i] = p[name, i, i].like(s.real_part(p[name, i, i]))
        p.update((name, i), plus(i, 1), size, lambda j, _: s.conj(p[name, j, i]))

    p.each(0, size, complete_row)


def rotate_rows_and_columns(p: StackedProblem, i: Extent, k: Extent) -> None:
    """Rotates rows and columns `i` and `k` of a symmetric "a" so that their off-diagonal element becomes 0.

    If that is complex, row `k` is first multiplied by its phase, and column `k` by the conjugate, which makes it real.
    """
    size, off_diagonal = p.shape("a")[0], p["a", i, k]

    def rotate_both() -> None:
        phase = phase_of(off_diagonal)
        length = off_diagonal if phase is None else s.modulus(off_diagonal)
        if phase is not None:
            multiply_row(p, "a", k, phase)
            multiply_column(p, "a", k, s.conj(phase))
        angle = rotation(s.real_part(p["a", i, i]), s.real_part(p["a", k, k]), length)
        p["rotated"] = number(1, INT32)
        rotate_rows(p, "a", i, k, angle)
        rotate(p, lambda j: ("a", j, i), lambda j: ("a", j, k), size, angle)
        p["a", i, k] = p["a", k, i] = off_diagonal.like(0)

    p.branch(s.modulus(off_diagonal) > ROTATION_THRESHOLD, rotate_both)


@lowering("PseudoInverseOp")
def pseudo_inverse(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the sum of `bᴴ r / |b|²` over the orthogonal rows `b` and the rows `r` of the rotation matrix.

    Leaves out rows whose singular value does not exceed the tolerance. As in eager, reads only the lower triangle of a
    `hermitian` matrix.
    """
    (b, is_transposed), dtype = wide_rows(node, symbol_table), node.tensor_meta.dtype
    count, rows, columns = stack_shape(b, dtype)
    tolerances = tolerances_of(node, symbol_table, count, EPSILON[dtype.part] * float(columns))
    is_hermitian = argument(node, 3, "hermitian", False)

    def algorithm(p: StackedProblem) -> None:
        if is_hermitian:
            complete_from_lower_triangle(p, "b")
        make_rows_orthogonal(p, ("r",))
        (largest,) = p.fold(0, rows, [number(0, WIDE)], lambda i, x: [s.maximum(x, p["values", i])])
        divisor = p["scale"]
        tolerance = s.maximum(p["absolute"] / divisor, p["relative"] * largest)

        def scale_rows(i: Extent) -> None:
            length = p["values", i]
            is_used = length > tolerance
            weight = s.select(is_used, 1 / s.select(is_used, length, 1), 0)
            p.update(("r", i), 0, rows, lambda _, x: x * weight)
            p.update(("b", i), 0, columns, lambda _, x: x * weight / divisor)

        p.each(0, rows, scale_rows)

    wide = wide_type(dtype)
    parts = {"b": (b, wide), "r": (identity((count, rows, rows), wide), wide)} | common_tensors(count, rows)
    solved = dict(zip(parts, for_each_problem(parts, algorithm, tolerances), strict=True))
    b = conjugate(solved["b"], wide)
    contract = contract_complex if dtype.is_complex else st.contract
    inverse = contract(solved["r"], b, "zki", "zkj", "zij" if is_transposed else "zji", WIDE)
    results = reshape_to_results(node, [cast_tensor(inverse, WIDE, dtype.part)])
    return results_or_eager(solved["info"], node, symbol_table, results, NOT_SOLVED)


def contract_complex(x: ir.Value, y: ir.Value, x_dims: str, y_dims: str, out_dims: str, dtype: TensorDType) -> ir.Value:
    """Returns the contraction of two complex stacks with parts of type `dtype`."""
    # The elements of `x` are a + b i, those of `y` are c + d i.
    (a, b), (c, d) = ([part_of(value, part, dtype) for part in (0, 1)] for value in (x, y))
    factors = ((a, c), (b, d), (a, d), (b, c))
    terms = [st.contract(left, right, x_dims, y_dims, out_dims, dtype) for left, right in factors]
    shape = st.shape_of(terms[0])

    def body(ac: Scalar, bd: Scalar, ad: Scalar, bc: Scalar) -> Scalar:
        return s.select(index_to_scalar(st.loop_index(len(shape))).compare("eq", 0), ac - bd, ad + bc)

    inputs = [(st.reshape(term, [*shape, 1], dtype), dtype) for term in terms]
    return st.pointwise(inputs, [*shape, 2], dtype, body)


def part_of(value: ir.Value, part: int, dtype: TensorDType) -> ir.Value:
    """Returns the real (0) or imaginary (1) parts of a complex stack."""
    shape = st.shape_of(value)[:-1]
    rank = len(shape)
    if 0 in shape:
        return st.empty(shape, dtype)
    return st.slice_of(value, [0] * rank + [part], [*shape, 1], [1] * (rank + 1), shape, dtype)


def tolerances_of(node: Op, symbol_table: SymbolTable, count: Dim, default: float) -> dict[str, StackedTensor]:
    """Returns the "absolute" and "relative" tolerance of each matrix; the defaults are 0 and `default`.

    If the absolute tolerance is above 0, the default of the relative one is 0.
    """
    batch = node.tensor_meta.shape[:-2]
    arguments = [argument(node, i + 1, name) for i, name in enumerate(("atol", "rtol"))]
    tolerances = [
        cast_tensor(as_stack(arg, symbol_table, 0, batch), arg.tensor_meta.dtype, WIDE) if arg else None
        for arg in arguments
    ]
    absolute, relative = (st.filled(0, [count], WIDE) if value is None else value for value in tolerances)
    if arguments[1] is None:
        relative = st.pointwise(
            [(absolute, WIDE)], [count], WIDE, lambda x: s.select(x > 0, x.like(0), x.like(default))
        )
    return {"absolute": (absolute, WIDE), "relative": (relative, WIDE)}
