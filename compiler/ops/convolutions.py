"""Convolutions, transposed convolutions and the gradients of both, all expressed as plain convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.moves import reverse_dims
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of
from buddy.compiler.ops.windows import SlidingWindow, padded, placed, spread

ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("Conv2dOp")
def convolution(node: Op, symbol_table: SymbolTable) -> Any:
    x, weight, bias = node.args[:3]
    meta, groups = node.tensor_meta, node.args[8]
    wide = accumulator_type(meta.dtype)
    setup = ConvolutionSetup(_window(node, 3, weight), groups, meta.dtype)
    value, kernel = value_of(x, symbol_table), value_of(weight, symbol_table)
    emit = convolve_transposed if node.args[6] else convolve
    summed = emit(value, kernel, setup, meta.shape)
    operands = [(summed, wide)]
    if bias is not None:
        per_channel = st.reshape(value_of(bias, symbol_table), [meta.shape[1], *[1] * setup.spatial], meta.dtype)
        operands.append((per_channel, meta.dtype))
    if len(operands) == 1 and wide is meta.dtype:
        return summed

    def finished(total: Scalar, *addend: Scalar) -> Scalar:
        return cast(total + cast(addend[0], wide) if addend else total, meta.dtype)

    return st.pointwise(operands, meta.shape, meta.dtype, finished)


@lowering("ConvolutionBackwardOp")
def convolution_backward(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the gradients of input, kernel and bias that `output_mask` selects.

    The gradient of the input is a convolution of the other kind (transposed or plain). That of the kernel is a
    convolution of the longer with the shorter tensor, with the batch as channels and strides and dilations exchanged.
    """
    gradient, value, kernel = (value_of(arg, symbol_table) for arg in node.args[:3])
    is_transposed, groups, wanted = node.args[7], node.args[9], node.args[10]
    dtype = node.args[0].tensor_meta.dtype
    setup = ConvolutionSetup(_window(node, 4, node.args[2]), groups, dtype)
    wide = setup.accumulator
    results: list[Any] = [None, None, None]
    if wanted[0]:
        emit = convolve if is_transposed else convolve_transposed
        results[0] = emit(gradient, kernel, setup, st.shape_of(value))
    if wanted[1]:
        pair = (gradient, value) if is_transposed else (value, gradient)
        results[1] = correlate(*pair, setup, st.shape_of(kernel))
    if wanted[2]:
        axes = [i for i in range(2 + setup.spatial) if i != 1]
        shape = st.shape_of(gradient)
        results[2] = st.reduce([(gradient, dtype)], shape, axes, False, 0, wide, lambda x, t: t + cast(x, wide))
    return [None if found is None else cast_tensor(found, wide, dtype) for found in results]


def _window(node: Op, first: int, weight: Op) -> SlidingWindow:
    """Returns the window; stride, padding and dilation are the arguments from `first` on."""
    size = weight.tensor_meta.shape[2:]
    if not size:
        raise LoweringError("a convolution without spatial dims")
    return SlidingWindow(size, *(spread(node.args[i], len(size)) for i in range(first, first + 3)))


@dataclass(frozen=True)
class ConvolutionSetup:
    """The window, the number of groups, and the element type of the factors of a convolution."""

    window: SlidingWindow
    groups: int
    dtype: TensorDType

    @property
    def accumulator(self) -> TensorDType:
        """The element type of the sums."""
        return accumulator_type(self.dtype)

    @property
    def spatial(self) -> int:
        """The number of spatial dims."""
        return len(self.window.size)


def convolve(value: Any, kernel: Any, setup: ConvolutionSetup, shape: Sequence[int]) -> Any:
    """Emits a convolution of `value` with a result of `shape`, in the accumulator type."""
    return slide(padded(value, setup.window, shape[2:], 0, setup.dtype), kernel, setup, shape)


def slide(value: Any, kernel: Any, setup: ConvolutionSetup, shape: Sequence[int]) -> Any:
    """Emits a convolution of `value`, which is padded already.

    Its loops are batch, group (if there are groups), output channel and positions; then input channel and window.
    """
    window, groups, dtype = setup.window, setup.groups, setup.dtype
    spatial, wide = setup.spatial, setup.accumulator
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
    """The outputs `start + i * stride` of a transposed convolution along a dim, which read the same taps of the kernel.

    These are `taps` elements of the reversed kernel, from `first` on with step `step`. They slide over the input with
    stride 1 and dilation `gap`; the input's first element is at `offset`.
    """

    start: int
    count: int
    first: int
    taps: int
    step: int
    gap: int
    offset: int


def phases(window: SlidingWindow, axis: int, outputs: int) -> list[OutputPhase]:
    """Returns the phases of a dim with `outputs` elements; omits those that no tap reaches, whose outputs are 0.

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


def convolve_transposed(value: Any, kernel: Any, setup: ConvolutionSetup, shape: Sequence[int]) -> Any:
    """Emits the transposed convolution of `value`, with a result of `shape`, in the accumulator type.

    The kernel is [channels, out / groups, *window]. Emits a plain convolution for each combination of the dims' phases.
    """
    window, spatial, wide = setup.window, setup.spatial, setup.accumulator
    backwards = reverse_dims(_swap_channels(kernel, setup), range(2, 2 + spatial), setup.dtype)
    out = None
    for chosen in product(*(phases(window, axis, shape[2 + axis]) for axis in range(spatial))):
        found = _convolve_phase(value, backwards, chosen, shape[:2], setup)
        sizes = st.shape_of(found)
        if sizes == tuple(shape):
            return found
        out = st.filled(0, shape, wide) if out is None else out
        out = st.insert_slice(found, out, [0, 0, *(p.start for p in chosen)], sizes, [1, 1, *window.stride])
    return st.filled(0, shape, wide) if out is None else out


def _convolve_phase(
    value: Any, backwards: Any, chosen: Sequence[OutputPhase], lead: Sequence[int], setup: ConvolutionSetup
) -> Any:
    """Returns the outputs of one phase of each dim, as [*lead, *counts]; `backwards` is the reversed kernel."""
    dtype, ones = setup.dtype, (1,) * len(chosen)
    taps, counts = tuple(p.taps for p in chosen), [p.count for p in chosen]
    window = SlidingWindow(taps, ones, (0,) * len(chosen), tuple(p.gap for p in chosen))
    sizes = [*st.shape_of(backwards)[:2], *taps]
    firsts, steps = [0, 0, *(p.first for p in chosen)], [1, 1, *(p.step for p in chosen)]
    kernel = st.slice_of(backwards, firsts, sizes, steps, sizes, dtype)
    offsets, reach = [0, 0, *(p.offset for p in chosen)], [*st.shape_of(value)[:2], *window.reach(counts)]
    around = placed(value, offsets, [1] * len(reach), reach, 0, dtype)
    return slide(around, kernel, replace(setup, window=window), [*lead, *counts])


def _swap_channels(kernel: Any, setup: ConvolutionSetup) -> Any:
    """Rearranges a kernel [channels, out / groups, …] to [out, channels / groups, …]."""
    groups, dtype = setup.groups, setup.dtype
    c, o, *size = st.shape_of(kernel)
    apart = st.reshape(kernel, [groups, c // groups, o, *size], dtype)
    turned = st.transpose(apart, [0, 2, 1, *range(3, 3 + len(size))], dtype)
    return st.reshape(turned, [groups * o, c // groups, *size], dtype)


def correlate(longer: Any, shorter: Any, setup: ConvolutionSetup, shape: Sequence[int]) -> Any:
    """Returns the kernel's gradient, of `shape` [out, channels / groups, *window], in the accumulator type.

    `longer` [batch, channels, *space] is the convolved tensor, `shorter` [batch, out, *positions] the gradient of the
    convolution's result.
    """
    window, groups, dtype = setup.window, setup.groups, setup.dtype
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
    found = slide(rows, columns, replace(setup, window=over.without_padding()), [c // groups, o, *shape[2:]])
    return st.transpose(found, [1, 0, *range(2, 2 + len(positions))], setup.accumulator)
