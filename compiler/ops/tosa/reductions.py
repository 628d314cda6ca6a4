"""Reductions and normalisations in TOSA; half types are computed in f32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.reductions import axes_of
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.tensors import FLOATS, TosaTensor, cast, reduced, reshape, unary, widened
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, normalize_dim

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)


def _operand_and_axes(node: Op, symbol_table: SymbolTable) -> tuple[TosaTensor, list[int]]:
    """Returns the operand and the axes to reduce."""
    x = tensor_of(node.args[0], symbol_table)
    return x, axes_of(argument(node, 1, "dim"), len(x.shape))


def _as_result(x: TosaTensor, node: Op, result: int = 0) -> TosaTensor:
    """Returns `x` in the shape and element type of a result of `node`."""
    meta = node.metas[result]
    assert meta is not None
    return reshape(cast(x, meta.dtype), meta.shape)


def _floats(x: TosaTensor, op: str) -> TosaTensor:
    if x.dtype not in FLOATS:
        raise LoweringError(f"no {x.dtype.value} {op}")
    return widened(x)


@lowering("SumDimOp")
def sum_dim(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, axes = _operand_and_axes(node, symbol_table)
    # Eager casts the elements to the result's type before adding.
    return _as_result(reduced("reduce_sum", widened(cast(x, node.tensor_meta.dtype)), axes), node)


@lowering("MeanOp")
def mean(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    x, axes = _operand_and_axes(node, symbol_table)
    return _as_result(average(_floats(x, "reduce_sum"), axes), node)


def average(x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    """Returns the sum over `axes`, kept as unit dims, times the reciprocal of the count."""
    return reduced("reduce_sum", x, axes) * (1.0 / prod(x.shape[axis] for axis in axes))


def _extreme(name: str, op: str, of_bools: str) -> None:
    @lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> TosaTensor:
        x, axes = _operand_and_axes(node, symbol_table)
        return _as_result(reduced(of_bools if x.dtype is TensorDType.Bool else op, x, axes), node)


_extreme("AmaxOp", "reduce_max", "reduce_any")
_extreme("AminOp", "reduce_min", "reduce_all")


def moments(x: TosaTensor, axes: Sequence[int], correction: float) -> tuple[TosaTensor, TosaTensor]:
    """Returns mean and variance over `axes`, kept as unit dims; two passes avoid cancellation."""
    count = prod(x.shape[axis] for axis in axes)
    middle = average(x, axes)
    off = x - middle
    divisor = max(0.0, count - correction)
    return middle, reduced("reduce_sum", off * off, axes) * (1.0 / divisor if divisor else float("inf"))


@lowering("VarOp", "VarMeanOp")
def var_mean(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns the variance, and the mean if the node has it as a second result."""
    x, axes = _operand_and_axes(node, symbol_table)
    correction = node.kwargs.get("correction")
    middle, variance = moments(_floats(x, "reduce_sum"), axes, 1 if correction is None else correction)
    return [_as_result(found, node, i) for i, found in enumerate((variance, middle)[: len(node.metas)])]


def _exponentials(x: TosaTensor, axis: int) -> tuple[TosaTensor, TosaTensor, TosaTensor]:
    """Returns `exp(x - peak)`, its sum and the maximum `peak`, which is subtracted to avoid overflow."""
    peak = reduced("reduce_max", x, [axis])
    powers = unary("exp", x - peak)
    return powers, reduced("reduce_sum", powers, [axis]), peak


def softmax(x: TosaTensor, axis: int) -> TosaTensor:
    powers, total, _ = _exponentials(x, axis)
    return powers * unary("reciprocal", total)


def log_sum_exp(x: TosaTensor, axis: int) -> TosaTensor:
    """Returns `log(sum(exp(x)))` along `axis`, kept as a unit dim."""
    _, total, peak = _exponentials(x, axis)
    return unary("log", total) + peak


def _operand_and_axis(node: Op, symbol_table: SymbolTable) -> tuple[TosaTensor, int]:
    """Returns the operand as floats with at least one dim, and the axis."""
    x = _floats(tensor_of(node.args[0], symbol_table), "exp")
    x = x if x.shape else reshape(x, [1])
    return x, normalize_dim(node.args[1], len(x.shape))


@lowering("SoftmaxOp")
def softmax_op(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return _as_result(softmax(*_operand_and_axis(node, symbol_table)), node)


@lowering("LogSoftmaxOp")
def log_softmax(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Computes `(x - peak) - log(sum)`: subtracting the maximum first keeps large inputs exact."""
    x, axis = _operand_and_axis(node, symbol_table)
    _, total, peak = _exponentials(x, axis)
    return _as_result((x - peak) - unary("log", total), node)


@lowering("NativeLayerNormOp")
def native_layer_norm(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    x = _floats(tensor_of(node.args[0], symbol_table), "rsqrt")
    rank, normal = len(x.shape), len(node.args[1])
    weight, bias, epsilon = node.args[2:5]
    middle, variance = moments(x, list(range(rank - normal, rank)), 0)
    inverse = unary("rsqrt", variance + epsilon)
    y = (x - middle) * inverse
    if weight is not None:
        y = y * registration.operand(weight, rank, symbol_table, x.dtype)
    if bias is not None:
        y = y + registration.operand(bias, rank, symbol_table, x.dtype)
    wanted = zip((middle, inverse), node.metas[1:], strict=True)
    saved = [found if meta is None else _as_result(found, node, i) for i, (found, meta) in enumerate(wanted, start=1)]
    return [_as_result(y, node), *saved]


@lowering("BatchNormOp")
def batch_norm(node: Op, symbol_table: SymbolTable) -> list[object]:
    """Uses the running statistics; the saved statistics, for training, are empty."""
    x = _floats(tensor_of(node.args[0], symbol_table), "rsqrt")
    weight, bias, running_mean, running_variance = node.args[1:5]
    channel = [1, x.shape[1], *[1] * (len(x.shape) - 2)]

    def per_channel(arg: Op) -> TosaTensor:
        return reshape(cast(tensor_of(arg, symbol_table), x.dtype), channel)

    y = (x - per_channel(running_mean)) * unary("rsqrt", per_channel(running_variance) + node.args[6])
    y = y if weight is None else y * per_channel(weight)
    y = y if bias is None else y + per_channel(bias)
    return [_as_result(y, node), *(registration.empty_result(meta) for meta in node.metas[1:] if meta is not None)]


ops_registry.absent |= {
    "CumsumOp": "no cumulative sum",
    "LogcumsumexpOp": "no cumulative sum",
    "CumprodOp": "no cumulative product",
    "CummaxOp": "no cumulative maximum",
    "CumminOp": "no cumulative minimum",
    **dict.fromkeys(("SortOp", "TopkOp", "KthvalueOp", "MedianOp", "NanmedianOp", "ModeOp"), "no sort"),
}
