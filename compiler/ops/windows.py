"""Sliding windows: convolutions and pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.bindings import arith, tensor
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


@dataclass(frozen=True)
class Sliding:
    """A window over the last dims: its size, and per dim stride, padding on both sides, and dilation."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def dims(self, first_outer: int, first_inner: int) -> list[st.Dim]:
        """What the window reads when its outer and its inner loops start at these dims."""
        pairs = zip(self.stride, self.dilation, strict=True)
        return [st.Window(first_outer + i, step, first_inner + i, gap) for i, (step, gap) in enumerate(pairs)]

    def with_unit_dim(self) -> Sliding:
        """The same window on an input with a dim of size 1 in front of its others."""
        return Sliding((1, *self.size), (1, *self.stride), (0, *self.padding), (1, *self.dilation))

    def without_padding(self) -> Sliding:
        return dataclasses.replace(self, padding=(0,) * len(self.size))

    def reach(self, outputs: Sequence[int]) -> list[int]:
        """The padded input sizes that windows at `outputs` positions touch."""
        return [
            (n - 1) * step + (k - 1) * gap + 1
            for n, step, k, gap in zip(outputs, self.stride, self.size, self.dilation, strict=True)
        ]


def padded(value: Any, window: Sliding, outputs: Sequence[int], fill: float, dtype: TensorDType) -> Any:
    """`value` with its last dims padded by `fill`, as far as the windows reach."""
    shape, spatial = st.shape_of(value), len(window.size)
    lead, sizes = list(shape[:-spatial]), shape[-spatial:]
    needed = [max(r, p + n) for r, p, n in zip(window.reach(outputs), window.padding, sizes, strict=True)]
    if list(sizes) == needed:
        return value
    starts = [0] * len(lead) + list(window.padding)
    out = st.filled(fill, [*lead, *needed], dtype)
    if 0 in shape:
        return out  # a slice without elements has no place that MLIR would take
    return tensor.insert_slice(value, out, [], [], [], starts, list(shape), [1] * len(shape))


def spread(values: Sequence[int] | int | None, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One number per spatial dim, from a number, a list of one, or a full list."""
    if values is None:
        return tuple(default)
    listed = [values] if isinstance(values, int) else list(values)
    if not listed:
        return tuple(default)
    return tuple(listed) * count if len(listed) == 1 else tuple(listed)


# ---- convolution -----------------------------------------------------------------------------------------------------


@lowering("Conv2dOp")
def convolution(node: Op, symbol_table: SymbolTable) -> Any:
    """[batch, channels, *space] by [out, channels / groups, *kernel], in any number of spatial dims."""
    x, weight, bias = node.args[:3]
    meta, groups = node.tensor_meta, node.args[8]
    if node.args[6]:
        raise LoweringError("no lowering of transposed convolution yet")
    if not meta.dtype.is_float:
        raise LoweringError(f"no convolution of {meta.dtype.value}")
    wide = TensorDType.Float64 if meta.dtype is TensorDType.Float64 else TensorDType.Float32
    spatial = len(meta.shape) - 2
    window = Sliding(weight.tensor_meta.shape[2:], *(spread(node.args[i], spatial) for i in (3, 4, 5)))
    value = padded(value_of(x, symbol_table), window, meta.shape[2:], 0, meta.dtype)
    kernel = value_of(weight, symbol_table)
    summed = _convolved(value, kernel, window, meta.shape, groups, (meta.dtype, wide))
    operands = [(summed, wide)]
    if bias is not None:
        per_channel = st.reshape(value_of(bias, symbol_table), [meta.shape[1], *[1] * spatial], meta.dtype)
        operands.append((per_channel, meta.dtype))
    if len(operands) == 1 and wide is meta.dtype:
        return summed

    def finished(total: Scalar, *addend: Scalar) -> Scalar:
        return cast(total + cast(addend[0], wide) if addend else total, meta.dtype)

    return st.pointwise(operands, meta.shape, meta.dtype, finished)


def _convolved(
    value: Any, kernel: Any, window: Sliding, shape: Sequence[int], groups: int, dtypes: tuple[TensorDType, TensorDType]
) -> Any:
    """Loops: batch, group, channel out, positions; channel in, window. Without groups their loop is left out.

    `dtypes` are the element types of the factors and of their sums.
    """
    spatial, (dtype, wide) = len(window.size), dtypes
    grouped = [groups] if groups > 1 else []
    if grouped:
        (n, c, *space), (o, i, *size) = st.shape_of(value), st.shape_of(kernel)
        value = st.reshape(value, [n, groups, c // groups, *space], dtype)
        kernel = st.reshape(kernel, [groups, o // groups, i, *size], dtype)
    split = [shape[0], *grouped, shape[1] // groups, *shape[2:]]
    outer, lead = len(split), 1 + len(grouped)
    group, channel, inner = list(range(1, lead)), outer, outer + 1
    reads: list[st.Dim] = [0, *group, channel, *window.dims(lead + 1, inner)]
    weights: list[st.Dim] = [*group, lead, channel, *range(inner, inner + spatial)]
    iterators = [st.PARALLEL] * outer + [st.REDUCTION] * (1 + spatial)

    def body(a: Any, b: Any, total: Any) -> list[Any]:
        x, y = (cast(Scalar(factor, dtype), wide).value for factor in (a, b))
        return [arith.addf(total, arith.mulf(x, y))]

    out = st.filled(0, split, wide)
    (summed,) = st.generic([value, kernel], [reads, weights], [out], [list(range(outer))], iterators, body)
    return st.reshape(summed, shape, wide)


# ---- pools -----------------------------------------------------------------------------------------------------------


def pool_window(node: Op) -> Sliding:
    """Kernel size, stride (the kernel's size by default) and padding, as pools have them."""
    size = spread(node.args[1], 2)
    stride = spread(argument(node, 2, "stride"), 2, size)
    padding = spread(argument(node, 3, "padding"), 2, (0, 0))
    dilation = argument(node, 4, "dilation") if node.target.startswith("max") else None
    return Sliding(size, stride, padding, spread(dilation, 2, (1, 1)))


def _pooled(value: Any, window: Sliding, shape: Sequence[int], fill: float, dtype: TensorDType, fold: Any) -> Any:
    """Fold the last dims of `value` under the window, from `fill`, which also pads."""
    rank, spatial = len(shape), len(window.size)
    value = padded(value, window, shape[-spatial:], fill, dtype)
    reads: list[st.Dim] = [*range(rank - spatial), *window.dims(rank - spatial, rank)]
    sizes = st.empty(window.size, dtype)
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * spatial

    def body(x: Any, _size: Any, total: Any) -> list[Any]:
        return [fold(Scalar(total, dtype), Scalar(x, dtype)).value]

    # The second operand is never read: it tells how far the window's loops go.
    dims: list[list[st.Dim]] = [reads, [*range(rank, rank + spatial)]]
    out = st.filled(fill, shape, dtype)
    return st.generic([value, sizes], dims, [out], [list(range(rank))], iterators, body)[0]


@lowering("MaxPool2dWithIndicesOp", "MaxPool2dOp")
def max_pool(node: Op, symbol_table: SymbolTable) -> list[Any]:
    value, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node)
    lowest = s.limits(meta.dtype)[0]
    values = _pooled(value, window, meta.shape, lowest, meta.dtype, s.maximum)
    return [values, _positions(value, window, meta.shape, meta.dtype)]


def _positions(value: Any, window: Sliding, shape: Sequence[int], dtype: TensorDType) -> Any:
    """Where in its plane each window has its maximum, first come, NaN above all; unused unless asked for."""
    lowest, width = s.limits(dtype)[0], st.shape_of(value)[-1]
    rank, spatial = len(shape), len(window.size)
    full = padded(value, window, shape[-spatial:], lowest, dtype)
    reads: list[st.Dim] = [*range(rank - spatial), *window.dims(rank - spatial, rank)]
    dims: list[list[st.Dim]] = [reads, [*range(rank, rank + spatial)]]
    every: list[st.Dim] = list(range(rank))

    def place(axis: int) -> Scalar:
        outer, inner = (_loop(loop) for loop in (rank - spatial + axis, rank + axis))
        return outer * window.stride[axis] + inner * window.dilation[axis] - window.padding[axis]

    def body(x: Any, _size: Any, best: Any, at: Any) -> list[Any]:
        new, old, where = Scalar(x, dtype), Scalar(best, dtype), Scalar(at, TensorDType.Int64)
        here = place(0) * width + place(1)
        better = (new > old) | (where < 0)
        if dtype.is_float:
            better = better | new.compare("ne", new)
        inside = (place(0) >= 0) & (place(1) >= 0) & (place(1) < width) & (place(0) < st.shape_of(value)[-2])
        better = better & inside
        return [s.select(better, new, old).value, s.select(better, here, where).value]

    outs = [st.filled(lowest, shape, dtype), st.filled(-1, shape, TensorDType.Int64)]
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * spatial
    return st.generic([full, st.empty(window.size, dtype)], dims, outs, [every, every], iterators, body)[1]


def _loop(dim: int) -> Scalar:
    return Scalar(st.index_to(st.loop_index(dim), TensorDType.Int64), TensorDType.Int64)


@lowering("AvgPool2dOp")
def avg_pool(node: Op, symbol_table: SymbolTable) -> Any:
    """The sum over each window by the number of its elements, padding counted or not as asked."""
    value, meta, window = value_of(node.args[0], symbol_table), node.tensor_meta, pool_window(node)
    if argument(node, 4, "ceil_mode", False):
        raise LoweringError("no lowering of average pooling with ceil_mode yet")
    divisor = argument(node, 6, "divisor_override")
    summed = _pooled(value, window, meta.shape, 0, meta.dtype, lambda a, b: a + b)
    if divisor is None and not argument(node, 5, "count_include_pad", True) and any(window.padding):
        ones = st.filled(1, st.shape_of(value), meta.dtype)
        counts = _pooled(ones, window, meta.shape, 0, meta.dtype, lambda a, b: a + b)
        both = [(summed, meta.dtype), (counts, meta.dtype)]
        return st.pointwise(both, meta.shape, meta.dtype, lambda a, b: a / b)
    count = divisor or window.size[0] * window.size[1]
    return st.pointwise([(summed, meta.dtype)], meta.shape, meta.dtype, lambda a: a / count)


@lowering("AdaptiveAvgPool2dOp")
def adaptive_avg_pool(node: Op, symbol_table: SymbolTable) -> Any:
    """Windows of one size where the output's size divides the input's."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    sizes = st.shape_of(value)[-2:]
    if any(not n or size % n for size, n in zip(sizes, meta.shape[-2:], strict=True)):
        raise LoweringError("windows of different sizes: the output's size does not divide the input's")
    size = tuple(full // n for full, n in zip(sizes, meta.shape[-2:], strict=True))
    window = Sliding(size, size, (0, 0), (1, 1))
    summed = _pooled(value, window, meta.shape, 0, meta.dtype, lambda a, b: a + b)
    return st.pointwise([(summed, meta.dtype)], meta.shape, meta.dtype, lambda a: a / (size[0] * size[1]))
