"""Padding, and sliding windows over the last dims, which convolutions and pools use."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim, largest, smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def insert_spaced(
    value: ir.Value, offsets: Sequence[int], steps: Sequence[int], shape: Sequence[Dim], fill: float, dtype: TensorDType
) -> ir.Value:
    """Returns a tensor of `shape` that has element `i` of each dim of `value` at `offset + i * step`, and else `fill`.

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
    before, sizes = pads[-2::-2], meta.shape[-spatial:]

    def nearest(indices: Sequence[ir.Value]) -> list[tuple[list[Scalar], None]]:
        """Returns the nearest element of the tensor without padding, as `Taps`."""
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
        """Returns the operand's dims for `generic`.

        The loops over positions of the window start with loop `first_outer`, those inside the window with
        `first_inner`.
        """
        pairs = zip(self.stride, self.dilation, strict=True)
        return [st.WindowDim(first_outer + i, step, first_inner + i, gap) for i, (step, gap) in enumerate(pairs)]

    def with_unit_dim(self) -> SlidingWindow:
        """Returns the same window for an input with a leading dim of size 1."""
        return SlidingWindow((1, *self.size), (1, *self.stride), (0, *self.padding), (1, *self.dilation))

    def without_padding(self) -> SlidingWindow:
        """Returns the same windows over an input that is already padded."""
        return dataclasses.replace(self, padding=(0,) * len(self.size))

    def padded_sizes(self, outputs: Sequence[int]) -> list[int]:
        """Returns the sizes of the padded input that windows at `outputs` positions per dim read."""
        return [
            (n - 1) * step + (k - 1) * gap + 1
            for n, step, k, gap in zip(outputs, self.stride, self.size, self.dilation, strict=True)
        ]


def pad_for_window(
    value: ir.Value, window: SlidingWindow, outputs: Sequence[int], fill: float, dtype: TensorDType
) -> ir.Value:
    """Returns `value` with its last dims padded by `fill`, as far as windows at `outputs` positions per dim read."""
    shape, spatial = st.shape_of(value), len(window.size)
    leading_sizes, sizes = list(shape[:-spatial]), shape[-spatial:]
    # Elements behind the last window stay, so that no slice is needed.
    padded_sizes = [
        largest(read_size, before + size)
        for read_size, before, size in zip(window.padded_sizes(outputs), window.padding, sizes, strict=True)
    ]
    offsets = [0] * len(leading_sizes) + list(window.padding)
    return insert_spaced(value, offsets, [1] * len(shape), [*leading_sizes, *padded_sizes], fill, dtype)


def per_dim(values: Sequence[int] | int | None, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns one number per dim; `values` is a list, one number for all `count` dims, or empty for `default`."""
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
