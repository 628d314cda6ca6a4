"""Convolutions, transposed convolutions and the gradients of both, all expressed as plain convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.moves import reversed_dims
from buddy.compiler.ops.pads import placed
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import in_type, summed_in
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of
from buddy.compiler.ops.windows import SlidingWindow, padded, spread

ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("Conv2dOp")
def convolution(node: Op, symbol_table: SymbolTable) -> Any:
    x, weight, bias = node.args[:3]
    meta, groups = node.tensor_meta, node.args[8]
    wide = summed_in(meta.dtype)
    window = _window(node, 3, weight)
    value, kernel = value_of(x, symbol_table), value_of(weight, symbol_table)
    convolve = transposed if node.args[6] else convolved
    summed = convolve(value, kernel, window, meta.shape, groups, (meta.dtype, wide))
    operands = [(summed, wide)]
    if bias is not None:
        per_channel = st.reshape(value_of(bias, symbol_table), [meta.shape[1], *[1] * len(window.size)], meta.dtype)
        operands.append((per_channel, meta.dtype))
    if len(operands) == 1 and wide is meta.dtype:
        return summed

    def finished(total: Scalar, *addend: Scalar) -> Scalar:
        return cast(total + cast(addend[0], wide) if addend else total, meta.dtype)

    return st.pointwise(operands, meta.shape, meta.dtype, finished)


@lowering("ConvolutionBackwardOp")
def convolution_backward(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the gradients of input, kernel and bias that `output_mask` selects.

    The gradient of the input is a convolution of the other kind (transposed or plain). For that of the kernel the
    shorter tensor slides over the longer one, with the batch as channels, and strides and dilations are exchanged.
    """
    gradient, value, kernel = (value_of(arg, symbol_table) for arg in node.args[:3])
    is_transposed, groups, wanted = node.args[7], node.args[9], node.args[10]
    dtype = node.args[0].tensor_meta.dtype
    dtypes = (dtype, summed_in(dtype))
    window = _window(node, 4, node.args[2])
    results: list[Any] = [None, None, None]
    if wanted[0]:
        convolve = convolved if is_transposed else transposed
        results[0] = convolve(gradient, kernel, window, st.shape_of(value), groups, dtypes)
    if wanted[1]:
        pair = (gradient, value) if is_transposed else (value, gradient)
        results[1] = correlated(*pair, window, st.shape_of(kernel), groups, dtypes)
    if wanted[2]:
        axes = [i for i in range(2 + len(window.size)) if i != 1]
        shape, wide = st.shape_of(gradient), dtypes[1]
        results[2] = st.reduce([(gradient, dtype)], shape, axes, False, 0, wide, lambda x, t: t + cast(x, wide))
    return [None if found is None else in_type(found, dtypes[1], dtype) for found in results]


def _window(node: Op, first: int, weight: Op) -> SlidingWindow:
    """Returns the window; stride, padding and dilation are the arguments from `first` on."""
    size = weight.tensor_meta.shape[2:]
    if not size:
        raise LoweringError("a convolution without spatial dims")
    return SlidingWindow(size, *(spread(node.args[i], len(size)) for i in range(first, first + 3)))


def convolved(
    value: Any,
    kernel: Any,
    window: SlidingWindow,
    shape: Sequence[int],
    groups: int,
    dtypes: tuple[TensorDType, TensorDType],
) -> Any:
    """Emits a convolution with a result of `shape`; `dtypes` are the element types of the factors and of their sums."""
    return slid(padded(value, window, shape[2:], 0, dtypes[0]), kernel, window, shape, groups, dtypes)


def slid(
    value: Any,
    kernel: Any,
    window: SlidingWindow,
    shape: Sequence[int],
    groups: int,
    dtypes: tuple[TensorDType, TensorDType],
) -> Any:
    """Emits the loops: batch, group, output channel, positions; input channel, window.

    Without groups their loop is omitted.
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
        x, y = (cast(Scalar(factor, dtype), wide) for factor in (a, b))
        return [(Scalar(total, wide) + x * y).value]

    out = st.filled(0, split, wide)
    (summed,) = st.generic([value, kernel], [reads, weights], [out], [list(range(outer))], iterators, body)
    return st.reshape(summed, shape, wide)


@dataclass(frozen=True)
class OutputPhase:
    """The outputs `start + i * stride` of a transposed convolution along a dim: all read the same taps of the kernel.

    These are `taps` of the reversed kernel, starting at `first` with step `step`. They slide over the input with stride
    1 and dilation `gap`, with the input's first element at `offset`.
    """

    start: int
    count: int
    first: int
    taps: int
    step: int
    gap: int
    offset: int


def phases(window: SlidingWindow, axis: int, outputs: int) -> list[OutputPhase]:
    """Returns the phases of a dim with `outputs` elements, without those that no tap reaches; their outputs are 0.

    Output `q` sums input `(q + padding - k * dilation) / stride` over the taps `k` for which that is an integer.
    """
    size, stride, padding, dilation = (
        values[axis] for values in (window.size, window.stride, window.padding, window.dilation)
    )
    step, gap, found = stride // gcd(stride, dilation), dilation // gcd(stride, dilation), []
    for rest in range(stride):
        first = next((k for k in range(size) if k * dilation % stride == rest), None)
        start = (rest - padding) % stride
        if first is None or start >= outputs:
            continue
        taps, base = -((first - size) // step), (start + padding - first * dilation) // stride
        before, count = size - 1 - first - step * (taps - 1), -((start - outputs) // stride)
        found.append(OutputPhase(start, count, before, taps, step, gap, (taps - 1) * gap - base))
    return found


def transposed(
    value: Any,
    kernel: Any,
    window: SlidingWindow,
    shape: Sequence[int],
    groups: int,
    dtypes: tuple[TensorDType, TensorDType],
) -> Any:
    """Returns the transposed convolution of `value` with `window`, of `shape`.

    The kernel is [channels, out / groups, *window]. Emits one plain convolution for every combination of the dims'
    phases.
    """
    spatial = len(window.size)
    backwards = reversed_dims(_swapped(kernel, groups, dtypes[0]), range(2, 2 + spatial), dtypes[0])
    out = None
    for chosen in product(*(phases(window, axis, shape[2 + axis]) for axis in range(spatial))):
        found = _of_phase(value, backwards, chosen, shape[:2], groups, dtypes)
        sizes = st.shape_of(found)
        if sizes == tuple(shape):
            return found
        out = st.filled(0, shape, dtypes[1]) if out is None else out
        out = st.insert_slice(found, out, [0, 0, *(p.start for p in chosen)], sizes, [1, 1, *window.stride])
    return st.filled(0, shape, dtypes[1]) if out is None else out


def _of_phase(
    value: Any, backwards: Any, chosen: Sequence[OutputPhase], lead: Sequence[int], groups: int,
    dtypes: tuple[TensorDType, TensorDType],
) -> Any:  # fmt: skip
    """Returns the outputs of one phase of each dim, as [*lead, *counts]."""
    dtype, ones = dtypes[0], (1,) * len(chosen)
    taps, counts = tuple(p.taps for p in chosen), [p.count for p in chosen]
    window = SlidingWindow(taps, ones, (0,) * len(chosen), tuple(p.gap for p in chosen))
    sizes = [*st.shape_of(backwards)[:2], *taps]
    firsts, steps = [0, 0, *(p.first for p in chosen)], [1, 1, *(p.step for p in chosen)]
    kernel = st.slice_of(backwards, firsts, sizes, steps, sizes, dtype)
    offsets, reach = [0, 0, *(p.offset for p in chosen)], [*st.shape_of(value)[:2], *window.reach(counts)]
    around = placed(value, offsets, [1] * len(reach), reach, 0, dtype)
    return slid(around, kernel, window, [*lead, *counts], groups, dtypes)


def _swapped(kernel: Any, groups: int, dtype: TensorDType) -> Any:
    """Rearranges a kernel [channels, out / groups, …] to [out, channels / groups, …]."""
    c, o, *size = st.shape_of(kernel)
    apart = st.reshape(kernel, [groups, c // groups, o, *size], dtype)
    turned = st.transpose(apart, [0, 2, 1, *range(3, 3 + len(size))], dtype)
    return st.reshape(turned, [groups * o, c // groups, *size], dtype)


def correlated(
    longer: Any, shorter: Any, window: SlidingWindow, shape: Sequence[int], groups: int,
    dtypes: tuple[TensorDType, TensorDType],
) -> Any:  # fmt: skip
    """Returns the kernel's gradient, of `shape` [out, channels / groups, *window].

    `longer` [batch, channels, *space] is the convolved tensor, `shorter` [batch, out, *positions] the gradient of the
    convolution's result.
    """
    dtype, wide = dtypes
    (n, c, *_), (_, o, *positions) = st.shape_of(longer), st.shape_of(shorter)
    over = SlidingWindow(tuple(positions), window.dilation, window.padding, window.stride)
    full = padded(longer, over, shape[2:], 0, dtype)
    spatial = range(3, 3 + len(positions))
    # Exchange batch and channels within each group.
    apart = st.reshape(full, [n, groups, c // groups, *st.shape_of(full)[2:]], dtype)
    rows = st.reshape(
        st.transpose(apart, [2, 1, 0, *spatial], dtype), [c // groups, groups * n, *st.shape_of(full)[2:]], dtype
    )
    columns = st.reshape(shorter, [n, groups, o // groups, *positions], dtype)
    columns = st.reshape(st.transpose(columns, [1, 2, 0, *spatial], dtype), [o, n, *positions], dtype)
    found = slid(rows, columns, over.without_padding(), [c // groups, o, *shape[2:]], groups, dtypes)
    return st.transpose(found, [1, 0, *range(2, 2 + len(positions))], wide)
