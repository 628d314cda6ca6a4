"""QR factorisation by Householder reflectors, and products with them (Golub and Van Loan, 5.1 and 5.2)."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.loop_state import minus, plus
from buddy.compiler.ops.loops import number
from buddy.compiler.ops.matrices.stack import (
    StackedProblem,
    as_results,
    as_stack,
    meta_of,
    smaller_extent,
    solve_stack,
    transpose_matrices,
)
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering


def norm(p: StackedProblem, name: str, first: Any, last: Any, column: Any) -> Scalar:
    """Returns the Euclidean norm of rows `first` to `last` of a column; scaled, so that no square overflows."""
    zero = number(0, p.kinds[name])
    (top,) = p.fold(first, last, [zero], lambda i, most: [s.maximum(most, s.absolute(p[name, i, column]))])
    unit = s.select(top.compare("eq", 0), 1, top)

    def add(i: Any, total: Scalar) -> list[Scalar]:
        share = p[name, i, column] / unit
        return [total + share * share]

    return top * s.sqrt(p.fold(first, last, [zero], add)[0])


def reflect(p: StackedProblem, reflectors: str, k: Any, tau: Scalar, target: str, first: Any) -> None:
    """Multiplies the columns of `target` from `first` on by `1 - tau v vᵀ` from the left.

    `v` is column `k` of `reflectors` below row `k`, with an implicit 1 at row `k`. "products" stores `vᵀ target`.
    """
    rows, columns = p.shape(target)

    def gather(i: Any) -> None:
        v = p[reflectors, i, k]
        p.revise(("products",), first, columns, lambda j, x: x + v * p[target, i, j])

    def spread(i: Any) -> None:
        v = p[reflectors, i, k] * tau
        p.revise((target, i), first, columns, lambda j, x: x - v * p["products", j])

    p.revise(("products",), first, columns, lambda j, _: p[target, k, j])
    p.each(plus(k, 1), rows, gather)
    p.revise((target, k), first, columns, lambda j, x: x - tau * p["products", j])
    p.each(plus(k, 1), rows, spread)


@lowering("HouseholderFactorOp")
def householder_factor(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns R with the reflectors below its diagonal, and the factor of each reflector."""
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, rows, columns = st.shape_of(a)
    taus = st.empty([count, meta_of(node, 1).shape[-1]], dtype)

    def step(p: StackedProblem, k: Any) -> None:
        alpha, below = p["a", k, k], norm(p, "a", plus(k, 1), rows, k)
        done = below.compare("eq", 0)
        beta = s.select(done, alpha, -s.copysign(norm(p, "a", k, rows, k), alpha))
        gap = s.select(done, 1, alpha - beta)
        p["taus", k] = tau = s.select(done, 0, (beta - alpha) / s.select(done, 1, beta))

        def scale(i: Any) -> None:
            p["a", i, k] = p["a", i, k] / gap

        p.each(plus(k, 1), rows, scale)
        reflect(p, "a", k, tau, "a", plus(k, 1))
        p["a", k, k] = beta

    def steps(p: StackedProblem) -> None:
        p.each(0, smaller_extent(rows, columns), lambda k: step(p, k))

    parts = {"a": (a, dtype), "taus": (taus, dtype), "products": (st.empty([count, columns], dtype), dtype)}
    return as_results(node, solve_stack(parts, steps)[:2])


@lowering("ReflectOp")
def product_with_reflectors(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns `q c`, `qᵀ c`, `c q` or `c qᵀ` for the product `q` of the reflectors; the last two by transposition."""
    dtype, left, across = node.tensor_meta.dtype, argument(node, 3, "left", True), argument(node, 4, "transpose", False)
    reflectors, other = as_stack(node.args[0], symbol_table), as_stack(node.args[2], symbol_table)
    taus = as_stack(node.args[1], symbol_table, rank=1)
    count, length = st.shape_of(taus)
    other = other if left else transpose_matrices(other, dtype)

    def steps(p: StackedProblem) -> None:
        def step(i: Any) -> None:
            k = i if across == left else minus(minus(length, 1), i)
            reflect(p, "a", k, p["taus", k], "c", 0)

        p.each(0, length, step)

    products = st.empty([count, st.shape_of(other)[2]], dtype)
    given = {"a": (reflectors, dtype), "taus": (taus, dtype)}
    found = solve_stack({"c": (other, dtype), "products": (products, dtype)}, steps, given)[0]
    return as_results(node, [found if left else transpose_matrices(found, dtype)])
