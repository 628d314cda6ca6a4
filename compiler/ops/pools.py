"""Lowers pools over sliding windows, adaptive pools, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.convolutions import SlidingWindow, insert_spaced, pad_for_window, pool_window, spatial_dims
from buddy.compiler.ops.data_movement import (
    INDEX_TYPE,
    divide_position,
    fold_positions,
    loop_indices,
    position_scalar,
    read_element,
)
from buddy.compiler.ops.indexing import clamp_index
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import Registry, SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def _fold_windows(
    value: ir.Value,
    window: SlidingWindow,
    shape: Sequence[int],
    fill: float,
    dtypes: tuple[TensorDType, TensorDType],
    fold: Callable[[Scalar, Scalar], Scalar],
) -> ir.Value:
    """Reduces each window over the last dims of `value` by `fold(accumulated, element)`; returns a tensor of `shape`.

    `dtypes` are the element types of `value` and of the result. `fill` is the initial value, and that of the padding.
    """
    padded = pad_for_window(value, window, shape[-len(window.size) :], fill, dtypes[0])
    return _fold_padded_windows(padded, window, shape, fill, dtypes, fold)


def _fold_padded_windows(
    padded: ir.Value,
    window: SlidingWindow,
    shape: Sequence[int],
    fill: float,
    dtypes: tuple[TensorDType, TensorDType],
    fold: Callable[[Scalar, Scalar], Scalar],
) -> ir.Value:
    """Reduces each window over the last dims of `padded`, as `_fold_windows` does."""
    rank, spatial, (dtype, wide) = len(shape), len(window.size), dtypes
    reads: list[st.DimIndex] = [*range(rank - spatial), *window.dims(rank - spatial, rank)]
    # This operand is never read: its shape sets the trip counts of the loops in the window.
    window_shape = st.empty(window.size, dtype)
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * spatial

    def body(x: ir.Value, _unused: ir.Value, total: ir.Value) -> list[ir.Value]:
        return [fold(Scalar(total, wide), cast(Scalar(x, dtype), wide)).value]

    dims: list[list[st.DimIndex]] = [reads, [*range(rank, rank + spatial)]]
    out = st.filled(fill, shape, wide)
    return st.generic([padded, window_shape], dims, [out], [list(range(rank))], iterators, body)[0]


# Maps (spatial dim, index of the window, index in the window) to a position in the input, and to whether this position
# is in the window and in the input.
WindowPosition = Callable[[int, Scalar, Scalar], tuple[Scalar, Scalar]]


# ---- maxima ----------------------------------------------------------------------------------------------------------


@lowering("MaxPool2dWithIndicesOp", "MaxPool3dWithIndicesOp", "MaxPool2dOp")
def max_pool(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the maxima, and their flat indices, which are a result of some of the ops only."""
    return _max_pool(value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node))


def _max_pool(value: ir.Value, meta: TensorMeta, window: SlidingWindow) -> list[ir.Value]:
    """Returns the maximum of each window, and its flat index over the spatial dims, as `_max_in_windows` does."""
    lowest, spatial = s.limits(meta.dtype)[0], len(window.size)
    padded = pad_for_window(value, window, meta.shape[-spatial:], lowest, meta.dtype)
    values = _fold_padded_windows(padded, window, meta.shape, lowest, (meta.dtype, meta.dtype), s.maximum)
    sizes = st.shape_of(value)[-spatial:]
    if sum(_coordinate_bits(window)) < _TAP_BITS:
        taps = _taps_of_maxima(padded, values, meta, window)
        return [values, _indices_of_taps(taps, meta.shape, window, sizes)]

    def window_position(axis: int, outer: Scalar, inner: Scalar) -> tuple[Scalar, Scalar]:
        position = outer * window.stride[axis] + inner * window.dilation[axis] - window.padding[axis]
        return position, (position >= 0) & (position < sizes[axis])

    return [values, _max_in_windows(value, meta.shape, window.size, meta.dtype, window_position)[1]]


# A tap is an element of a window. Its number has the coordinates in the window, each in its own bits, so that the order
# of numbers is the row-major order of taps.
_TAP_TYPE, _TAP_BITS = TensorDType.Int32, 32


def _coordinate_bits(window: SlidingWindow) -> list[int]:
    """Returns the bits that each coordinate in the window takes."""
    return [(size - 1).bit_length() for size in window.size]


def _taps_of_maxima(padded: ir.Value, maxima: ir.Value, meta: TensorMeta, window: SlidingWindow) -> ir.Value:
    """Returns for each window the first tap whose element equals the maximum, or `-1 - tap` of the last NaN.

    Computes the minimum of tap numbers, which compiles to vector instructions. The result may be a tap of the padding
    if all elements are the lowest number.
    """
    rank, spatial, dtype = len(meta.shape), len(window.size), meta.dtype
    last = s.limits(_TAP_TYPE)[1]

    def body(*elements: ir.Value) -> list[ir.Value]:
        x, tap, maximum, best = map(Scalar, elements, (dtype, _TAP_TYPE, dtype, _TAP_TYPE))
        candidate = s.select(x.compare("eq", maximum), tap, last)
        if dtype.is_float:
            candidate = s.select(x.compare("ne", x), -1 - tap, candidate)
        return [s.minimum(best, candidate).value]

    all_loops: list[st.DimIndex] = [*range(rank)]
    inner: list[st.DimIndex] = [*range(rank, rank + spatial)]
    dims = [[*range(rank - spatial), *window.dims(rank - spatial, rank)], inner, all_loops]
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * spatial
    out = st.filled(last, meta.shape, _TAP_TYPE)
    return st.generic([padded, _all_taps(window), maxima], dims, [out], [all_loops], iterators, body)[0]


def _all_taps(window: SlidingWindow) -> ir.Value:
    """Returns the taps of a window, as a constant tensor of its sizes."""
    bits = _coordinate_bits(window)
    taps = []
    for coordinates in product(*map(range, window.size)):
        tap = 0
        for coordinate, width in zip(coordinates, bits, strict=True):
            tap = tap << width | coordinate
        taps.append(tap)
    element = ir.IntegerType.get_signless(_TAP_BITS)
    type_ = ir.RankedTensorType.get(window.size, element)
    return arith.constant(type_, ir.DenseElementsAttr.get([ir.IntegerAttr.get(element, tap) for tap in taps], type_))


def _indices_of_taps(taps: ir.Value, shape: Sequence[Dim], window: SlidingWindow, sizes: Sequence[Dim]) -> ir.Value:
    """Returns the flat index of the element of each tap over the spatial dims, whose sizes are `sizes`."""
    rank, bits, axes = len(shape), _coordinate_bits(window), range(len(window.size))

    def body(tap: ir.Value, _out: ir.Value) -> list[ir.Value]:
        signed = cast(Scalar(tap, _TAP_TYPE), INDEX_TYPE)
        rest = s.select(signed < 0, -1 - signed, signed)
        positions = list[Scalar]()
        for axis, outer in reversed(list(zip(axes, loop_indices(rank - len(axes), len(axes)), strict=True))):
            coordinate = rest & ((1 << bits[axis]) - 1)
            rest = Scalar(arith.shrui(rest.value, rest.like(bits[axis]).value), INDEX_TYPE)
            position = outer * window.stride[axis] - window.padding[axis] + coordinate * window.dilation[axis]
            # A tap in the padding stands for the first one that is not.
            if window.padding[axis]:
                position = s.maximum(position, _first_inside(outer, window, axis))
            positions.append(position)
        return [_flat_index(positions[::-1], sizes).value]

    all_loops: list[st.DimIndex] = [*range(rank)]
    out = st.empty(shape, INDEX_TYPE)
    return st.generic([taps], [all_loops], [out], [all_loops], [st.PARALLEL] * rank, body)[0]


def _first_inside(outer: Scalar, window: SlidingWindow, axis: int) -> Scalar:
    """Returns the first position of window `outer` along `axis` that is not in the padding."""
    start, gap = outer * window.stride[axis] - window.padding[axis], window.dilation[axis]
    if gap == 1:
        return s.maximum(start, 0)
    distance = s.maximum(0 - start, 0) + (gap - 1)
    return start + divide_position(distance, gap) * gap


def _max_in_windows(
    value: ir.Value,
    shape: Sequence[int],
    window_sizes: Sequence[int],
    dtype: TensorDType,
    window_position: WindowPosition,
) -> list[ir.Value]:
    """Returns the maximum of each window, and its flat index over the spatial dims.

    Among equal elements, the first one counts; among NaNs, the last one.
    """
    spatial, lowest = len(window_sizes), s.limits(dtype)[0]
    sizes = st.shape_of(value)[-spatial:]

    def body(outer: Sequence[Scalar], inner: Sequence[Scalar], best: Sequence[Scalar]) -> list[Scalar]:
        leading = outer[:-spatial]
        positions = [window_position(i, outer[len(outer) - spatial + i], inner[i]) for i in range(spatial)]
        old, old_index = best
        # A position outside of the input reads the nearest element, which is then ignored.
        nearest = [s.minimum(s.maximum(p, 0), size - 1) for (p, _), size in zip(positions, sizes, strict=True)]
        new, new_index = read_element(value, dtype, [*leading, *nearest]), _flat_index(nearest, sizes)
        replaces = (new > old) | (old_index < 0)
        if dtype.is_float:
            replaces = replaces | new.compare("ne", new)
        for _, is_inside in positions:
            replaces = replaces & is_inside
        return [s.select(replaces, new, old), s.select(replaces, new_index, old_index)]

    return fold_positions(shape, window_sizes, [(lowest, dtype), (-1, INDEX_TYPE)], body)


def _flat_index(position: Sequence[Scalar], sizes: Sequence[Dim]) -> Scalar:
    """Returns the row-major index of a position in a tensor with these sizes."""
    flat = position_scalar(0)
    for index, size in zip(position, sizes, strict=True):
        flat = flat * size + index
    return flat


@lowering("AdaptiveMaxPool2dOp", "AdaptiveMaxPool3dOp")
def adaptive_max_pool(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the maxima of adaptive windows, and their flat indices; uses sliding windows if all have one size."""
    value, meta, spatial = value_of(node.args[0], symbol_table), node.tensor_meta, spatial_dims(node)
    sizes, counts = st.shape_of(value)[-spatial:], meta.shape[-spatial:]
    if 0 in counts:
        return [st.empty(meta.shape, meta.dtype), st.empty(meta.shape, INDEX_TYPE)]
    if (window := _uniform_window(sizes, counts)) is not None:
        return _max_pool(value, meta, window)
    window_sizes = [_longest_window(size, count) for size, count in zip(sizes, counts, strict=True)]

    def window_position(axis: int, outer: Scalar, inner: Scalar) -> tuple[Scalar, Scalar]:
        start, end = _window_range(outer, sizes[axis], counts[axis])
        return start + inner, start + inner < end

    return _max_in_windows(value, meta.shape, window_sizes, meta.dtype, window_position)


@lowering("MaxPoolBackwardOp")
def max_pool_backward(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Adds each gradient to that of the maximum of its window, sequentially, because windows may overlap."""
    gradient = value_of(node.args[0], symbol_table)
    indices = value_of(argument(node, len(node.args) - 1, "indices"), symbol_table)
    meta, spatial = node.tensor_meta, spatial_dims(node)
    planes = prod(meta.shape[:-spatial])
    counts = [planes, prod(st.shape_of(gradient)[-spatial:])]
    flat_indices, flat_shape = st.reshape(indices, counts, INDEX_TYPE), [planes, prod(meta.shape[-spatial:])]

    def maximum_of(position: Sequence[ir.Value]) -> list[tuple[list[Scalar], None]]:
        index = loops.element(flat_indices, position, INDEX_TYPE)
        return [([loops.index_to_scalar(clamp_index(index, flat_shape[1]))], None)]

    summed = loops.accumulate_taps(st.reshape(gradient, counts, meta.dtype), meta.dtype, flat_shape, 1, maximum_of)
    return st.reshape(summed, meta.shape, meta.dtype)


# ---- averages --------------------------------------------------------------------------------------------------------


@lowering("AvgPool2dOp", "AvgPool3dOp")
def avg_pool(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Divides the sum over each window by its number of elements; `count_include_pad` includes the padding."""
    value, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node)
    wide = accumulator_type(meta.dtype)
    summed = _fold_windows(value, window, meta.shape, 0, (meta.dtype, wide), lambda a, b: a + b)
    return _divide_by_count(summed, wide, _divisor(node, 4, window, st.shape_of(value)), meta.dtype)


@lowering("AvgPoolBackwardOp")
def avg_pool_backward(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Divides each gradient by the window's divisor, spaces the quotients by `stride`, and sums them over windows."""
    gradient, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node, 2)
    spatial, leading, wide = len(window.size), meta.shape[: -len(window.size)], accumulator_type(meta.dtype)
    quotients = _divide_by_count(gradient, meta.dtype, _divisor(node, 5, window, meta.shape), wide)
    spatial_offsets = [size - 1 - before for size, before in zip(window.size, window.padding, strict=True)]
    padded_sizes = [size + count - 1 for size, count in zip(window.size, meta.shape[-spatial:], strict=True)]
    offsets, steps = [0] * len(leading) + spatial_offsets, [1] * len(leading) + list(window.stride)
    spaced = insert_spaced(quotients, offsets, steps, [*leading, *padded_sizes], 0, wide)
    dense = SlidingWindow(window.size, (1,) * spatial, (0,) * spatial, (1,) * spatial)
    return cast_tensor(_fold_windows(spaced, dense, meta.shape, 0, (wide, wide), lambda a, b: a + b), wide, meta.dtype)


# Maps the indices of an element of the result, one per dim, to the number of elements of its window.
Count = Callable[..., "Scalar | int"]


def _divisor(node: Op, first: int, window: SlidingWindow, shape: Sequence[Dim]) -> Count | int:
    """Returns the divisor of the sums: a number, or a function of the position if the divisor depends on it.

    The arguments from `first` on are `ceil_mode`, `count_include_pad` and `divisor_override`.
    """
    ceil_mode, divisor = argument(node, first, "ceil_mode", False), argument(node, first + 2, "divisor_override")
    counts_padding = argument(node, first + 1, "count_include_pad", True)
    spatial, counts_whole_windows = len(window.size), counts_padding or not any(window.padding)
    if divisor is not None or (counts_whole_windows and not ceil_mode):
        return divisor or prod(window.size)
    sizes = shape[-spatial:]

    def count(*position: Scalar) -> Scalar:
        elements = position_scalar(1)
        for axis, index in enumerate(position[-spatial:]):
            pad = window.padding[axis]
            start = index * window.stride[axis] - pad
            end = s.minimum(start + window.size[axis], sizes[axis] + pad)
            without_padding = s.minimum(end, sizes[axis]) - s.maximum(start, 0)
            elements = elements * (end - start if counts_padding else without_padding)
        return elements

    return count


def _divide_by_count(summed: ir.Value, wide: TensorDType, count: Count | int, dtype: TensorDType) -> ir.Value:
    """Divides `summed`, of element type `wide`, by `count` at each position; integers are rounded towards 0."""

    def body(total: ir.Value, _out: ir.Value) -> list[ir.Value]:
        divisor = count if isinstance(count, int) else count(*loop_indices(0, rank))
        return [cast(_quotient(Scalar(total, wide), divisor), dtype).value]

    shape, rank = st.shape_of(summed), len(st.shape_of(summed))
    all_loops: list[st.DimIndex] = [*range(rank)]
    return st.generic([summed], [all_loops], [st.empty(shape, dtype)], [all_loops], [st.PARALLEL] * rank, body)[0]


def _quotient(total: Scalar, divisor: Scalar | int) -> Scalar:
    if total.dtype.is_float:
        return total / divisor
    return Scalar(arith.divsi(total.value, total.like(divisor).value), total.dtype)


# ---- adaptive windows ------------------------------------------------------------------------------------------------


def _window_range(index: Scalar, size: int, count: int) -> tuple[Scalar, Scalar]:
    """Returns start and end of adaptive window `index` of `count` in a dim of `size`, as in ATen's `start_index`."""
    start = divide_position(index * size, count)
    return start, divide_position((index + 1) * size + (count - 1), count)


def _longest_window(size: int, count: int) -> int:
    """Returns the size of the largest of `count` adaptive windows of a dim of `size`."""
    if size % count == 0:
        return size // count
    return max(-(-(i + 1) * size // count) - i * size // count for i in range(count))


def _uniform_window(sizes: Sequence[int], counts: Sequence[int]) -> SlidingWindow | None:
    """Returns the sliding window that is equal to adaptive ones, or `None` if these have several sizes."""
    if any(size % count for size, count in zip(sizes, counts, strict=True)):
        return None
    size = tuple(size // count for size, count in zip(sizes, counts, strict=True))
    return SlidingWindow(size, size, (0,) * len(size), (1,) * len(size))


@lowering("AdaptiveAvgPool2dOp", "AdaptiveAvgPool3dOp")
def adaptive_avg_pool(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Averages adaptive windows; uses sliding windows of one size if the output's sizes divide the input's."""
    value, meta, spatial = value_of(node.args[0], symbol_table), node.tensor_meta, spatial_dims(node)
    sizes, counts = st.shape_of(value)[-spatial:], meta.shape[-spatial:]
    wide = accumulator_type(meta.dtype)
    if 0 in counts:
        return st.empty(meta.shape, meta.dtype)
    if (window := _uniform_window(sizes, counts)) is None:
        summed = _sum_windows(value, meta.shape, spatial, (meta.dtype, wide))
        return _divide_by_count(summed, wide, _window_sizes(sizes, counts), meta.dtype)
    summed = _fold_windows(value, window, meta.shape, 0, (meta.dtype, wide), lambda a, b: a + b)
    return _divide_by_count(summed, wide, prod(window.size), meta.dtype)


@lowering("AdaptiveAvgPoolBackwardOp")
def adaptive_avg_pool_backward(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Sums the gradients of the windows that contain an element: adaptive windows with input and output exchanged."""
    gradient, meta, spatial = value_of(node.args[0], symbol_table), node.tensor_meta, spatial_dims(node)
    wide, sizes = accumulator_type(meta.dtype), meta.shape[-spatial:]
    counts = _window_sizes(sizes, st.shape_of(gradient)[-spatial:])
    quotients = _divide_by_count(gradient, meta.dtype, counts, wide)
    return cast_tensor(_sum_windows(quotients, meta.shape, spatial, (wide, wide)), wide, meta.dtype)


def _window_sizes(sizes: Sequence[int], counts: Sequence[int]) -> Count:
    """Returns a function from a position to the number of elements of its window."""

    def count(*position: Scalar) -> Scalar:
        elements = position_scalar(1)
        for index, size, windows in zip(position[-len(sizes) :], sizes, counts, strict=True):
            start, end = _window_range(index, size, windows)
            elements = elements * (end - start)
        return elements

    return count


def _sum_windows(
    value: ir.Value, shape: Sequence[int], spatial: int, dtypes: tuple[TensorDType, TensorDType]
) -> ir.Value:
    """Returns the sums over adaptive windows of the last dims of `value`."""
    sizes, counts, (dtype, wide) = st.shape_of(value)[-spatial:], shape[-spatial:], dtypes
    window_sizes = [_longest_window(size, count) for size, count in zip(sizes, counts, strict=True)]

    def body(outer: Sequence[Scalar], inner: Sequence[Scalar], total: Sequence[Scalar]) -> list[Scalar]:
        dims = zip(outer[-spatial:], sizes, counts, strict=True)
        ranges = [_window_range(index, size, count) for index, size, count in dims]
        positions = [start + offset for (start, _), offset in zip(ranges, inner, strict=True)]
        nearest = [s.minimum(p, end - 1) for p, (_, end) in zip(positions, ranges, strict=True)]
        element = cast(read_element(value, dtype, [*outer[:-spatial], *nearest]), wide)
        for p, (_, end) in zip(positions, ranges, strict=True):
            element = s.select(p < end, element, element.like(0))
        return [total[0] + element]

    return fold_positions(shape, window_sizes, [(0, wide)], body)[0]
