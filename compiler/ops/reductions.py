"""Reductions, the normalisations built from them, and positions of extremes."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Size, product
from buddy.compiler.graph.sizes import largest as largest_size
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.elementwise.logic import bits_of
from buddy.compiler.ops.loops import index_of
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import (
    PARALLEL,
    REDUCTION,
    empty,
    filled,
    generic,
    loop_index,
    pointwise,
    reduce,
    reshape,
    shape_of,
)
from buddy.compiler.ops.sums import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import SymbolTable, argument, normalize_dim, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def axes_of(dims: Any, rank: int) -> list[int]:
    """Returns sorted, non-negative dims; `None` and an empty list mean all dims."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    listed = dims if isinstance(dims, (list, tuple)) else [dims]
    return sorted(normalize_dim(dim, rank) for dim in listed if rank)


def total(
    value: Any, dtype: TensorDType, axes: Sequence[int], keep: bool, result: TensorDType, *, squared: bool = False
) -> Any:
    """Returns the sum over `axes` (of squares, if `squared`), accumulated in `result`."""

    def body(x: Scalar, accumulated: Scalar) -> Scalar:
        x = cast(x, result)
        return accumulated + (x * x if squared else x)

    return reduce([(value, dtype)], shape_of(value), axes, keep, 0, result, body)


def extreme(value: Any, dtype: TensorDType, axes: Sequence[int], keep: bool, largest: bool) -> Any:
    low, high = s.limits(dtype)
    pick = s.maximum if largest else s.minimum
    return reduce(
        [(value, dtype)], shape_of(value), axes, keep, low if largest else high, dtype, lambda x, best: pick(best, x)
    )


def _operand(node: Op, symbol_table: SymbolTable) -> tuple[Any, TensorDType]:
    return value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype


def _count(shape: Sequence[Any], axes: Sequence[int]) -> Any:
    count: Any = 1
    for axis in axes:
        count *= shape[axis]
    return count


@lowering("SumDimOp")
def sum_dim(node: Op, symbol_table: SymbolTable) -> Any:
    value, dtype = _operand(node, symbol_table)
    axes = axes_of(argument(node, 1, "dim"), len(shape_of(value)))
    result = node.tensor_meta.dtype
    wide, keep = accumulator_type(result, _count(shape_of(value), axes)), bool(argument(node, 2, "keepdim", False))

    def body(x: Scalar, summed: Scalar) -> Scalar:
        return summed + cast(cast(x, result), wide)  # eager casts the elements to the result's type before adding

    return cast_tensor(reduce([(value, dtype)], shape_of(value), axes, keep, 0, wide, body), wide, result)


@lowering("ProdOp")
def prod(node: Op, symbol_table: SymbolTable) -> Any:
    result = node.tensor_meta.dtype
    wide = accumulator_type(result)
    # Cast before multiplying: the product of bools is an integer.
    return _reduce_node(node, symbol_table, 1, wide, lambda x, product: product * cast(cast(x, result), wide))


@lowering("AnyOp")
def any_of(node: Op, symbol_table: SymbolTable) -> Any:
    """True where some element is not 0; NaN is not 0. An empty list reduces no dim."""
    if argument(node, 1, "dim") == []:
        return cast_tensor(*_operand(node, symbol_table), node.tensor_meta.dtype)
    return _reduce_node(node, symbol_table, 0, TensorDType.Bool, lambda x, found: found | cast(x, TensorDType.Bool))


@lowering("HashTensorOp")
def hash_tensor(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns the exclusive or of the elements' bits: floats as f64, integers as 64 bits."""

    def bits(x: Scalar) -> Scalar:
        if not x.dtype.is_float:
            return cast(x, TensorDType.UInt64)
        return cast(bits_of(cast(x, TensorDType.Float64)), TensorDType.UInt64)

    return _reduce_node(node, symbol_table, 0, TensorDType.UInt64, lambda x, found: found ^ bits(x))


def _reduce_node(
    node: Op, symbol_table: SymbolTable, initial: float, wide: TensorDType, body: Callable[..., Any]
) -> Any:
    """Folds in `wide` over the node's dims (all if it names none); the result has the node's element type."""
    value, dtype = _operand(node, symbol_table)
    shape = shape_of(value)
    folded = reduce([(value, dtype)], shape, axes_of(argument(node, 1, "dim"), len(shape)), False, initial, wide, body)
    meta = node.tensor_meta
    return cast_tensor(reshape(folded, meta.shape, wide), wide, meta.dtype)


@lowering("VectorNormOp")
def vector_norm(node: Op, symbol_table: SymbolTable) -> Any:
    """Returns the `ord`-norm over the dims of the third argument; 0 counts nonzeros, infinities take extremes."""
    value, dtype = _operand(node, symbol_table)
    shape, meta = shape_of(value), node.tensor_meta
    order = float(argument(node, 1, "ord", 2))
    axes = axes_of(argument(node, 2, "dim"), len(shape))
    wide = accumulator_type(meta.dtype, _count(shape, axes))
    # Of a single element, every norm except the count is the absolute value; its powers might overflow.
    single_element = order and all(shape[axis] == 1 for axis in axes)
    initial, term, finish = _norm(1.0 if single_element else order)

    def body(x: Scalar, accumulated: Scalar) -> Scalar:
        return term(cast(cast(x, meta.dtype), wide), accumulated)

    folded = reshape(reduce([(value, dtype)], shape, axes, False, initial, wide, body), meta.shape, wide)
    return pointwise([(folded, wide)], meta.shape, meta.dtype, lambda x: cast(finish(x), meta.dtype))


def _norm(order: float) -> tuple[float, Callable[[Scalar, Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """Returns a norm's initial value, its accumulation step, and its final step."""

    def powers(x: Scalar, total_: Scalar) -> Scalar:
        return total_ + s.power(s.absolute(x), order)

    known: dict[float, Any] = {
        0.0: (0, lambda x, count: count + cast(x.compare("ne", 0), x.dtype), lambda x: x),
        1.0: (0, lambda x, sum_: sum_ + s.absolute(x), lambda x: x),
        2.0: (0, lambda x, sum_: sum_ + x * x, s.sqrt),
        pymath.inf: (0, lambda x, best: s.maximum(best, s.absolute(x)), lambda x: x),
        -pymath.inf: (pymath.inf, lambda x, best: s.minimum(best, s.absolute(x)), lambda x: x),
    }
    return known.get(order) or (0, powers, lambda x: s.power(x, 1 / order))


@lowering("MeanOp")
def mean(node: Op, symbol_table: SymbolTable) -> Any:
    value, dtype = _operand(node, symbol_table)
    shape = shape_of(value)
    axes = axes_of(argument(node, 1, "dim"), len(shape))
    result, count = node.tensor_meta.dtype, _count(shape, axes)
    wide = accumulator_type(result, count)
    summed = total(value, dtype, axes, bool(argument(node, 2, "keepdim", False)), wide)
    return pointwise([(summed, wide)], shape_of(summed), result, lambda x: cast(x / count, result))


@lowering("AmaxOp")
def amax(node: Op, symbol_table: SymbolTable) -> Any:
    return _extreme(node, symbol_table, largest=True)


@lowering("AminOp")
def amin(node: Op, symbol_table: SymbolTable) -> Any:
    return _extreme(node, symbol_table, largest=False)


def _extreme(node: Op, symbol_table: SymbolTable, largest: bool) -> Any:
    value, dtype = _operand(node, symbol_table)
    axes = axes_of(argument(node, 1, "dim"), len(shape_of(value)))
    return extreme(value, dtype, axes, bool(argument(node, 2, "keepdim", False)), largest)


def moments(value: Any, dtype: TensorDType, axes: Sequence[int], correction: float) -> tuple[Any, Any, TensorDType]:
    """Returns mean and variance over `axes`, kept as unit dims, and their type; two passes avoid cancellation."""
    shape = shape_of(value)
    count = _count(shape, axes)
    wide, accumulator = accumulator_type(dtype), accumulator_type(dtype, count)
    summed = total(value, dtype, axes, True, accumulator)
    average = pointwise([(summed, accumulator)], shape_of(summed), wide, lambda x: cast(x / count, wide))

    def squares(x: Scalar, m: Scalar, accumulated: Scalar) -> Scalar:
        deviation = cast(cast(x, wide) - m, accumulator)
        return accumulated + deviation * deviation

    squared_sum = reduce([(value, dtype), (average, wide)], shape, axes, True, 0, accumulator, squares)
    divisor = largest_size(0, count - int(correction)) if isinstance(count, Size) else max(0.0, count - correction)
    variance = pointwise([(squared_sum, accumulator)], shape_of(squared_sum), wide, lambda x: cast(x / divisor, wide))
    return average, variance, wide


@lowering("VarMeanOp", "VarOp")
def var_mean(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the variance, and the mean if the node has it as a second result."""
    value, dtype = _operand(node, symbol_table)
    axes = axes_of(argument(node, 1, "dim"), len(shape_of(value)))
    correction = node.kwargs.get("correction")
    average, variance, wide = moments(value, dtype, axes, 1 if correction is None else correction)
    results = []
    for found, meta in zip((variance, average), node.metas, strict=False):
        assert meta is not None
        results.append(cast_tensor(reshape(found, meta.shape, wide), wide, meta.dtype))
    return results


def softmax(value: Any, dtype: TensorDType, axis: int, result: TensorDType, scale: float = 1.0) -> Any:
    """Returns `softmax(scale * value)` along `axis`, shifted by the maximum to avoid overflow.

    Multiplies by the reciprocal of the sum, which takes one division per row, but rounds once more than eager.
    """
    wide = accumulator_type(dtype)
    shape = shape_of(value)
    peak = extreme(value, dtype, [axis], True, largest=scale >= 0)

    def shifted(x: Scalar, m: Scalar) -> Scalar:
        difference = cast(x, wide) - cast(m, wide)
        return s.exp(difference if scale == 1.0 else difference * scale)

    exponentials = pointwise([(value, dtype), (peak, dtype)], shape, wide, shifted)
    summed = total(exponentials, wide, [axis], True, wide)
    inverse = pointwise([(summed, wide)], shape_of(summed), wide, lambda x: 1.0 / x)
    return pointwise([(exponentials, wide), (inverse, wide)], shape, result, lambda x, i: cast(x * i, result))


@lowering("SoftmaxOp")
def softmax_op(node: Op, symbol_table: SymbolTable) -> Any:
    value, dtype = _operand(node, symbol_table)
    shape, result = shape_of(value), node.tensor_meta.dtype
    if not shape:
        return pointwise([(value, dtype)], shape, result, lambda x: cast(x - x + 1.0, result))
    return softmax(value, dtype, normalize_dim(node.args[1], len(shape)), result)


def _shifted_exp_sum(value: Any, dtype: TensorDType, axis: int, scale: float = 1.0) -> tuple[Any, Any, TensorDType]:
    """Returns the maximum `peak` along `axis`, kept as a unit dim, and `sum(exp(scale * (value - peak)))` along it."""
    wide = accumulator_type(dtype)
    peak = extreme(value, dtype, [axis], True, largest=scale >= 0)

    def body(x: Scalar, m: Scalar, accumulated: Scalar) -> Scalar:
        return accumulated + s.exp((cast(x, wide) - cast(m, wide)) * scale)

    return peak, reduce([(value, dtype), (peak, dtype)], shape_of(value), [axis], True, 0, wide, body), wide


def log_sum_exp(value: Any, dtype: TensorDType, axis: int, scale: float = 1.0) -> tuple[Any, TensorDType]:
    """Returns `log(sum(exp(scale * value)))` along `axis`, kept as a unit dim."""
    peak, summed, wide = _shifted_exp_sum(value, dtype, axis, scale)
    both = [(summed, wide), (peak, dtype)]
    return pointwise(both, shape_of(summed), wide, lambda x, m: s.log(x) + cast(m, wide) * scale), wide


@lowering("LogSoftmaxOp")
def log_softmax(node: Op, symbol_table: SymbolTable) -> Any:
    """Subtracts the maximum before the logarithm: added to a large maximum, the logarithm would lose its digits."""
    value, dtype = _operand(node, symbol_table)
    shape, result = shape_of(value), node.tensor_meta.dtype
    if not shape:
        return pointwise([(value, dtype)], shape, result, lambda x: cast(x - x, result))
    peak, summed, wide = _shifted_exp_sum(value, dtype, normalize_dim(node.args[1], len(shape)))
    logarithm = pointwise([(summed, wide)], shape_of(summed), wide, s.log)
    operands = [(value, dtype), (peak, dtype), (logarithm, wide)]
    return pointwise(operands, shape, result, lambda x, m, t: cast(cast(x, wide) - cast(m, wide) - t, result))


@lowering("NativeLayerNormOp")
def native_layer_norm(node: Op, symbol_table: SymbolTable) -> list[Any]:
    value, dtype = _operand(node, symbol_table)
    shape, normalized_rank = shape_of(value), len(node.args[1])
    epsilon = node.args[4]
    average, variance, wide = moments(value, dtype, list(range(len(shape) - normalized_rank, len(shape))), 0)
    inverse = pointwise([(variance, wide)], shape_of(variance), wide, lambda v: 1.0 / s.sqrt(v + epsilon))
    operands = [(value, dtype), (average, wide), (inverse, wide)]
    operands += [(value_of(arg, symbol_table), arg.tensor_meta.dtype) for arg in node.args[2:4] if arg is not None]
    has_weight = node.args[2] is not None

    def body(x: Scalar, m: Scalar, r: Scalar, *rest: Scalar) -> Scalar:
        y = (cast(x, wide) - m) * r
        affine = [cast(p, wide) for p in rest]
        if has_weight:
            y = y * affine.pop(0)
        return cast(y + affine[0] if affine else y, dtype)

    results = [pointwise(operands, shape, dtype, body)]
    for found, meta in zip((average, inverse), node.metas[1:], strict=True):
        results.append(found if meta is None else cast_tensor(reshape(found, meta.shape, wide), wide, meta.dtype))
    return results


@lowering("BatchNormOp")
def batch_norm(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Computes `x * scale + shift` per channel from the running statistics.

    The saved statistics, for training, are empty. Scale and shift are computed first, as in PyTorch, so that each
    channel takes one square root and one division.
    """
    (value, dtype), meta = _operand(node, symbol_table), node.tensor_meta
    weight, bias, average, variance = node.args[1:5]
    epsilon, channel = node.args[6], [meta.shape[1], *[1] * (len(meta.shape) - 2)]
    wide = accumulator_type(dtype)

    def per_channel(nodes: Sequence[Op | None], computed: Sequence[Any], body: Callable[..., Scalar]) -> Any:
        given = [(value_of(n, symbol_table), n.tensor_meta.dtype) for n in nodes if n is not None]
        operands = [*((reshape(v, channel, t), t) for v, t in given), *((v, wide) for v in computed)]
        return pointwise(operands, channel, wide, lambda *scalars: body(*(cast(x, wide) for x in scalars)))

    def scale_of(v: Scalar, *w: Scalar) -> Scalar:
        inverse = 1.0 / s.sqrt(v + epsilon)
        return inverse * w[0] if w else inverse

    def shift_of(m: Scalar, *bias_and_scale: Scalar) -> Scalar:
        *bias_if_any, factor = bias_and_scale
        return bias_if_any[0] - m * factor if bias_if_any else -(m * factor)

    scale = per_channel([variance, weight], [], scale_of)
    shift = per_channel([average, bias], [scale], shift_of)
    operands = [(value, dtype), (scale, wide), (shift, wide)]
    result = pointwise(operands, meta.shape, meta.dtype, lambda x, a, b: cast(cast(x, wide) * a + b, meta.dtype))
    return [result, *(empty(found.shape, found.dtype) for found in node.metas[1:] if found is not None)]


def extreme_with_position(value: Any, dtype: TensorDType, axis: int, largest: bool) -> list[Any]:
    """Returns the maximum or minimum along `axis` and its position (i64), the first of equal elements or of NaNs."""
    shape = shape_of(value)
    kept = [i for i in range(len(shape)) if i != axis]
    low, high = s.limits(dtype)
    sizes = [shape[i] for i in kept]
    outs = [filled(low if largest else high, sizes, dtype), filled(0, sizes, TensorDType.Int64)]

    def body(*elements: Any) -> list[Any]:
        x, best, where = map(Scalar, elements, (dtype, dtype, TensorDType.Int64))
        better = x > best if largest else x < best
        if dtype.is_float:
            better = better | (x.compare("ne", x) & best.compare("eq", best))
        here = index_of(loop_index(axis))
        return [s.select(better, x, best).value, s.select(better, here, where).value]

    iterators = [REDUCTION if i == axis else PARALLEL for i in range(len(shape))]
    return generic([value], [list(range(len(shape)))], outs, [kept, kept], iterators, body)


def _extreme_of_node(node: Op, symbol_table: SymbolTable, largest: bool) -> list[Any]:
    """Returns value and position along the node's dim; without a dim, the position is in row-major order."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    shape, dim = shape_of(value), argument(node, 1, "dim")
    if dim is None or not shape:
        return extreme_with_position(reshape(value, [product(shape)], dtype), dtype, 0, largest)
    return extreme_with_position(value, dtype, normalize_dim(dim, len(shape)), largest)


def _register(largest: bool, with_value: str, position_alone: str) -> None:
    @lowering(with_value)
    def lower(node: Op, symbol_table: SymbolTable) -> list[Any]:
        pairs = zip(_extreme_of_node(node, symbol_table, largest), node.metas, strict=True)
        return [reshape(found, meta.shape, meta.dtype) for found, meta in pairs if meta is not None]

    @lowering(position_alone)
    def lower_position(node: Op, symbol_table: SymbolTable) -> Any:
        return reshape(_extreme_of_node(node, symbol_table, largest)[1], node.tensor_meta.shape, TensorDType.Int64)


_register(True, "MaxDimOp", "ArgmaxOp")
_register(False, "MinDimOp", "ArgminOp")
