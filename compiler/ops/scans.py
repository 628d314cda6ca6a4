"""Scans: cumulative sums, products, extremes and log-sum-exps along a dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.loops import element, for_each, index_of, insert
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import empty, filled, reshape, shape_of
from buddy.compiler.ops.utils import SymbolTable, normalized, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

# The types in which PyTorch accumulates scans on the CPU (`at::acc_type`).
_ACCUMULATE_IN = {
    TensorDType.Float16: TensorDType.Float32,
    TensorDType.BFloat16: TensorDType.Float32,
    TensorDType.Float32: TensorDType.Float64,
}
# Maps `(element, its position along the dim, *state)` to the next state.
Step = Callable[..., Sequence[Scalar]]


def scan(node: Op, symbol_table: SymbolTable, states: Sequence[tuple[Any, TensorDType]], step: Step) -> list[Any]:
    """Scans along the node's dim; returns a tensor of the states at all elements for each of `states`.

    `states` are (initial value, type). Every line along the dim has its own state, so that elements are visited in
    memory order for any dim.
    """
    dtype = node.args[0].tensor_meta.dtype
    value = value_of(node.args[0], symbol_table)
    if not node.args[0].tensor_meta.shape:
        value = reshape(value, [1], dtype)
    shape = shape_of(value)
    axis = normalized(node.args[1], len(shape))
    metas = [meta for meta in node.metas if meta is not None]
    lines = [filled(initial, [size for i, size in enumerate(shape) if i != axis], kind) for initial, kind in states]
    outs = [empty(shape, meta.dtype) for meta in metas]

    def visit(at: list[Any], carried: list[Any]) -> list[Any]:
        line, held = [p for i, p in enumerate(at) if i != axis], carried[: len(states)]
        before = [element(t, line, kind) for t, (_, kind) in zip(held, states, strict=True)]
        after = step(element(value, at, dtype), index_of(at[axis]), *before)
        kept = [insert(x, line, t) for x, t in zip(after, held, strict=True)]
        found = zip(after, metas, carried[len(states) :], strict=True)
        return kept + [insert(cast(x, meta.dtype), at, t) for x, meta, t in found]

    results = for_each(shape_of(value), [*lines, *outs], visit)[len(states) :]
    return [reshape(result, meta.shape, meta.dtype) for result, meta in zip(results, metas, strict=True)]


def _fold(node: Op, symbol_table: SymbolTable, initial: float, combine: Callable[[Scalar, Scalar], Scalar]) -> Any:
    """Scans with one number as the state, in PyTorch's accumulation type; casts elements to the result's type first."""
    result = node.tensor_meta.dtype
    wide = _ACCUMULATE_IN.get(result, result)

    def step(x: Scalar, _at: Scalar, accumulated: Scalar) -> list[Scalar]:
        return [combine(accumulated, cast(cast(x, result), wide))]

    return scan(node, symbol_table, [(initial, wide)], step)


@lowering("CumsumOp")
def cumsum(node: Op, symbol_table: SymbolTable) -> Any:
    return _fold(node, symbol_table, 0, lambda total, x: total + x)


@lowering("CumprodOp")
def cumprod(node: Op, symbol_table: SymbolTable) -> Any:
    return _fold(node, symbol_table, 1, lambda product, x: product * x)


@lowering("LogcumsumexpOp")
def logcumsumexp(node: Op, symbol_table: SymbolTable) -> Any:
    return _fold(node, symbol_table, float("-inf"), _log_add_exp)


def _log_add_exp(x: Scalar, y: Scalar) -> Scalar:
    """Returns `log(exp(x) + exp(y))`: the infinity for two equal infinities, and NaN for a NaN."""
    low, high = s.minimum(x, y), s.maximum(x, y)
    infinite = low.compare("eq", high) & s.absolute(low).compare("eq", float("inf"))
    return s.select(infinite, high, s.log1p(s.exp(low - high)) + high)


@lowering("CummaxOp")
def cummax(node: Op, symbol_table: SymbolTable) -> Any:
    return _running_extreme(node, symbol_table, largest=True)


@lowering("CumminOp")
def cummin(node: Op, symbol_table: SymbolTable) -> Any:
    return _running_extreme(node, symbol_table, largest=False)


def _running_extreme(node: Op, symbol_table: SymbolTable, largest: bool) -> Any:
    """Returns values and their positions: that of the last of equal elements and, after a NaN, of the last NaN."""
    dtype = node.args[0].tensor_meta.dtype
    low, high = s.limits(dtype)

    def step(x: Scalar, at: Scalar, best: Scalar, where: Scalar) -> list[Scalar]:
        taken = x.compare("ge" if largest else "le", best)
        if dtype.is_float:
            # Comparisons with NaN are false: once the extreme is NaN, only another NaN replaces it.
            taken = taken | x.compare("ne", x)
        return [s.select(taken, x, best), s.select(taken, at, where)]

    states = [(low if largest else high, dtype), (0, TensorDType.Int64)]
    return scan(node, symbol_table, states, step)
