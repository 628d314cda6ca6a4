"""Lowers reductions and normalisations to TOSA; 16-bit floats are computed in f32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.reductions import axes_of
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import FLOATS, TosaTensor, cast, reduce, reshape, unary, widen
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, normalize_dim

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)


def _operand_and_axes(node: Op, symbol_table: SymbolTable) -> tuple[TosaTensor, list[int]]:
    """Returns the operand and the axes to reduce."""
    x = tensor_of(node.args[0], symbol_table)
    return x, axes_of(argument(node, 1, "dim"), len(x.shape))


def _as_result(x: TosaTensor, node: Op, index: int = 0) -> TosaTensor:
    """Returns `x` in the shape and element type of a result of `node`."""
    meta = node.metas[index]
    assert meta is not None
    return reshape(cast(x, meta.dtype), meta.shape)


def _to_f32(x: TosaTensor, op: str) -> TosaTensor:
    """Returns `x` in f32. Raises `LoweringError`, with the name of a TOSA op, for types that are not floats."""
    if x.dtype not in FLOATS:
        raise LoweringError(f"no {x.dtype.value} {op}")
    return widen(x)


@lowering("SumDimOp")
def sum_dim(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, axes = _operand_and_axes(node, symbol_table)
    # Eager casts the elements to the result's type before adding.
    return _as_result(reduce("reduce_sum", widen(cast(x, node.tensor_meta.dtype)), axes), node)


@lowering("MeanOp")
def mean(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, axes = _operand_and_axes(node, symbol_table)
    return _as_result(average(_to_f32(x, "reduce_sum"), axes), node)


def average(x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    """Returns the mean over `axes`, which remain as unit dims: the sum times the reciprocal of the count."""
    return reduce("reduce_sum", x, axes) * (1.0 / prod(x.shape[axis] for axis in axes))


def _register_extreme(name: str, op: str, bool_op: str) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> TosaTensor:
        x, axes = _operand_and_axes(node, symbol_table)
        return _as_result(reduce(bool_op if x.dtype is TensorDType.Bool else op, x, axes), node)


_register_extreme("AmaxOp", "reduce_max", "reduce_any")
_register_extreme("AminOp", "reduce_min", "reduce_all")


def moments(x: TosaTensor, axes: Sequence[int], correction: float) -> tuple[TosaTensor, TosaTensor]:
    """Returns mean and variance over `axes`, which remain as unit dims; a second pass avoids cancellation."""
    count = prod(x.shape[axis] for axis in axes)
    mean = average(x, axes)
    deviations = x - mean
    divisor = max(0.0, count - correction)
    return mean, reduce("reduce_sum", deviations * deviations, axes) * (1.0 / divisor if divisor else float("inf"))


@lowering("VarOp", "VarMeanOp")
def var_mean(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns the variance, and the mean if the node has a second result."""
    x, axes = _operand_and_axes(node, symbol_table)
    correction = node.kwargs.get("correction")
    mean, variance = moments(_to_f32(x, "reduce_sum"), axes, 1 if correction is None else correction)
    return [_as_result(value, node, i) for i, value in enumerate((variance, mean)[: len(node.metas)])]


def _exponentials(x: TosaTensor, axis: int) -> tuple[TosaTensor, TosaTensor, TosaTensor]:
    """Returns `exp(x - maxima)`, the sums along `axis`, and the maxima, which are subtracted to avoid overflow."""
    maxima = reduce("reduce_max", x, [axis])
    exponentials = unary("exp", x - maxima)
    return exponentials, reduce("reduce_sum", exponentials, [axis]), maxima


def softmax(x: TosaTensor, axis: int) -> TosaTensor:
    """Returns the softmax of `x`, a tensor of f32, along `axis`."""
    exponentials, sums, _ = _exponentials(x, axis)
    return exponentials * unary("reciprocal", sums)


def log_sum_exp(x: TosaTensor, axis: int) -> TosaTensor:
    """Returns `log(sum(exp(x)))` along `axis`, which remains as a unit dim."""
    _, sums, maxima = _exponentials(x, axis)
    return unary("log", sums) + maxima


def _operand_and_axis(node: Op, symbol_table: SymbolTable) -> tuple[TosaTensor, int]:
    """Returns the operand in f32, with at least one dim, and the axis."""
    x = _to_f32(tensor_of(node.args[0], symbol_table), "exp")
    x = x if x.shape else reshape(x, [1])
    return x, normalize_dim(node.args[1], len(x.shape))


@lowering("SoftmaxOp")
def softmax_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return _as_result(softmax(*_operand_and_axis(node, symbol_table)), node)


@lowering("LogSoftmaxOp")
def log_softmax(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Computes `(x - maximum) - log(sum)`: the first difference keeps large inputs exact."""
    x, axis = _operand_and_axis(node, symbol_table)
    _, sums, maxima = _exponentials(x, axis)
    return _as_result((x - maxima) - unary("log", sums), node)


@lowering("NativeLayerNormOp")
def native_layer_norm(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    x = _to_f32(tensor_of(node.args[0], symbol_table), "rsqrt")
    rank, normalized_rank = len(x.shape), len(node.args[1])
    weight, bias, epsilon = node.args[2:5]
    mean, variance = moments(x, list(range(rank - normalized_rank, rank)), 0)
    inverse = unary("rsqrt", variance + epsilon)
    y = (x - mean) * inverse
    if weight is not None:
        y = y * registration.operand(weight, rank, symbol_table, x.dtype)
    if bias is not None:
        y = y + registration.operand(bias, rank, symbol_table, x.dtype)
    pairs = zip((mean, inverse), node.metas[1:], strict=True)
    statistics = [
        value if meta is None else _as_result(value, node, i) for i, (value, meta) in enumerate(pairs, start=1)
    ]
    return [_as_result(y, node), *statistics]


@lowering("BatchNormOp")
def batch_norm(node: Op, symbol_table: SymbolTable) -> list[object]:
    """Normalises by the running statistics; the other results, statistics for training, are empty."""
    x = _to_f32(tensor_of(node.args[0], symbol_table), "rsqrt")
    weight, bias, running_mean, running_variance = node.args[1:5]
    channel_shape = [1, x.shape[1], *[1] * (len(x.shape) - 2)]

    def per_channel(arg: Op) -> TosaTensor:
        return reshape(cast(tensor_of(arg, symbol_table), x.dtype), channel_shape)

    y = (x - per_channel(running_mean)) * unary("rsqrt", per_channel(running_variance) + node.args[6])
    y = y if weight is None else y * per_channel(weight)
    y = y if bias is None else y + per_channel(bias)
    return [_as_result(y, node), *(registration.empty_result(meta) for meta in node.metas[1:] if meta is not None)]


ops_registry.absence_reasons |= {
    "CumsumOp": "no cumulative sum",
    "LogcumsumexpOp": "no cumulative sum",
    "CumprodOp": "no cumulative product",
    "CummaxOp": "no cumulative maximum",
    "CumminOp": "no cumulative minimum",
    **dict.fromkeys(("SortOp", "TopkOp", "KthvalueOp", "MedianOp", "NanmedianOp", "ModeOp"), "no sort"),
}
