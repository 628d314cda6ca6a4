"""Padding, and ops that place a tensor inside a larger one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import Dim, largest, smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sums import accumulate_taps
from buddy.compiler.ops.utils import SymbolTable, argument, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


def placed(
    value: Any, offsets: Sequence[int], steps: Sequence[int], shape: Sequence[Dim], fill: float, dtype: TensorDType
) -> Any:
    """Returns a tensor of `shape` filled with `fill`, with element `i` of each dim of `value` at `offset + i * step`.

    Elements whose position is outside of `shape` are dropped.
    """
    old = st.shape_of(value)
    if old == tuple(shape) and not any(offsets):
        return value
    first = [largest(0, -(offset // step)) for offset, step in zip(offsets, steps, strict=True)]
    ends = [smallest(n, -((o - size) // s)) for n, o, size, s in zip(old, offsets, shape, steps, strict=True)]
    counts = [largest(end - start, 0) for start, end in zip(first, ends, strict=True)]
    out = st.filled(fill, shape, dtype)
    if 0 in counts:
        return out  # MLIR rejects slices without elements
    if counts != list(old):
        value = st.slice_of(value, first, counts, [1] * len(old), counts, dtype)
    starts = [offset + start * step for offset, start, step in zip(offsets, first, steps, strict=True)]
    return st.insert_slice(value, out, starts, counts, steps)


@lowering("ConstantPadNdOp")
def constant_pad(node: Op, symbol_table: SymbolTable) -> Any:
    """Pads by the pairs of the second argument, which start with the last dim; negative pads crop."""
    meta, pads = node.tensor_meta, node.args[1]
    rank = len(meta.shape)
    offsets = [0] * rank
    for i, before in enumerate(pads[::2]):
        offsets[rank - 1 - i] = before
    fill = argument(node, 2, "value", 0) or 0
    return placed(value_of(node.args[0], symbol_table), offsets, [1] * rank, meta.shape, fill, meta.dtype)


@lowering("ReplicationPadBackwardOp")
def replication_pad_backward(node: Op, symbol_table: SymbolTable) -> Any:
    """Adds the gradient of the padding to the nearest element."""
    meta, pads = node.tensor_meta, node.args[2]
    spatial = len(pads) // 2
    before, sizes = pads[-2::-2], meta.shape[-spatial:]

    def nearest(at: Sequence[Any]) -> list[tuple[list[Scalar], None]]:
        places = (loops.index_of(p) - pad for p, pad in zip(at[1:], before, strict=True))
        return [([s.minimum(s.maximum(p, 0), size - 1) for p, size in zip(places, sizes, strict=True)], None)]

    return accumulate_taps(value_of(node.args[0], symbol_table), meta.dtype, meta.shape, spatial, nearest)
