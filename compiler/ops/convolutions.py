"""Lowers padding, convolutions, transposed convolutions and their gradients.

All convolutions become plain ones: not transposed, on an input that is already padded. Pools use the same
padding and sliding windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim, largest, smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.precision import round_operands_if_requested
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, value_of

# ---- padding and sliding windows -------------------------------------------------------------------------------------


ops_registry = Registry()
lowering = ops_registry.lowering


def insert_spaced(
    value: ir.Value, offsets: Sequence[int], steps: Sequence[int], shape: Sequence[Dim], fill: float, dtype: TensorDType
) -> ir.Value:
    """Returns a tensor of `shape`: along each dim, element `i` of `value` is at `offset + i * step`; others are `fill`.

    Elements of `value` whose position is outside of `shape` are dropped.
    """
    old = st.shape_of(value)
    if old == tuple(shape) and not any(offsets):
        return value
    # The elements of `value` that fit into the result have the indices `firsts` to `ends` - 1.
    firsts = [largest(0, -(offset // step)) for offset, step in zip(offsets, steps, strict=True)]
    ends = [
        smallest(old_size, -((offset - size) // step))
        for old_size, offset, size, step in zip(old, offsets, shape, steps, strict=True)
    ]
    counts = [largest(end - start, 0) for start, end in zip(firsts, ends, strict=True)]
    out = st.filled(fill, shape, dtype)
    if 0 in counts:
        return out  # MLIR rejects slices without elements
    if counts != list(old):
        value = st.slice_of(value, firsts, counts, [1] * len(old), counts, dtype)
    starts = [offset + first * step for offset, first, step in zip(offsets, firsts, steps, strict=True)]
    return st.insert_slice(value, out, starts, counts, steps)


@lowering("ConstantPadNdOp")
def constant_pad(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Pads by the second argument: (before, after) for each dim, from the last dim on. A negative padding crops."""
    meta, pads = node.tensor_meta, node.args[1]
    rank = len(meta.shape)
    offsets = [0] * rank
    for i, before in enumerate(pads[::2]):
        offsets[rank - 1 - i] = before
    fill = argument(node, 2, "value", 0) or 0
    return insert_spaced(value_of(node.args[0], symbol_table), offsets, [1] * rank, meta.shape, fill, meta.dtype)


@lowering("ReplicationPadBackwardOp")
def replication_pad_backward(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Adds the gradient of each padding element to that of the nearest element."""
    meta, pads = node.tensor_meta, node.args[2]
    spatial = len(pads) // 2
    # `pads` has (before, after) for each dim, from the last dim on.
    before, sizes = pads[-2::-2], meta.shape[-spatial:]

    def nearest(indices: Sequence[ir.Value]) -> list[tuple[list[Scalar], None]]:
        """Returns the nearest element of the tensor without padding, with weight 1 (`None`), as `loops.Taps`."""
        # The first index is that of the plane.
        positions = (loops.index_to_scalar(i) - pad for i, pad in zip(indices[1:], before, strict=True))
        return [([s.minimum(s.maximum(p, 0), size - 1) for p, size in zip(positions, sizes, strict=True)], None)]

    return loops.accumulate_taps(value_of(node.args[0], symbol_table), meta.dtype, meta.shape, spatial, nearest)


@dataclass(frozen=True)
class SlidingWindow:
    """A window over the last dims: its size, stride, padding on both sides, and dilation per dim."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def dims(self, first_outer: int, first_inner: int) -> list[st.DimIndex]:
        """Returns the dims that the window slides over, as `structured.generic` takes the dims of an operand.

        For dim `i` of the window, loop `first_outer + i` is over its positions, `first_inner + i` over its elements.
        """
        pairs = zip(self.stride, self.dilation, strict=True)
        return [st.WindowDim(first_outer + i, step, first_inner + i, gap) for i, (step, gap) in enumerate(pairs)]

    def with_unit_dim(self) -> SlidingWindow:
        """Returns the same window for an input with a leading dim of size 1."""
        return SlidingWindow((1, *self.size), (1, *self.stride), (0, *self.padding), (1, *self.dilation))

    def without_padding(self) -> SlidingWindow:
        """Returns the same windows over an input that is already padded."""
        return replace(self, padding=(0,) * len(self.size))

    def padded_sizes(self, outputs: Sequence[int]) -> list[int]:
        """Returns the sizes of a padded input that ends with the last window, for `outputs` positions per dim."""
        return [
            (n - 1) * step + (k - 1) * gap + 1
            for n, step, k, gap in zip(outputs, self.stride, self.size, self.dilation, strict=True)
        ]


def pad_for_window(
    value: ir.Value, window: SlidingWindow, outputs: Sequence[int], fill: float, dtype: TensorDType
) -> ir.Value:
    """Returns `value` with its last dims padded by `fill`, so that the window has `outputs` positions in each."""
    shape, spatial = st.shape_of(value), len(window.size)
    leading_sizes, sizes = list(shape[:-spatial]), shape[-spatial:]
    # Elements of `value` after the last window stay in the result: to remove them would take a slice.
    padded_sizes = [
        largest(read_size, before + size)
        for read_size, before, size in zip(window.padded_sizes(outputs), window.padding, sizes, strict=True)
    ]
    offsets = [0] * len(leading_sizes) + list(window.padding)
    return insert_spaced(value, offsets, [1] * len(shape), [*leading_sizes, *padded_sizes], fill, dtype)


def per_dim(values: Sequence[int] | int | None, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns one number per dim: `values`, one number for all `count` dims, or `default` if `values` is empty."""
    if values is None:
        return tuple(default)
    listed = [values] if isinstance(values, int) else list(values)
    if not listed:
        return tuple(default)
    return tuple(listed) * count if len(listed) == 1 else tuple(listed)


def pool_window(node: Op, first: int = 1) -> SlidingWindow:
    """Returns the window of a pool, whose arguments from `first` on are kernel size, stride, padding, and dilation.

    The stride is by default the kernel size. Only max pools have a dilation.
    """
    count = spatial_dims(node)
    size = per_dim(node.args[first], count)
    stride = per_dim(argument(node, first + 1, "stride"), count, size)
    padding = per_dim(argument(node, first + 2, "padding"), count, (0,) * count)
    dilation = argument(node, first + 3, "dilation") if node.target.startswith("max") else None
    return SlidingWindow(size, stride, padding, per_dim(dilation, count, (1,) * count))


def spatial_dims(node: Op) -> int:
    """Returns the number of dims that a node's windows slide over, from its target, such as 2 for `avg_pool2d`."""
    return int(next(letter for letter in node.target if letter.isdigit()))


# ---- convolutions ----------------------------------------------------------------------------------------------------


# All convolutions are of this class, whatever their number of spatial dims, transposed ones too.
@lowering("Conv2dOp")
def convolution(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`."""
    x, weight, bias = node.args[:3]
    meta, groups = node.tensor_meta, node.args[8]
    if 0 in meta.shape:
        # Without input channels, PyTorch returns no output channels, even if the weight has some.
        return st.empty(meta.shape, meta.dtype)
    wide = accumulator_type(meta.dtype)
    window, operands_of_node = _window(node, 3, weight), [value_of(op, symbol_table) for op in (x, weight)]
    (value, kernel), dtype = round_operands_if_requested(operands_of_node, meta.dtype, "a convolution")
    setup = ConvolutionSetup(window, groups, dtype)
    emit = convolve_transposed if node.args[6] else convolve
    sums = emit(value, kernel, setup, meta.shape)
    operands = [(sums, wide)]
    if bias is not None:
        per_channel = st.reshape(value_of(bias, symbol_table), [meta.shape[1], *[1] * setup.spatial], meta.dtype)
        operands.append((per_channel, meta.dtype))
    if len(operands) == 1 and wide is meta.dtype:
        return sums

    def add_bias(total: Scalar, *bias: Scalar) -> Scalar:
        return cast(total + cast(bias[0], wide) if bias else total, meta.dtype)

    return st.pointwise(operands, meta.shape, meta.dtype, add_bias)


@lowering("ConvolutionBackwardOp")
def convolution_backward(node: Op, symbol_table: SymbolTable) -> list[ir.Value | None]:
    """Returns the gradients of input, kernel and bias that `output_mask` selects.

    The arguments are grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
    groups, output_mask. The gradient of a convolution's input is a transposed convolution; that of a transposed one's
    input is a convolution. `correlate` computes the gradient of the kernel.
    """
    gradient, value, kernel = (value_of(arg, symbol_table) for arg in node.args[:3])
    is_transposed, groups = node.args[7], node.args[9]
    needs_input_gradient, needs_kernel_gradient, needs_bias_gradient = node.args[10]
    dtype = node.args[0].tensor_meta.dtype
    setup = ConvolutionSetup(_window(node, 4, node.args[2]), groups, dtype)
    wide = setup.accumulator
    results: list[Any] = [None, None, None]
    if needs_input_gradient:
        emit = convolve if is_transposed else convolve_transposed
        results[0] = emit(gradient, kernel, setup, st.shape_of(value))
    if needs_kernel_gradient:
        pair = (gradient, value) if is_transposed else (value, gradient)
        results[1] = correlate(*pair, setup, st.shape_of(kernel))
    if needs_bias_gradient:
        axes = [i for i in range(2 + setup.spatial) if i != 1]
        shape = st.shape_of(gradient)
        results[2] = st.reduce([(gradient, dtype)], shape, axes, 0, wide, lambda x, t: t + cast(x, wide))
    return [None if result is None else cast_tensor(result, wide, dtype) for result in results]


def _window(node: Op, first: int, weight: Op) -> SlidingWindow:
    """Returns the window; the node's arguments from `first` on are stride, padding and dilation."""
    size = weight.tensor_meta.shape[2:]
    if not size:
        raise LoweringError("the convolution has no spatial dims")
    return SlidingWindow(size, *(per_dim(node.args[i], len(size)) for i in range(first, first + 3)))


@dataclass(frozen=True)
class ConvolutionSetup:
    """The window, the number of groups, and the element type of the operands of a convolution.

    `kernel_dtype` is the element type of the kernel if that is not `dtype`. `sum_dtype` is that of the sums if it is
    not the accumulator type of `dtype`.
    """

    window: SlidingWindow
    groups: int
    dtype: TensorDType
    kernel_dtype: TensorDType | None = None
    sum_dtype: TensorDType | None = None

    @property
    def accumulator(self) -> TensorDType:
        """The element type of the sums."""
        return self.sum_dtype or accumulator_type(self.dtype)

    @property
    def spatial(self) -> int:
        """The number of spatial dims."""
        return len(self.window.size)


def convolve(value: ir.Value, kernel: ir.Value, setup: ConvolutionSetup, shape: Sequence[int]) -> ir.Value:
    """Emits a convolution of `value`. The result has `shape` and the accumulator type."""
    return convolve_padded(pad_for_window(value, setup.window, shape[2:], 0, setup.dtype), kernel, setup, shape)


def convolve_padded(value: ir.Value, kernel: ir.Value, setup: ConvolutionSetup, shape: Sequence[int]) -> ir.Value:
    """Emits a convolution of `value`, which is padded already. The result has `shape` and the accumulator type.

    `value` has the shape [batch, channels, *space], `kernel` [out, channels / groups, *window]. The loops are: batch,
    group (if `groups` > 1), output channel, output positions, input channel, and window.
    """
    window, groups, dtype = setup.window, setup.groups, setup.dtype
    spatial, wide, kernel_dtype = setup.spatial, setup.accumulator, setup.kernel_dtype or dtype
    # The size of the dim of groups; empty without groups, as is `group_loop`, the number of its loop.
    group_size = [groups] if groups > 1 else []
    if group_size:
        (n, c, *space), (o, i, *size) = st.shape_of(value), st.shape_of(kernel)
        value = st.reshape(value, [n, groups, c // groups, *space], dtype)
        kernel = st.reshape(kernel, [groups, o // groups, i, *size], kernel_dtype)
    grouped_shape = [shape[0], *group_size, shape[1] // groups, *shape[2:]]
    # The numbers of the loops; loop 0 is the batch, and each dim of the result has a loop.
    result_rank, out_channel = len(grouped_shape), 1 + len(group_size)
    group_loop, in_channel, first_inner = list(range(1, out_channel)), result_rank, result_rank + 1
    value_dims: list[st.DimIndex] = [0, *group_loop, in_channel, *window.dims(out_channel + 1, first_inner)]
    kernel_dims: list[st.DimIndex] = [*group_loop, out_channel, in_channel, *range(first_inner, first_inner + spatial)]
    iterators = [st.PARALLEL] * result_rank + [st.REDUCTION] * (1 + spatial)

    def body(x: ir.Value, weight: ir.Value, total: ir.Value) -> list[ir.Value]:
        wide_x, wide_weight = cast(Scalar(x, dtype), wide), cast(Scalar(weight, kernel_dtype), wide)
        return [(Scalar(total, wide) + wide_x * wide_weight).value]

    out, dims = st.filled(0, grouped_shape, wide), [value_dims, kernel_dims]
    (sums,) = st.generic([value, kernel], dims, [out], [list(range(result_rank))], iterators, body)
    return st.reshape(sums, shape, wide)


@dataclass(frozen=True)
class OutputPhase:
    """The outputs `start + i * stride`, with `i < count`, of a transposed convolution with `stride` along a dim.

    They all read the same elements of the kernel, the taps: `taps` elements, from index `first` on with step `step`. In
    reverse order, the taps slide over the input with stride 1 and dilation `dilation`. The input is first padded in
    front by `offset` elements, or cropped if `offset` is negative.
    """

    start: int
    count: int
    first: int
    taps: int
    step: int
    dilation: int
    offset: int


def output_phases(window: SlidingWindow, axis: int, outputs: int) -> list[OutputPhase]:
    """Returns the phases of a dim with `outputs` elements; omits phases without taps, whose outputs are 0.

    Output `q` is the sum of `weight[k] * input[p]` over the taps `k` for which the input position
    `p = (q + padding - k * dilation) / stride` is an integer.
    """
    size, stride, padding, dilation = (
        values[axis] for values in (window.size, window.stride, window.padding, window.dilation)
    )
    # The next tap with an integer position after tap `k` is `k + step`; its position is `p - phase_dilation`.
    step, phase_dilation, phases = stride // gcd(stride, dilation), dilation // gcd(stride, dilation), []
    for remainder in range(stride):
        first = next((k for k in range(size) if k * dilation % stride == remainder), None)
        start = (remainder - padding) % stride
        if first is None or start >= outputs:
            continue
        taps, count = -((first - size) // step), -((start - outputs) // stride)
        # The position of the input that output `start` multiplies with tap `first`.
        first_input = (start + padding - first * dilation) // stride
        offset = (taps - 1) * phase_dilation - first_input
        phases.append(OutputPhase(start, count, first, taps, step, phase_dilation, offset))
    return phases


def convolve_transposed(value: ir.Value, kernel: ir.Value, setup: ConvolutionSetup, shape: Sequence[int]) -> ir.Value:
    """Emits a transposed convolution of `value`. The result has `shape` and the accumulator type.

    The kernel has the shape [channels, out / groups, *window]. Emits one plain convolution for each combination of the
    dims' phases, and interleaves the results.
    """
    window, spatial, wide, out = setup.window, setup.spatial, setup.accumulator, None
    combinations = list(product(*(output_phases(window, axis, shape[2 + axis]) for axis in range(spatial))))
    taps_of_combinations = [tuple(phase.taps for phase in phases) for phases in combinations]
    if taps_of_combinations == [window.size]:  # one combination, of the whole kernel
        kernels = [_adjoint_kernel(kernel, setup)]
    else:
        channels_last = _channels_last(kernel, setup)
        kernels = [_kernel_of_phases(channels_last, phases, setup) for phases in combinations]
    for phases, phase_kernel in zip(combinations, kernels, strict=True):
        phase_outputs = _convolve_phase(value, phase_kernel, phases, shape[:2], setup)
        sizes = st.shape_of(phase_outputs)
        if sizes == tuple(shape):
            return phase_outputs
        out = st.filled(0, shape, wide) if out is None else out
        out = st.insert_slice(phase_outputs, out, [0, 0, *(p.start for p in phases)], sizes, [1, 1, *window.stride])
    return st.filled(0, shape, wide) if out is None else out


def _convolve_phase(
    value: ir.Value,
    kernel: ir.Value,
    phases: Sequence[OutputPhase],
    leading: Sequence[int],
    setup: ConvolutionSetup,
) -> ir.Value:
    """Returns the outputs of one phase of each dim, of the shape [*leading, *counts of the phases]."""
    dtype, ones = setup.dtype, (1,) * len(phases)
    taps, counts = tuple(p.taps for p in phases), [p.count for p in phases]
    window = SlidingWindow(taps, ones, (0,) * len(phases), tuple(p.dilation for p in phases))
    offsets, padded_sizes = [0, 0, *(p.offset for p in phases)], [*st.shape_of(value)[:2], *window.padded_sizes(counts)]
    padded = insert_spaced(value, offsets, [1] * len(padded_sizes), padded_sizes, 0, dtype)
    return convolve_padded(padded, kernel, replace(setup, window=window), [*leading, *counts])


def _adjoint_kernel(kernel: ir.Value, setup: ConvolutionSetup) -> ir.Value:
    """Rearranges a kernel [channels, out / groups, *window] to [out, channels / groups, *reversed window]."""
    groups, dtype = setup.groups, setup.dtype
    c, o, *size = st.shape_of(kernel)
    grouped = st.reshape(kernel, [groups, c // groups, o, *size], dtype)
    if all(taps == 1 for taps in size):
        # A transpose alone costs no copy: the convolution reads it when it packs the kernel.
        swapped = st.transpose(grouped, [0, 2, 1, *range(3, 3 + len(size))], dtype)
    else:
        # One copy transposes and reverses: with two copies, a large kernel would be read from memory twice.
        dims: list[st.DimIndex] = [0, 2, 1, *(st.ReversedDim(3 + i, taps) for i, taps in enumerate(size))]
        swapped = _copy(grouped, dims, [groups, o, c // groups, *size], dtype)
    return st.reshape(swapped, [groups * o, c // groups, *size], dtype)


def _channels_last(kernel: ir.Value, setup: ConvolutionSetup) -> ir.Value:
    """Rearranges a kernel [channels, out / groups, *window] to [groups, out / groups, *window, channels / groups].

    The taps of a phase are not contiguous in the kernel. With channels last, they are copied in vectors.
    """
    c, o, *size = st.shape_of(kernel)
    grouped = st.reshape(kernel, [setup.groups, c // setup.groups, o, *size], setup.dtype)
    return st.transpose(grouped, [0, 2, *range(3, 3 + len(size)), 1], setup.dtype)


def _kernel_of_phases(channels_last: ir.Value, phases: Sequence[OutputPhase], setup: ConvolutionSetup) -> ir.Value:
    """Returns the kernel [out, channels / groups, *reversed taps] of one phase of each dim."""
    dtype, taps = setup.dtype, [phase.taps for phase in phases]
    groups, o, *_, c = st.shape_of(channels_last)
    sizes, rank = [groups, o, *taps, c], 3 + len(taps)
    firsts, steps = [0, 0, *(p.first for p in phases), 0], [1, 1, *(p.step for p in phases), 1]
    part = st.slice_of(channels_last, firsts, sizes, steps, sizes, dtype)
    if any(count > 1 for count in taps):
        reversed_taps = [st.ReversedDim(2 + i, count) for i, count in enumerate(taps)]
        part = _copy(part, [0, 1, *reversed_taps, rank - 1], sizes, dtype)
    # The transpose costs no copy, as in `_adjoint_kernel`.
    channels_first = st.transpose(part, [0, 1, rank - 1, *range(2, rank - 1)], dtype)
    return st.reshape(channels_first, [groups * o, c, *taps], dtype)


def _copy(value: ir.Value, dims: Sequence[st.DimIndex], shape: Sequence[int], dtype: TensorDType) -> ir.Value:
    """Returns a tensor of `shape`; each element is that of `value` at `dims` of the loops over the result."""
    loops: list[st.DimIndex] = [*range(len(shape))]
    out = st.empty(shape, dtype)
    return st.generic([value], [dims], [out], [loops], [st.PARALLEL] * len(shape), lambda x, _: [x])[0]


def correlate(longer: ir.Value, shorter: ir.Value, setup: ConvolutionSetup, shape: Sequence[int]) -> ir.Value:
    """Returns the kernel's gradient, of `shape` [out, channels / groups, *window], in the accumulator type.

    `longer` [batch, channels, *space] is the convolved tensor, `shorter` [batch, out, *positions] the gradient of the
    convolution's result, usually smaller in space. (For a transposed convolution, they are exchanged.) The kernel's
    gradient is a convolution of `longer` with the kernel `shorter`: the batch takes the role of the channels, and
    stride and dilation are exchanged.
    """
    window, groups, dtype = setup.window, setup.groups, setup.dtype
    (_, c, *_), (_, o, *positions) = st.shape_of(longer), st.shape_of(shorter)
    window_of_shorter = SlidingWindow(tuple(positions), window.dilation, window.padding, window.stride)
    padded = pad_for_window(longer, window_of_shorter, shape[2:], 0, dtype)
    if groups > 1 or _is_product(window):
        return _correlate_uncopied(padded, shorter, replace(setup, window=window_of_shorter), shape)
    # Exchange batch and channels.
    exchanged = [1, 0, *range(2, 2 + len(positions))]
    value, kernel = st.transpose(padded, exchanged, dtype), st.transpose(shorter, exchanged, dtype)
    setup = replace(setup, window=window_of_shorter.without_padding())
    gradient = convolve_padded(value, kernel, setup, [c, o, *shape[2:]])
    return st.transpose(gradient, exchanged, setup.accumulator)


def _is_product(window: SlidingWindow) -> bool:
    """True for a window of one element in steps of one: the convolution is a matrix product."""
    return {*window.size, *window.stride} == {1} and not any(window.padding)


def _correlate_uncopied(longer: ir.Value, shorter: ir.Value, setup: ConvolutionSetup, shape: Sequence[int]) -> ir.Value:
    """Returns what `correlate` returns, for a convolution in groups, or for one that is a matrix product.

    `longer` is padded already, and the window of `setup` is that of `shorter`. Neither tensor is copied. The loops
    over the result are group (if `groups` > 1), output channel, input channel and window; batch and positions follow.
    """
    window, dtype, wide, spatial, groups = setup.window, setup.dtype, setup.accumulator, setup.spatial, setup.groups
    (n, c, *space), (_, o, *positions) = st.shape_of(longer), st.shape_of(shorter)
    sizes, group = [*shape[:2]], list[int]()
    if groups > 1:
        longer = st.reshape(longer, [n, groups, c // groups, *space], dtype)
        shorter = st.reshape(shorter, [n, groups, o // groups, *positions], dtype)
        sizes, group = [groups, o // groups, *shape[1:]], [0]
    # The numbers of the loops; `taps` is the first over the window, which a matrix product without groups lacks.
    output, taps, batch = len(group), len(group) + 2, len(sizes)
    inner = [*range(batch + 1, batch + 1 + spatial)]
    window_dims: list[st.DimIndex] = [*(window.dims(taps, inner[0]) if group else inner)]
    dims: list[list[st.DimIndex]] = [[batch, *group, output + 1, *window_dims], [batch, *group, output, *inner]]

    def body(x: ir.Value, gradient: ir.Value, total: ir.Value) -> list[ir.Value]:
        wide_x, wide_gradient = (cast(Scalar(value, dtype), wide) for value in (x, gradient))
        return [(Scalar(total, wide) + wide_x * wide_gradient).value]

    iterators = [st.PARALLEL] * len(sizes) + [st.REDUCTION] * (1 + spatial)
    (sums,) = st.generic([longer, shorter], dims, [st.filled(0, sizes, wide)], [[*range(len(sizes))]], iterators, body)
    return st.reshape(sums, shape, wide)
