"""LDLᵀ factorisation of symmetric matrices with Bunch-Kaufman pivoting, as LAPACK's `sytf2`, and solvers that use it.

D has blocks of one or two rows. A pivot is the row (from 1) that a block's last row was swapped with; the pivots of a
block of two are negative.
"""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import fall_back_if_outside, within
from buddy.compiler.ops.loops import compare, index_of, minus, pick, plus
from buddy.compiler.ops.matrices.factorizations import swap_rows, triangle
from buddy.compiler.ops.matrices.stack import INT32, StackedProblem, as_results, as_stack, results_or_eager, solve_stack
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering

# (1 + sqrt(17)) / 8, which minimises the bound on the growth of elements (Bunch and Kaufman 1977).
GROWTH = 0.6403882032022076


def choose_pivot(p: StackedProblem, k: Any) -> tuple[Scalar, Scalar, Any]:
    """Returns the pivot of column `k`.

    Returns whether the column is zero or starts with NaN, whether its block has two rows, and the row to swap with.
    """
    size, here = p.shape("a")[0], s.absolute(p["a", k, k])
    column, row = p.largest(plus(k, 1), size, lambda i: ("a", i, k))
    row = pick(compare("slt", row, size), row, k)  # the last column has no elements below it
    before, _ = p.largest(k, row, lambda j: ("a", row, j))
    below, _ = p.largest(plus(row, 1), size, lambda i: ("a", i, row))
    most = s.maximum(before, below)
    empty = s.maximum(here, column).compare("eq", 0) | here.compare("ne", here)
    # As in LAPACK, the quotient of two magnitudes avoids overflow.
    stays = empty | (here >= GROWTH * column) | (here >= GROWTH * column * (column / most))
    single = stays | (s.absolute(p["a", row, row]) >= GROWTH * most)
    return empty, single.compare("eq", 0), pick(stays, k, row)


def swap(p: StackedProblem, k: Any, last: Any, row: Any) -> None:
    """Swaps rows and columns `last` and `row` of the lower triangle, from column `k` on, where the block starts."""
    size = p.shape("a")[0]
    p.exchange(lambda i: ("a", i, last), lambda i: ("a", i, row), plus(row, 1), size)
    p.exchange(lambda i: ("a", i, last), lambda i: ("a", row, i), plus(last, 1), row)
    p.exchange(lambda _: ("a", last, last), lambda _: ("a", row, row), 0, 1)
    p.exchange(lambda j: ("a", last, j), lambda j: ("a", row, j), k, last)


def eliminate(p: StackedProblem, k: Any) -> None:
    """Eliminates a block of one row."""
    size, share = p.shape("a")[0], 1 / p["a", k, k]

    def row(i: Any) -> None:
        factor = p["a", i, k] * share
        p.revise(("a", i), plus(k, 1), plus(i, 1), lambda j, x: x - factor * p["a", j, k])

    def scale(i: Any) -> None:
        p["a", i, k] = p["a", i, k] * share

    p.each(plus(k, 1), size, row)
    p.each(plus(k, 1), size, scale)


def eliminate_pair(p: StackedProblem, k: Any) -> None:
    """Eliminates a block of two rows, whose inverse is `share * [[low, -1], [-1, high]]`."""
    size, last, between = p.shape("a")[0], plus(k, 1), p["a", plus(k, 1), k]
    low, high = p["a", last, last] / between, p["a", k, k] / between
    share = 1 / (low * high - 1) / between

    def column(j: Any) -> None:
        x, y = p["a", j, k], p["a", j, last]
        first, second = share * (low * x - y), share * (high * y - x)

        def update(i: Any) -> None:
            p["a", i, j] = p["a", i, j] - p["a", i, k] * first - p["a", i, last] * second

        p.each(j, size, update)
        p["a", j, k], p["a", j, last] = first, second

    p.each(plus(k, 2), size, column)


@lowering("LdlFactorOp")
def ldl_factor(node: Op, symbol_table: SymbolTable) -> Any:
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, size, _ = st.shape_of(a)

    def block(p: StackedProblem, k: Any) -> list[Any]:
        empty, pair, row = choose_pivot(p, k)
        last = pick(pair, plus(k, 1), k)
        swap(p, k, last, row)
        number_ = index_of(plus(row, 1), INT32)
        p["pivots", k] = p["pivots", last] = s.select(pair, -number_, number_)
        first_empty = empty & p["info"].compare("eq", 0)
        p["info"] = s.select(first_empty, index_of(plus(k, 1), INT32), p["info"])
        p.choose(pair, lambda: eliminate_pair(p, k), lambda: p.choose(empty, lambda: None, lambda: eliminate(p, k)))
        return [plus(last, 1)]

    def steps(p: StackedProblem) -> None:
        p.repeat([0], lambda k: (compare("slt", k, size), [k]), lambda k: block(p, k))

    parts = {"a": (triangle(a, dtype, upper=False), dtype), "pivots": (st.empty([count, size], INT32), INT32)}
    found = as_results(node, solve_stack(parts | {"info": (st.filled(0, [count], INT32), INT32)}, steps))
    if not argument(node, 2, "check_errors", False):
        return found
    return results_or_eager(found[2], node, symbol_table, found, "a pivot is 0")


def subtract_row(p: StackedProblem, row: Any, factor: Scalar, source: Any) -> None:
    """Subtracts a multiple of row `source` of "b" from row `row`."""
    p.revise(("b", row), 0, p.shape("b")[1], lambda j, x: x - factor * p["b", source, j])


def divide_rows(p: StackedProblem, k: Any, last: Any) -> None:
    """Divides rows `k` and `last` of "b" by their block of D."""
    between = p["a", last, k]
    high, low = p["a", k, k] / between, p["a", last, last] / between
    share = 1 / (high * low - 1)

    def solved_for(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
        x, y = x / between, y / between
        return share * (low * x - y), share * (high * y - x)

    p.revise_both(lambda j: ("b", k, j), lambda j: ("b", last, j), 0, p.shape("b")[1], solved_for)


def forward(p: StackedProblem, k: Any, size: Any) -> list[Any]:
    """Solves `l d x = b` for the block that starts at `k`."""
    single, row = p["pivots", k] > 0, within(s.cast(s.absolute(p["pivots", k]) - 1, TensorDType.Int64), size)
    last = pick(single, k, within(index_of(plus(k, 1)), size))
    swap_rows(p, "b", last, row)

    def below(i: Any) -> None:
        subtract_row(p, i, p["a", i, k], k)
        p.choose(single, lambda: None, lambda: subtract_row(p, i, p["a", i, last], last))

    p.each(plus(last, 1), size, below)
    own = p["a", k, k]
    p.choose(
        single, lambda: p.revise(("b", k), 0, p.shape("b")[1], lambda _, x: x / own), lambda: divide_rows(p, k, last)
    )
    return [plus(last, 1)]


def backward(p: StackedProblem, k: Any, size: Any) -> list[Any]:
    """Solves `lᵀ x = b` for the block that ends at `k`."""
    single, row = p["pivots", k] > 0, within(s.cast(s.absolute(p["pivots", k]) - 1, TensorDType.Int64), size)
    first = pick(single, k, within(index_of(minus(k, 1)), size))
    p.each(first, plus(k, 1), lambda r: p.each(plus(k, 1), size, lambda i: subtract_row(p, r, p["a", i, r], i)))
    swap_rows(p, "b", k, row)
    return [minus(pick(single, k, minus(k, 1)), 1)]


@lowering("LdlSolveOp")
def ldl_solve(node: Op, symbol_table: SymbolTable) -> Any:
    dtype, batch = node.tensor_meta.dtype, node.tensor_meta.shape[:-2]
    a, b = (as_stack(node.args[i], symbol_table, batch=batch) for i in (0, 2))
    pivots = as_stack(node.args[1], symbol_table, rank=1, batch=batch)
    size = st.shape_of(a)[1]
    fall_back_if_outside(node, symbol_table, [(node.args[1], size)], read=lambda pivot: s.absolute(pivot) - 1)

    def steps(p: StackedProblem) -> None:
        p.repeat([0], lambda k: (compare("slt", k, size), [k]), lambda k: forward(p, k, size))
        p.repeat([minus(size, 1)], lambda k: (compare("sge", k, 0), [k]), lambda k: backward(p, k, size))

    return as_results(node, solve_stack({"b": (b, dtype)}, steps, {"a": (a, dtype), "pivots": (pivots, INT32)}))
