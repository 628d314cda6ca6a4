"""LU factorisation with partial pivoting, and solvers that use it."""

from __future__ import annotations

from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import within
from buddy.compiler.ops.loop_state import minus, plus
from buddy.compiler.ops.loops import index_of
from buddy.compiler.ops.matrices.failures import results_or_eager
from buddy.compiler.ops.matrices.stack import (
    INT32,
    StackedProblem,
    as_results,
    as_stack,
    meta_of,
    smaller_extent,
    solve_stack,
    transpose_matrices,
)
from buddy.compiler.ops.matrices.triangular import identity, solve_triangular, triangle
from buddy.compiler.ops.ranges import fall_back_if_outside
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument

ops_registry = Registry()
lowering = ops_registry.lowering


def swap_rows(p: StackedProblem, name: str, i: Any, k: Any) -> None:
    p.exchange(lambda j: (name, i, j), lambda j: (name, k, j), 0, p.shape(name)[1])


@lowering("LuFactorOp")
def lu_factor(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns L and U in one matrix, the pivots, and the first step whose pivot is 0, or 0 if there is no such step.

    Each step eliminates one column, from the left; its pivot is the row that it swaps its own row with. Steps and rows
    count from 1.
    """
    a, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, rows, columns = st.shape_of(a)
    pivots = st.empty([count, meta_of(node, 1).shape[-1]], INT32)
    if not argument(node, 1, "pivot", True):
        raise LoweringError("eager does not support LU without pivoting on the CPU")

    def steps(p: StackedProblem) -> None:
        def step(k: Any) -> None:
            _, at = p.largest(k, rows, lambda i: ("a", i, k))
            p["pivots", k] = index_of(plus(at, 1), INT32)
            swap_rows(p, "a", k, at)
            pivot = p["a", k, k]
            failed = p["info"].compare("eq", 0) & pivot.compare("eq", 0)
            p["info"] = s.select(failed, index_of(plus(k, 1), INT32), p["info"])
            p.each(plus(k, 1), rows, lambda i: _eliminate(p, k, i, pivot, columns))

        p.each(0, smaller_extent(rows, columns), step)

    parts = {"a": (a, dtype), "pivots": (pivots, INT32), "info": (st.filled(0, [count], INT32), INT32)}
    found = as_results(node, solve_stack(parts, steps))
    return results_or_eager(found[2], node, symbol_table, found) if argument(node, 2, "check_errors", False) else found


def _eliminate(p: StackedProblem, k: Any, i: Any, pivot: Scalar, columns: Any) -> None:
    """Subtracts the multiple of row `k` from row `i` that cancels column `k`, and stores the factor in that column."""
    zero = pivot.compare("eq", 0)
    factor = s.select(zero, p["a", i, k], p["a", i, k] / s.select(zero, pivot.like(1), pivot))
    p["a", i, k] = factor
    p.revise(("a", i), plus(k, 1), columns, lambda j, x: x - factor * p["a", k, j])


def _permute_rows(b: Any, dtype: TensorDType, pivots: Any, back: bool = False) -> Any:
    """Applies the row swaps of a factorisation to `b` [count, n, m]; with `back`, reverts them."""
    steps_count = st.shape_of(pivots)[1]
    rows = st.shape_of(b)[1]

    def steps(p: StackedProblem) -> None:
        def step(number_: Any) -> None:
            k = minus(minus(steps_count, 1), number_) if back else number_
            swap_rows(p, "b", k, within(s.cast(p["pivots", k] - 1, TensorDType.Int64), rows))

        p.each(0, steps_count, step)

    return solve_stack({"b": (b, dtype)}, steps, {"pivots": (pivots, INT32)})[0]


@lowering("LuSolveOp")
def lu_solve(node: Op, symbol_table: SymbolTable) -> Any:
    """Solves `a x = b` or `aᵀ x = b` from `a = p l u`; `x a = b` is solved as the transposed system."""
    dtype, batch = node.tensor_meta.dtype, node.tensor_meta.shape[:-2]
    factors, b = (as_stack(node.args[i], symbol_table, batch=batch) for i in (0, 2))
    fall_back_if_outside(node, symbol_table, [(node.args[1], st.shape_of(factors)[1])], read=lambda pivot: pivot - 1)
    pivots = as_stack(node.args[1], symbol_table, rank=1, batch=batch)
    left, adjoint = argument(node, 3, "left", True), argument(node, 4, "adjoint", False)
    b = b if left else transpose_matrices(b, dtype)
    if adjoint == left:
        across = transpose_matrices(factors, dtype)
        x = solve_triangular(across, b, dtype, upper=False)
        x = _permute_rows(solve_triangular(across, x, dtype, upper=True, unit=True), dtype, pivots, back=True)
    else:
        x = solve_triangular(factors, _permute_rows(b, dtype, pivots), dtype, upper=False, unit=True)
        x = solve_triangular(factors, x, dtype, upper=True)
    return as_results(node, [x if left else transpose_matrices(x, dtype)])


@lowering("LuUnpackOp")
def lu_unpack(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns P, L and U; matrices that were not requested are empty."""
    factors, dtype = as_stack(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    count, rows, columns = st.shape_of(factors)
    inner = meta_of(node, 1).shape[-1]
    metas = [meta_of(node, number) for number in range(3)]
    found = [st.empty(meta.shape, meta.dtype) for meta in metas]
    if argument(node, 3, "unpack_pivots", True):
        fall_back_if_outside(node, symbol_table, [(node.args[1], rows)], read=lambda pivot: pivot - 1)
        pivots = as_stack(node.args[1], symbol_table, rank=1)
        found[0] = _permute_rows(identity((count, rows, rows), dtype), dtype, pivots, back=True)
    if argument(node, 2, "unpack_data", True):
        found[1] = triangle(_corner(factors, (count, rows, inner), dtype), dtype, upper=False, unit=True)
        found[2] = triangle(_corner(factors, (count, inner, columns), dtype), dtype, upper=True)
    return as_results(node, found)


def _corner(value: Any, shape: tuple[Any, ...], dtype: TensorDType) -> Any:
    """Returns the leading rows and columns of each matrix."""
    if 0 in shape:
        return st.empty(shape, dtype)
    return st.slice_of(value, [0] * 3, shape, [1] * 3, shape, dtype)
