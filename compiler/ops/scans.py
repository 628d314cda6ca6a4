"""Lowers scans: cumulative sums, products, maxima, minima and log-sum-exps along a dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.data_movement import compute_tensor
from buddy.compiler.ops.loops import element, for_each, index_to_scalar, insert, number
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import empty, filled, reshape, shape_of
from buddy.compiler.ops.utils import SymbolTable, normalize_dim, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

# The types in which PyTorch accumulates scans on the CPU (`at::acc_type`).
_ACCUMULATOR_TYPES = {
    TensorDType.Float16: TensorDType.Float32,
    TensorDType.BFloat16: TensorDType.Float32,
    TensorDType.Float32: TensorDType.Float64,
    TensorDType.Complex64: TensorDType.Complex128,
}
# Maps `(element, position of the element along the dim, *states)` to the next states.
Step = Callable[..., Sequence[Scalar]]


def scan(
    node: Op, symbol_table: SymbolTable, states: Sequence[tuple[int | float, TensorDType]], step: Step
) -> list[ir.Value]:
    """Scans along the node's dim. For each of `states`, returns a tensor with the state after each element.

    Each of `states` is (initial value, type), and belongs to the result of the node with the same number. The loop
    visits elements in memory order for any dim; a tensor holds the current state of each line along the dim. Complex
    tensors have both parts along an additional last dim.
    """
    dtype = node.args[0].tensor_meta.dtype
    value = value_of(node.args[0], symbol_table)
    shape = shape_of(value)[: len(node.args[0].tensor_meta.shape)]
    if not shape:
        shape = (1,)
        value = reshape(value, TensorMeta(shape, dtype).stored.shape, dtype.part)
    axis = normalize_dim(node.args[1], len(shape))
    metas = [meta for meta in node.metas if meta is not None]
    lines = tuple(size for i, size in enumerate(shape) if i != axis)
    current = [_filled(initial, lines, type_) for initial, type_ in states]
    outs = [empty(stored.shape, stored.dtype) for stored in (TensorMeta(shape, meta.dtype).stored for meta in metas)]

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        line, current, outs = [p for i, p in enumerate(indices) if i != axis], carried[:count], carried[count:]
        old_states = [element(tensor, line, type_) for tensor, (_, type_) in zip(current, states, strict=True)]
        new_states = step(element(value, indices, dtype), index_to_scalar(indices[axis]), *old_states)
        current = [insert(x, line, tensor) for x, tensor in zip(new_states, current, strict=True)]
        results = zip(new_states, metas, outs, strict=True)
        return current + [insert(cast(x, meta.dtype), indices, tensor) for x, meta, tensor in results]

    count = len(states)
    results = for_each(shape, [*current, *outs], visit)[count:]
    stored_metas = [meta.stored for meta in metas]
    return [reshape(result, meta.shape, meta.dtype) for result, meta in zip(results, stored_metas, strict=True)]


def _filled(value: float, shape: tuple[Dim, ...], dtype: TensorDType) -> ir.Value:
    """Returns a tensor of `shape` whose elements are all the real number `value`, also for a complex type."""
    if not dtype.is_complex:
        return filled(value, shape, dtype)
    parts = TensorMeta(shape, dtype).stored.shape

    def body(*indices: Scalar) -> Scalar:
        zero = number(0, dtype.part)
        return s.select(indices[-1].compare("eq", 0), zero.like(value), zero)

    return compute_tensor(parts, dtype.part, body)


def _fold(
    node: Op, symbol_table: SymbolTable, initial: float, combine: Callable[[Scalar, Scalar], Scalar]
) -> list[ir.Value]:
    """Scans with one number as the state, in PyTorch's accumulator type; first casts elements to the result's type."""
    result = node.tensor_meta.dtype
    wide = _ACCUMULATOR_TYPES.get(result, result)

    def step(x: Scalar, _position: Scalar, accumulated: Scalar) -> list[Scalar]:
        return [combine(accumulated, cast(cast(x, result), wide))]

    return scan(node, symbol_table, [(initial, wide)], step)


@lowering("CumsumOp")
def cumsum(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _fold(node, symbol_table, 0, lambda total, x: total + x)


@lowering("CumprodOp")
def cumprod(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _fold(node, symbol_table, 1, lambda product, x: product * x)


@lowering("LogcumsumexpOp")
def logcumsumexp(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _fold(node, symbol_table, float("-inf"), _log_add_exp)


def _log_add_exp(x: Scalar, y: Scalar) -> Scalar:
    """Returns `log(exp(x) + exp(y))`. Two equal infinities yield that infinity; a NaN yields NaN."""
    low, high = s.minimum(x, y), s.maximum(x, y)
    infinite = low.compare("eq", high) & s.absolute(low).compare("eq", float("inf"))
    return s.select(infinite, high, s.log1p(s.exp(low - high)) + high)


@lowering("CummaxOp")
def cummax(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _running_extreme(node, symbol_table, largest=True)


@lowering("CumminOp")
def cummin(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    return _running_extreme(node, symbol_table, largest=False)


def _running_extreme(node: Op, symbol_table: SymbolTable, largest: bool) -> list[ir.Value]:
    """Returns the running extremes and their positions.

    Among equal elements, the position is that of the last one. After a NaN, the extreme is NaN, at the last NaN.
    """
    dtype = node.args[0].tensor_meta.dtype
    low, high = s.limits(dtype)

    def step(x: Scalar, position: Scalar, best: Scalar, best_position: Scalar) -> list[Scalar]:
        replaces = x.compare("ge" if largest else "le", best)
        if dtype.is_float:
            # Comparisons with NaN are false: once the extreme is NaN, only another NaN replaces it.
            replaces = replaces | x.compare("ne", x)
        return [s.select(replaces, x, best), s.select(replaces, position, best_position)]

    states = [(low if largest else high, dtype), (0, TensorDType.Int64)]
    return scan(node, symbol_table, states, step)
