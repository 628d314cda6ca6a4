"""Lowers reductions, the normalisations that consist of them, and positions of maxima and minima.

`wide` is the type in which a lowering computes: the accumulator type of its elements.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Size, product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.integers import bits_of
from buddy.compiler.ops.loops import index_to_scalar
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import (
    PARALLEL,
    REDUCTION,
    accumulator_type,
    cast_tensor,
    empty,
    filled,
    generic,
    index_to_integer,
    loop_index,
    pointwise,
    reduce,
    reshape,
    shape_of,
    slice_of,
)
from buddy.compiler.ops.utils import Registry, SymbolTable, argument, normalize_dim, value_of

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir

ops_registry = Registry()
lowering = ops_registry.lowering


def axes_of(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Returns `dims`, a dim or a list, as sorted non-negative dims; `None` and an empty list mean all dims."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    dim_list = [dims] if isinstance(dims, int) else dims
    return sorted(normalize_dim(dim, rank) for dim in dim_list if rank)


def sum_over(
    value: ir.Value, dtype: TensorDType, axes: Sequence[int], result: TensorDType, *, keep: bool, squared: bool = False
) -> ir.Value:
    """Returns the sum over the dims `axes`, of squares if `squared`, accumulated in the type `result`."""

    def body(x: Scalar, accumulated: Scalar) -> Scalar:
        x = cast(x, result)
        return accumulated + (x * x if squared else x)

    return reduce([(value, dtype)], shape_of(value), axes, 0, result, body, keep=keep)


def extreme(value: ir.Value, dtype: TensorDType, axes: Sequence[int], *, keep: bool, largest: bool) -> ir.Value:
    """Returns the maximum over the dims `axes` if `largest`, else the minimum."""
    low, high = s.limits(dtype)
    initial, choose = (low, s.maximum) if largest else (high, s.minimum)
    return reduce([(value, dtype)], shape_of(value), axes, initial, dtype, lambda x, best: choose(best, x), keep=keep)


def _operand(node: Op, symbol_table: SymbolTable) -> tuple[ir.Value, TensorDType]:
    return value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype


def _element_count(shape: Sequence[int | Size], axes: Sequence[int]) -> int | Size:
    """Returns the number of elements that a reduction over `axes` combines, which may be symbolic."""
    return product([shape[axis] for axis in axes])


@lowering("SumDimOp")
def sum_dim(node: Op, symbol_table: SymbolTable) -> ir.Value:
    value, dtype = _operand(node, symbol_table)
    axes = axes_of(argument(node, 1, "dim"), len(shape_of(value)))
    result = node.tensor_meta.dtype
    wide = accumulator_type(result, _element_count(shape_of(value), axes))
    keep = bool(argument(node, 2, "keepdim", False))

    def body(x: Scalar, accumulated: Scalar) -> Scalar:
        return accumulated + cast(cast(x, result), wide)  # eager casts the elements to the result's type before adding

    return cast_tensor(reduce([(value, dtype)], shape_of(value), axes, 0, wide, body, keep=keep), wide, result)


@lowering("ProdOp")
def prod(node: Op, symbol_table: SymbolTable) -> ir.Value:
    result = node.tensor_meta.dtype
    wide = accumulator_type(result)
    # Cast before multiplying: the product of bools is an integer.
    return _reduce_node(node, symbol_table, 1, wide, lambda x, product: product * cast(cast(x, result), wide))


@lowering("AnyOp")
def any_of(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns whether any element is not 0; NaN is not 0. If the list of dims is empty, reduces no dim."""
    if argument(node, 1, "dim") == []:
        return cast_tensor(*_operand(node, symbol_table), node.tensor_meta.dtype)
    return _reduce_node(node, symbol_table, 0, TensorDType.Bool, lambda x, result: result | cast(x, TensorDType.Bool))


@lowering("HashTensorOp")
def hash_tensor(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the exclusive or of the elements' bits: floats as f64, integers as 64 bits."""

    def bits(x: Scalar) -> Scalar:
        if not x.dtype.is_float:
            return cast(x, TensorDType.UInt64)
        return cast(bits_of(cast(x, TensorDType.Float64)), TensorDType.UInt64)

    return _reduce_node(node, symbol_table, 0, TensorDType.UInt64, lambda x, result: result ^ bits(x))


def _reduce_node(
    node: Op, symbol_table: SymbolTable, initial: float, wide: TensorDType, body: Callable[..., Scalar]
) -> ir.Value:
    """Reduces over the node's dims (default: all) in the type `wide`; the result has the node's element type."""
    value, dtype = _operand(node, symbol_table)
    shape = shape_of(value)
    axes, meta = axes_of(argument(node, 1, "dim"), len(shape)), node.tensor_meta
    reduced = reduce([(value, dtype)], shape, axes, initial, wide, body)
    return cast_tensor(reshape(reduced, meta.shape, wide), wide, meta.dtype)


@lowering("VectorNormOp")
def vector_norm(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the norm of order `ord` over the dims of the third argument.

    Order 0 counts the elements that are not 0. The orders inf and -inf return the largest and smallest absolute value.
    """
    value, dtype = _operand(node, symbol_table)
    shape, meta = shape_of(value), node.tensor_meta
    order = float(argument(node, 1, "ord", 2))
    axes = axes_of(argument(node, 2, "dim"), len(shape))
    wide = accumulator_type(meta.dtype, _element_count(shape, axes))
    # The norm of a single element is its absolute value, except for order 0; the powers of the element might overflow.
    single_element = order and all(shape[axis] == 1 for axis in axes)
    initial, term, finish = _norm(1.0 if single_element else order)

    def body(x: Scalar, accumulated: Scalar) -> Scalar:
        return term(cast(cast(x, meta.dtype), wide), accumulated)

    reduced = reshape(reduce([(value, dtype)], shape, axes, initial, wide, body), meta.shape, wide)
    return pointwise([(reduced, wide)], meta.shape, meta.dtype, lambda x: cast(finish(x), meta.dtype))


def _norm(order: float) -> tuple[float, Callable[[Scalar, Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """Returns the initial value of the norm of `order`, its accumulation step, and its final step.

    The accumulation step maps an element and the accumulated value to the next accumulated value.
    """

    def add_power(x: Scalar, sum_: Scalar) -> Scalar:
        return sum_ + s.power(s.absolute(x), order)

    special_cases: dict[float, Any] = {
        0.0: (0, lambda x, count: count + cast(x.compare("ne", 0), x.dtype), lambda x: x),
        1.0: (0, lambda x, sum_: sum_ + s.absolute(x), lambda x: x),
        2.0: (0, lambda x, sum_: sum_ + x * x, s.sqrt),
        pymath.inf: (0, lambda x, best: s.maximum(best, s.absolute(x)), lambda x: x),
        -pymath.inf: (pymath.inf, lambda x, best: s.minimum(best, s.absolute(x)), lambda x: x),
    }
    return special_cases.get(order) or (0, add_power, lambda x: s.power(x, 1 / order))


@lowering("MeanOp")
def mean(node: Op, symbol_table: SymbolTable) -> ir.Value:
    value, dtype = _operand(node, symbol_table)
    shape = shape_of(value)
    axes = axes_of(argument(node, 1, "dim"), len(shape))
    result, count = node.tensor_meta.dtype, _element_count(shape, axes)
    wide = accumulator_type(result, count)
    sums = sum_over(value, dtype, axes, wide, keep=bool(argument(node, 2, "keepdim", False)))
    return pointwise([(sums, wide)], shape_of(sums), result, lambda x: cast(x / count, result))


@lowering("AmaxOp")
def amax(node: Op, symbol_table: SymbolTable) -> ir.Value:
    return _reduce_to_extreme(node, symbol_table, largest=True)


@lowering("AminOp")
def amin(node: Op, symbol_table: SymbolTable) -> ir.Value:
    return _reduce_to_extreme(node, symbol_table, largest=False)


def _reduce_to_extreme(node: Op, symbol_table: SymbolTable, largest: bool) -> ir.Value:
    value, dtype = _operand(node, symbol_table)
    axes = axes_of(argument(node, 1, "dim"), len(shape_of(value)))
    return extreme(value, dtype, axes, keep=bool(argument(node, 2, "keepdim", False)), largest=largest)


def moments(
    value: ir.Value, dtype: TensorDType, axes: Sequence[int], correction: float, from_first: bool = False
) -> tuple[ir.Value, ir.Value, TensorDType]:
    """Returns mean and variance over the dims `axes`, which remain as unit dims, and the element type of both.

    The sum of squares is divided by the number of elements minus `correction`.

    Sums the squared deviations from the mean, in a second pass, to avoid cancellation. With `from_first`, the mean is
    the first element plus the mean of the differences from it. For equal elements it is then exact, and the variance is
    0 as in eager, whose gradient of the standard deviation depends on that.
    """
    shape = shape_of(value)
    count = _element_count(shape, axes)
    wide, accumulator = accumulator_type(dtype), accumulator_type(dtype, count)
    if from_first and not isinstance(count, Size) and count > 0:
        average = _mean_from_first(value, dtype, axes, count, wide, accumulator)
    else:
        sums = sum_over(value, dtype, axes, accumulator, keep=True)
        average = pointwise([(sums, accumulator)], shape_of(sums), wide, lambda x: cast(x / count, wide))

    def add_square(x: Scalar, m: Scalar, accumulated: Scalar) -> Scalar:
        deviation = cast(cast(x, wide) - m, accumulator)
        return accumulated + deviation * deviation

    square_sums = reduce([(value, dtype), (average, wide)], shape, axes, 0, accumulator, add_square, keep=True)

    def divide(x: Scalar) -> Scalar:
        if isinstance(count, Size):
            # The correction may be a fraction, which a symbolic size cannot express.
            return cast(x / s.maximum(x.like(count) - correction, x.like(0)), wide)
        return cast(x / max(0.0, count - correction), wide)

    variance = pointwise([(square_sums, accumulator)], shape_of(square_sums), wide, divide)
    return average, variance, wide


def _mean_from_first(
    value: ir.Value, dtype: TensorDType, axes: Sequence[int], count: float, wide: TensorDType, accumulator: TensorDType
) -> ir.Value:
    """Returns the mean over `axes`, of type `wide`: the first element plus the mean of the differences from it."""
    shape = shape_of(value)
    unit_shape = [1 if axis in axes else size for axis, size in enumerate(shape)]
    first = slice_of(value, [0] * len(shape), unit_shape, [1] * len(shape), unit_shape, dtype)

    def difference(x: Scalar, start: Scalar, accumulated: Scalar) -> Scalar:
        return accumulated + (cast(x, accumulator) - cast(start, accumulator))

    sums = reduce([(value, dtype), (first, dtype)], shape, axes, 0, accumulator, difference, keep=True)
    parts = [(first, dtype), (sums, accumulator)]
    return pointwise(parts, unit_shape, wide, lambda start, x: cast(cast(start, accumulator) + x / count, wide))


@lowering("VarMeanOp", "VarOp")
def var_mean(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the variance, and the mean if the node has a second result."""
    value, dtype = _operand(node, symbol_table)
    axes = axes_of(argument(node, 1, "dim"), len(shape_of(value)))
    correction = node.kwargs.get("correction")
    correction = 1 if correction is None else correction
    average, variance, wide = moments(value, dtype, axes, correction, from_first=len(node.metas) == 1)
    results = []
    for statistic, meta in zip((variance, average), node.metas, strict=False):
        assert meta is not None
        results.append(cast_tensor(reshape(statistic, meta.shape, wide), wide, meta.dtype))
    return results


def softmax(value: ir.Value, dtype: TensorDType, axis: int, result: TensorDType, scale: float = 1.0) -> ir.Value:
    """Returns `softmax(scale * value)` along `axis`. Subtracts the maximum before the exponential to avoid overflow.

    Multiplies by the reciprocal of the sum: this takes one division per row, but one more rounding than in eager.
    """
    wide = accumulator_type(dtype)
    shape = shape_of(value)
    maxima = extreme(value, dtype, [axis], keep=True, largest=scale >= 0)

    def shifted_exp(x: Scalar, m: Scalar) -> Scalar:
        difference = cast(x, wide) - cast(m, wide)
        return s.exp(difference if scale == 1.0 else difference * scale)

    exponentials = pointwise([(value, dtype), (maxima, dtype)], shape, wide, shifted_exp)
    sums = sum_over(exponentials, wide, [axis], wide, keep=True)
    inverse = pointwise([(sums, wide)], shape_of(sums), wide, lambda x: 1.0 / x)
    return pointwise([(exponentials, wide), (inverse, wide)], shape, result, lambda x, i: cast(x * i, result))


@lowering("SoftmaxOp")
def softmax_op(node: Op, symbol_table: SymbolTable) -> ir.Value:
    value, dtype = _operand(node, symbol_table)
    shape, result = shape_of(value), node.tensor_meta.dtype
    if not shape:
        return pointwise([(value, dtype)], shape, result, lambda x: cast(x - x + 1.0, result))
    return softmax(value, dtype, normalize_dim(node.args[1], len(shape)), result)


def _shifted_exp_sum(
    value: ir.Value, dtype: TensorDType, axis: int, scale: float = 1.0
) -> tuple[ir.Value, ir.Value, TensorDType]:
    """Returns the maximum along `axis`, `sum(exp(scale * (value - maximum)))` along `axis`, and the type of the sums.

    `axis` remains as a unit dim.
    """
    wide = accumulator_type(dtype)
    maxima = extreme(value, dtype, [axis], keep=True, largest=scale >= 0)

    def body(x: Scalar, m: Scalar, accumulated: Scalar) -> Scalar:
        return accumulated + s.exp((cast(x, wide) - cast(m, wide)) * scale)

    return maxima, reduce([(value, dtype), (maxima, dtype)], shape_of(value), [axis], 0, wide, body, keep=True), wide


def log_sum_exp(value: ir.Value, dtype: TensorDType, axis: int, scale: float = 1.0) -> tuple[ir.Value, TensorDType]:
    """Returns `log(sum(exp(scale * value)))` along `axis`, which remains as a unit dim, and its type."""
    maxima, sums, wide = _shifted_exp_sum(value, dtype, axis, scale)
    operands = [(sums, wide), (maxima, dtype)]
    return pointwise(operands, shape_of(sums), wide, lambda x, m: s.log(x) + cast(m, wide) * scale), wide


@lowering("LogSoftmaxOp")
def log_softmax(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Computes `(x - maximum) - log(sum)`: in `x - (maximum + log(sum))`, a large maximum would round the logarithm."""
    value, dtype = _operand(node, symbol_table)
    shape, result = shape_of(value), node.tensor_meta.dtype
    if not shape:
        return pointwise([(value, dtype)], shape, result, lambda x: cast(x - x, result))
    maxima, sums, wide = _shifted_exp_sum(value, dtype, normalize_dim(node.args[1], len(shape)))
    logarithms = pointwise([(sums, wide)], shape_of(sums), wide, s.log)
    operands = [(value, dtype), (maxima, dtype), (logarithms, wide)]
    return pointwise(operands, shape, result, lambda x, m, t: cast(cast(x, wide) - cast(m, wide) - t, result))


@lowering("NativeLayerNormOp")
def native_layer_norm(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the normalised tensor, and mean and reciprocal deviation of each row, if they are results of the node.

    The arguments are x, normalized_shape, weight, bias, eps; weight and bias may be `None`.
    """
    value, dtype = _operand(node, symbol_table)
    shape, normalized_rank = shape_of(value), len(node.args[1])
    epsilon = node.args[4]
    average, variance, wide = moments(value, dtype, list(range(len(shape) - normalized_rank, len(shape))), 0)
    inverse = pointwise([(variance, wide)], shape_of(variance), wide, lambda v: 1.0 / s.sqrt(v + epsilon))
    operands = [(value, dtype), (average, wide), (inverse, wide)]
    operands += [(value_of(arg, symbol_table), arg.tensor_meta.dtype) for arg in node.args[2:4] if arg is not None]
    has_weight = node.args[2] is not None

    def body(x: Scalar, mean: Scalar, inverse_deviation: Scalar, *weight_and_bias: Scalar) -> Scalar:
        y = (cast(x, wide) - mean) * inverse_deviation
        factors = [cast(p, wide) for p in weight_and_bias]
        if has_weight:
            y = y * factors.pop(0)
        return cast(y + factors[0] if factors else y, dtype)

    results = [pointwise(operands, shape, dtype, body)]
    for statistic, meta in zip((average, inverse), node.metas[1:], strict=True):
        if meta is not None:
            statistic = cast_tensor(reshape(statistic, meta.shape, wide), wide, meta.dtype)
        results.append(statistic)
    return results


@lowering("BatchNormOp")
def batch_norm(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Computes `x * scale + shift` per channel from the running statistics.

    The other results, statistics for training, are empty. As in PyTorch, scale and shift are computed first: each
    channel then takes one square root and one division. The arguments are x, weight, bias, running_mean, running_var,
    momentum, eps; weight and bias may be `None`.
    """
    (value, dtype), meta = _operand(node, symbol_table), node.tensor_meta
    weight, bias, average, variance = node.args[1:5]
    epsilon, channel_shape = node.args[6], [meta.shape[1], *[1] * (len(meta.shape) - 2)]
    wide = accumulator_type(dtype)

    def per_channel(nodes: Sequence[Op | None], values: Sequence[ir.Value], body: Callable[..., Scalar]) -> ir.Value:
        """Returns `body` of the elements of `nodes`, except those that are `None`, and of `values`."""
        inputs = [(value_of(op, symbol_table), op.tensor_meta.dtype) for op in nodes if op is not None]
        operands = [(reshape(value, channel_shape, type_), type_) for value, type_ in inputs]
        operands += [(value, wide) for value in values]
        return pointwise(operands, channel_shape, wide, lambda *scalars: body(*(cast(x, wide) for x in scalars)))

    def scale_of(variance: Scalar, *weight: Scalar) -> Scalar:
        inverse = 1.0 / s.sqrt(variance + epsilon)
        return inverse * weight[0] if weight else inverse

    def shift_of(mean: Scalar, *bias_and_scale: Scalar) -> Scalar:
        *bias, scale = bias_and_scale
        return bias[0] - mean * scale if bias else -(mean * scale)

    scale = per_channel([variance, weight], [], scale_of)
    shift = per_channel([average, bias], [scale], shift_of)
    operands = [(value, dtype), (scale, wide), (shift, wide)]
    result = pointwise(operands, meta.shape, meta.dtype, lambda x, a, b: cast(cast(x, wide) * a + b, meta.dtype))
    return [result, *(empty(meta.shape, meta.dtype) for meta in node.metas[1:] if meta is not None)]


def extreme_with_position(value: ir.Value, dtype: TensorDType, axis: int, largest: bool) -> list[ir.Value]:
    """Returns the maximum (if `largest`) or minimum along `axis`, and its position (i64).

    Among equal elements, and among NaNs, the position is that of the first one.
    """
    shape = shape_of(value)
    size = shape[axis]
    if axis == len(shape) - 1 and isinstance(size, int) and 1 < size <= s.limits(TensorDType.Int32)[1]:
        # Two reductions, each of which compiles to vector instructions; the loop below, with two results, does not.
        extremes = extreme(value, dtype, [axis], keep=True, largest=largest)
        return [reshape(extremes, shape[:-1], dtype), _first_positions(value, extremes, dtype)]
    out_dims = [i for i in range(len(shape)) if i != axis]
    low, high = s.limits(dtype)
    sizes = [shape[i] for i in out_dims]
    outs = [filled(low if largest else high, sizes, dtype), filled(0, sizes, TensorDType.Int64)]

    def body(*elements: ir.Value) -> list[ir.Value]:
        x, best, best_position = map(Scalar, elements, (dtype, dtype, TensorDType.Int64))
        replaces = x > best if largest else x < best
        if dtype.is_float:
            replaces = replaces | (x.compare("ne", x) & best.compare("eq", best))
        position = index_to_scalar(loop_index(axis))
        return [s.select(replaces, x, best).value, s.select(replaces, position, best_position).value]

    iterators = [REDUCTION if i == axis else PARALLEL for i in range(len(shape))]
    return generic([value], [list(range(len(shape)))], outs, [out_dims, out_dims], iterators, body)


def _first_positions(value: ir.Value, extremes: ir.Value, dtype: TensorDType) -> ir.Value:
    """Returns the first position (i64) along the last dim of an element that equals the extreme, or of a NaN.

    `extremes` has 1 as its last size. The first position is computed as a minimum, which compiles to vector
    instructions.
    """
    shape, index_type = shape_of(value), TensorDType.Int32
    axis, last = len(shape) - 1, s.limits(TensorDType.Int32)[1]

    def body(x: Scalar, best: Scalar, first: Scalar) -> Scalar:
        is_found = x.compare("eq", best)
        if dtype.is_float:
            is_found = is_found | x.compare("ne", x)
        position = Scalar(index_to_integer(loop_index(axis), index_type), index_type)
        return s.minimum(first, s.select(is_found, position, last))

    positions = reduce([(value, dtype), (extremes, dtype)], shape, [axis], last, index_type, body)
    return cast_tensor(positions, index_type, TensorDType.Int64)


def _extreme_of_node(node: Op, symbol_table: SymbolTable, largest: bool) -> list[ir.Value]:
    """Returns extreme and position along the node's dim; without a dim, the row-major position among all elements."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    shape, dim = shape_of(value), argument(node, 1, "dim")
    if dim is None or not shape:
        return extreme_with_position(reshape(value, [product(shape)], dtype), dtype, 0, largest)
    return extreme_with_position(value, dtype, normalize_dim(dim, len(shape)), largest)


def _register_extreme(largest: bool, name_with_value: str, name_of_position: str) -> None:
    """Registers lowerings of an op that returns extreme and position, and of one that returns only the position."""

    @lowering(name_with_value)
    def lower(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
        pairs = zip(_extreme_of_node(node, symbol_table, largest), node.metas, strict=True)
        return [reshape(value, meta.shape, meta.dtype) for value, meta in pairs if meta is not None]

    @lowering(name_of_position)
    def lower_position(node: Op, symbol_table: SymbolTable) -> ir.Value:
        return reshape(_extreme_of_node(node, symbol_table, largest)[1], node.tensor_meta.shape, TensorDType.Int64)


_register_extreme(largest=True, name_with_value="MaxDimOp", name_of_position="ArgmaxOp")
_register_extreme(largest=False, name_with_value="MinDimOp", name_of_position="ArgminOp")
