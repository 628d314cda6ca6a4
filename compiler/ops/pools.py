"""Pools over sliding windows, adaptive pools, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import within
from buddy.compiler.ops.moves import INDEX, folded, read, whole
from buddy.compiler.ops.moves import loop_indices as positions
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import accumulate_taps, accumulator_type, cast_tensor
from buddy.compiler.ops.utils import SymbolTable, argument, value_of
from buddy.compiler.ops.windows import SlidingWindow, padded, placed, pool_window, spatial_dims

ops_registry = Registry()
lowering = ops_registry.lowering


def _fold_windows(
    value: Any,
    window: SlidingWindow,
    shape: Sequence[int],
    fill: float,
    dtypes: tuple[TensorDType, TensorDType],
    fold: Any,
) -> Any:
    """Folds windows over the last dims of `value` by `fold(accumulated, element)`; returns a tensor of `shape`.

    `dtypes` are the element types of `value` and of the result; `fill` is the initial value and the padding.
    """
    rank, spatial, (dtype, wide) = len(shape), len(window.size), dtypes
    value = padded(value, window, shape[-spatial:], fill, dtype)
    reads: list[st.Dim] = [*range(rank - spatial), *window.dims(rank - spatial, rank)]
    sizes = st.empty(window.size, dtype)
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * spatial

    def body(x: Any, _size: Any, total: Any) -> list[Any]:
        return [fold(Scalar(total, wide), cast(Scalar(x, dtype), wide)).value]

    # The second operand is never read: its shape sets the bounds of the window's loops.
    dims: list[list[st.Dim]] = [reads, [*range(rank, rank + spatial)]]
    out = st.filled(fill, shape, wide)
    return st.generic([value, sizes], dims, [out], [list(range(rank))], iterators, body)[0]


# Maps (dim, outer loop, inner loop) to a position along a spatial dim, and to whether the window contains it.
Place = Callable[[int, Scalar, Scalar], tuple[Scalar, Scalar]]


# ---- maxima ----------------------------------------------------------------------------------------------------------


@lowering("MaxPool2dWithIndicesOp", "MaxPool3dWithIndicesOp", "MaxPool2dOp")
def max_pool(node: Op, symbol_table: SymbolTable) -> list[Any]:
    value, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node)
    lowest = s.limits(meta.dtype)[0]
    values = _fold_windows(value, window, meta.shape, lowest, (meta.dtype, meta.dtype), s.maximum)

    def place(axis: int, outer: Scalar, inner: Scalar) -> tuple[Scalar, Scalar]:
        at = outer * window.stride[axis] + inner * window.dilation[axis] - window.padding[axis]
        return at, (at >= 0) & (at < sizes[axis])

    sizes = st.shape_of(value)[-len(window.size) :]
    return [values, _max_in_windows(value, meta.shape, window.size, meta.dtype, place)[1]]


def _max_in_windows(
    value: Any, shape: Sequence[int], box: Sequence[int], dtype: TensorDType, place: Place
) -> list[Any]:
    """Returns the maximum of each window and its index in the plane: the first of equal elements, or the last NaN."""
    spatial, lowest = len(box), s.limits(dtype)[0]
    sizes = st.shape_of(value)[-spatial:]

    def body(outer: Sequence[Scalar], inner: Sequence[Scalar], best: Sequence[Scalar]) -> list[Scalar]:
        lead, at = outer[:-spatial], [place(i, outer[len(outer) - spatial + i], inner[i]) for i in range(spatial)]
        old, where = best
        # Positions outside of the window read the nearest element, which is then ignored.
        near = [s.minimum(s.maximum(p, 0), size - 1) for (p, _), size in zip(at, sizes, strict=True)]
        new, here = read(value, dtype, [*lead, *near]), _flat_index(near, sizes)
        better = (new > old) | (where < 0)
        if dtype.is_float:
            better = better | new.compare("ne", new)
        for _, inside in at:
            better = better & inside
        return [s.select(better, new, old), s.select(better, here, where)]

    return folded(shape, box, [(lowest, dtype), (-1, INDEX)], body)


def _flat_index(position: Sequence[Scalar], sizes: Sequence[int]) -> Scalar:
    """Returns the row-major index of a position in a box."""
    flat = whole(0)
    for at, size in zip(position, sizes, strict=True):
        flat = flat * size + at
    return flat


@lowering("AdaptiveMaxPool2dOp", "AdaptiveMaxPool3dOp")
def adaptive_max_pool(node: Op, symbol_table: SymbolTable) -> list[Any]:
    value, meta, spatial = value_of(node.args[0], symbol_table), node.tensor_meta, spatial_dims(node)
    sizes, counts = st.shape_of(value)[-spatial:], meta.shape[-spatial:]
    if 0 in counts:
        return [st.empty(meta.shape, meta.dtype), st.empty(meta.shape, INDEX)]
    box = [_longest_window(size, count) for size, count in zip(sizes, counts, strict=True)]

    def place(axis: int, outer: Scalar, inner: Scalar) -> tuple[Scalar, Scalar]:
        start, end = _window_range(outer, sizes[axis], counts[axis])
        return start + inner, start + inner < end

    return _max_in_windows(value, meta.shape, box, meta.dtype, place)


@lowering("MaxPoolBackwardOp")
def max_pool_backward(node: Op, symbol_table: SymbolTable) -> Any:
    """Adds each gradient to the element that was the maximum of its window; sequentially, since windows may overlap."""
    gradient = value_of(node.args[0], symbol_table)
    indices = value_of(argument(node, len(node.args) - 1, "indices"), symbol_table)
    meta, spatial = node.tensor_meta, spatial_dims(node)
    planes = prod(meta.shape[:-spatial])
    counts = [planes, prod(st.shape_of(gradient)[-spatial:])]
    taken, flat = st.reshape(indices, counts, INDEX), [planes, prod(meta.shape[-spatial:])]

    def maximum_of(at: Sequence[Any]) -> list[tuple[list[Scalar], None]]:
        return [([loops.index_of(within(loops.element(taken, at, INDEX), flat[1]))], None)]

    summed = accumulate_taps(st.reshape(gradient, counts, meta.dtype), meta.dtype, flat, 1, maximum_of)
    return st.reshape(summed, meta.shape, meta.dtype)


# ---- averages --------------------------------------------------------------------------------------------------------


@lowering("AvgPool2dOp", "AvgPool3dOp")
def avg_pool(node: Op, symbol_table: SymbolTable) -> Any:
    """Divides the sum over each window by its number of elements; `count_include_pad` includes the padding."""
    value, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node)
    wide = accumulator_type(meta.dtype)
    summed = _fold_windows(value, window, meta.shape, 0, (meta.dtype, wide), lambda a, b: a + b)
    return _divide_by_count(summed, wide, _divisor(node, 4, window, st.shape_of(value)), meta.dtype)


@lowering("AvgPoolBackwardOp")
def avg_pool_backward(node: Op, symbol_table: SymbolTable) -> Any:
    """Divides each gradient by its window's count, spaces the gradients `stride` apart and sums them over windows."""
    gradient, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node, 2)
    spatial, lead, wide = len(window.size), meta.shape[: -len(window.size)], accumulator_type(meta.dtype)
    shares = _divide_by_count(gradient, meta.dtype, _divisor(node, 5, window, meta.shape), wide)
    offsets = [size - 1 - before for size, before in zip(window.size, window.padding, strict=True)]
    sizes = [size + n - 1 for size, n in zip(window.size, meta.shape[-spatial:], strict=True)]
    none = [0] * len(lead)
    apart = placed(shares, [*none, *offsets], [*(1 for _ in lead), *window.stride], [*lead, *sizes], 0, wide)
    ones = SlidingWindow(window.size, (1,) * spatial, (0,) * spatial, (1,) * spatial)
    return cast_tensor(_fold_windows(apart, ones, meta.shape, 0, (wide, wide), lambda a, b: a + b), wide, meta.dtype)


Count = Callable[..., "Scalar | int"]


def _divisor(node: Op, first: int, window: SlidingWindow, shape: Sequence[int]) -> Count | int:
    """Returns the divisor of sums: a number, or a function of the position if it differs between positions.

    The arguments from `first` on are `ceil_mode`, `count_include_pad` and `divisor_override`.
    """
    divisor, whole_pads = (
        argument(node, first + 2, "divisor_override"),
        argument(node, first + 1, "count_include_pad", True),
    )
    spatial, everywhere = len(window.size), whole_pads or not any(window.padding)
    if divisor is not None or (everywhere and not argument(node, first, "ceil_mode", False)):
        return divisor or prod(window.size)
    sizes = shape[-spatial:]

    def count(*position: Scalar) -> Scalar:
        found = whole(1)
        for axis, at in enumerate(position[-spatial:]):
            pad = window.padding[axis]
            start = at * window.stride[axis] - pad
            end = s.minimum(start + window.size[axis], sizes[axis] + pad)
            inside = s.minimum(end, sizes[axis]) - s.maximum(start, 0)
            found = found * (end - start if whole_pads else inside)
        return found

    return count


def _divide_by_count(summed: Any, wide: TensorDType, count: Count | int, dtype: TensorDType) -> Any:
    """Divides `summed`, of element type `wide`, by `count` at each position; integers are rounded towards 0."""

    def body(total: Any, _out: Any) -> list[Any]:
        by = count if isinstance(count, int) else count(*positions(0, rank))
        return [cast(_quotient(Scalar(total, wide), by), dtype).value]

    shape, rank = st.shape_of(summed), len(st.shape_of(summed))
    every: list[st.Dim] = [*range(rank)]
    return st.generic([summed], [every], [st.empty(shape, dtype)], [every], [st.PARALLEL] * rank, body)[0]


def _quotient(total: Scalar, by: Scalar | int) -> Scalar:
    if total.dtype.is_float:
        return total / by
    return Scalar(arith.divsi(total.value, total.like(by).value), total.dtype)


# ---- adaptive windows ------------------------------------------------------------------------------------------------


def _window_range(number: Scalar, size: int, count: int) -> tuple[Scalar, Scalar]:
    """Returns start and end of adaptive window `number` of `count` in a dim of `size`, as in ATen's `start_index`."""
    start = _floor_div(number * size, count)
    return start, _floor_div((number + 1) * size + (count - 1), count)


def _floor_div(value: Scalar, by: int) -> Scalar:
    """Divides a non-negative number, rounding down."""
    return Scalar(arith.divui(value.value, value.like(by).value), INDEX)


def _longest_window(size: int, count: int) -> int:
    """Returns the size of the largest of `count` adaptive windows of a dim of `size`."""
    if size % count == 0:
        return size // count
    return max(-(-(i + 1) * size // count) - i * size // count for i in range(count))


@lowering("AdaptiveAvgPool2dOp", "AdaptiveAvgPool3dOp")
def adaptive_avg_pool(node: Op, symbol_table: SymbolTable) -> Any:
    """Uses sliding windows of one size if the output's size divides the input's."""
    value, meta, spatial = value_of(node.args[0], symbol_table), node.tensor_meta, spatial_dims(node)
    sizes, counts = st.shape_of(value)[-spatial:], meta.shape[-spatial:]
    wide = accumulator_type(meta.dtype)
    if 0 in counts:
        return st.empty(meta.shape, meta.dtype)
    if any(size % count for size, count in zip(sizes, counts, strict=True)):
        summed = _sum_windows(value, meta.shape, spatial, (meta.dtype, wide))
        return _divide_by_count(summed, wide, _window_sizes(sizes, counts), meta.dtype)
    size = tuple(full // count for full, count in zip(sizes, counts, strict=True))
    window = SlidingWindow(size, size, (0,) * spatial, (1,) * spatial)
    summed = _fold_windows(value, window, meta.shape, 0, (meta.dtype, wide), lambda a, b: a + b)
    return _divide_by_count(summed, wide, prod(size), meta.dtype)


@lowering("AdaptiveAvgPoolBackwardOp")
def adaptive_avg_pool_backward(node: Op, symbol_table: SymbolTable) -> Any:
    """Sums over the windows that contain an element: adaptive windows with input and output exchanged."""
    gradient, meta, spatial = value_of(node.args[0], symbol_table), node.tensor_meta, spatial_dims(node)
    wide, sizes = accumulator_type(meta.dtype), meta.shape[-spatial:]
    shares = _divide_by_count(gradient, meta.dtype, _window_sizes(sizes, st.shape_of(gradient)[-spatial:]), wide)
    return cast_tensor(_sum_windows(shares, meta.shape, spatial, (wide, wide)), wide, meta.dtype)


def _window_sizes(sizes: Sequence[int], counts: Sequence[int]) -> Count:
    """Returns a function from a position to the number of elements of its window."""

    def count(*position: Scalar) -> Scalar:
        found = whole(1)
        for at, size, total in zip(position[-len(sizes) :], sizes, counts, strict=True):
            start, end = _window_range(at, size, total)
            found = found * (end - start)
        return found

    return count


def _sum_windows(value: Any, shape: Sequence[int], spatial: int, dtypes: tuple[TensorDType, TensorDType]) -> Any:
    """Returns the sums over adaptive windows of the last dims of `value`."""
    sizes, counts, (dtype, wide) = st.shape_of(value)[-spatial:], shape[-spatial:], dtypes
    box = [_longest_window(size, count) for size, count in zip(sizes, counts, strict=True)]

    def body(outer: Sequence[Scalar], inner: Sequence[Scalar], total: Sequence[Scalar]) -> list[Scalar]:
        shares = [_window_range(at, *pair) for at, *pair in zip(outer[-spatial:], sizes, counts, strict=True)]
        at = [start + step for (start, _), step in zip(shares, inner, strict=True)]
        near = [s.minimum(p, end - 1) for p, (_, end) in zip(at, shares, strict=True)]
        element = cast(read(value, dtype, [*outer[:-spatial], *near]), wide)
        for p, (_, end) in zip(at, shares, strict=True):
            element = s.select(p < end, element, element.like(0))
        return [total[0] + element]

    return folded(shape, box, [(0, wide)], body)[0]
