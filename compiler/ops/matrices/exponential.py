"""Matrix exponentials by scaling and squaring of the Taylor polynomial (Higham, Functions of Matrices, 2008, 10.3)."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loops import index_of, index_position, number
from buddy.compiler.ops.matrices.factorizations import identity
from buddy.compiler.ops.matrices.stack import INT32, StackedProblem, as_results, as_stack, results_or_eager, solve_stack
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sums import cast_tensor
from buddy.compiler.ops.utils import LoweringError, SymbolTable

ops_registry = Registry()

WIDE = TensorDType.Float64
# The degree of the polynomial: for a matrix of norm 1 the next term is 1/20! = 4e-19.
TERMS = 19


def multiply(p: StackedProblem, x: str, y: str, into: str) -> None:
    """Sets matrix `into` to `x y`."""
    size = p.shape(into)[0]

    def row(i: Any) -> None:
        p.revise((into, i), 0, size, lambda _, old: old.like(0))
        p.each(0, size, lambda k: add(i, k, p[x, i, k]))

    def add(i: Any, k: Any, factor: Scalar) -> None:
        p.revise((into, i), 0, size, lambda j, total: total + factor * p[y, k, j])

    p.each(0, size, row)


def norm(p: StackedProblem) -> Scalar:
    """Returns the infinity norm of "a": the largest row sum of magnitudes."""
    size, zero = p.shape("a")[0], number(0, WIDE)

    def row(i: Any, most: Scalar) -> list[Scalar]:
        (total,) = p.fold(0, size, [zero], lambda j, sum_: [sum_ + s.absolute(p["a", i, j])])
        return [s.maximum(most, total)]

    return p.fold(0, size, [zero], row)[0]


def revise_all(p: StackedProblem, name: str, body: Any) -> None:
    """Replaces each element `x` of a matrix by `body(i, j, x)`."""
    size = p.shape(name)[0]
    p.each(0, size, lambda i: p.revise((name, i), 0, size, lambda j, x: body(i, j, x)))


def exponential(p: StackedProblem) -> None:
    """Computes the exponential of "a" in "sum", which starts as the identity; "term" and "product" are scratch."""
    length = norm(p)
    p["info"] = s.cast((length - length).compare("ne", 0), INT32)
    halvings = s.ceil(s.log2(s.minimum(s.maximum(length, 1), 2.0**1000)))
    share = s.exp2(-halvings)
    revise_all(p, "a", lambda i, j, x: x * share)
    revise_all(p, "term", lambda i, j, _: p["sum", i, j])

    def add_term(k: Any) -> None:
        order = s.cast(index_of(k), WIDE)
        multiply(p, "term", "a", "product")
        revise_all(p, "term", lambda i, j, _: p["product", i, j] / order)
        revise_all(p, "sum", lambda i, j, total: total + p["term", i, j])

    def square(_: Any) -> None:
        multiply(p, "sum", "sum", "product")
        revise_all(p, "sum", lambda i, j, _: p["product", i, j])

    p.each(1, TERMS + 1, add_term)
    p.each(0, index_position(s.cast(halvings, TensorDType.Int64)), square)


@ops_registry.lowering("MatrixExponentialOp")
def matrix_exponential(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Computes in f64; falls back to eager for a matrix that is not finite."""
    dtype = node.tensor_meta.dtype
    if dtype in (TensorDType.Float16, TensorDType.BFloat16):
        raise LoweringError(f"eager rounds every step to {dtype.value}, and returns NaN if one overflows")
    a = cast_tensor(as_stack(node.args[0], symbol_table), dtype, WIDE)
    shape = st.shape_of(a)
    parts = {"sum": (identity(shape, WIDE), WIDE), "a": (a, WIDE), "info": (st.filled(0, shape[:1], INT32), INT32)}
    parts |= {name: (st.empty(shape, WIDE), WIDE) for name in ("term", "product")}
    found = dict(zip(parts, solve_stack(parts, exponential), strict=True))
    results = as_results(node, [cast_tensor(found["sum"], WIDE, dtype)])
    return results_or_eager(found["info"], node, symbol_table, results, "a matrix has an infinity or NaN")
