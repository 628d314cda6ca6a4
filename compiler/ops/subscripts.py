"""Subscripts by index tensors, as in `x[i, :, j]`: maps elements of the result to positions in `x`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import within
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of


@dataclass(frozen=True)
class Subscripts:
    """Index `tensors`, of element types `types`, for the dims `chosen` of a tensor of shape `source`.

    `shape` is the shape that is read or written, and `dims` are the loops over it that each index tensor reads.
    `loops[axis]` is the loop along an axis that is not indexed, else `None`.
    """

    tensors: tuple[Any, ...]
    types: tuple[TensorDType, ...]
    chosen: tuple[int, ...]
    source: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[tuple[int | None, ...], ...]
    loops: tuple[int | None, ...]

    def place(self, elements: Sequence[Any], at: Sequence[Any]) -> list[Any]:
        """Returns the position in the source of the element at `at`; `elements` are the indices there."""
        indices = map(Scalar, elements, self.types)
        found = {
            axis: within(index, self.source[axis], wraps=True)
            for axis, index in zip(self.chosen, indices, strict=False)
        }
        return [found[axis] if loop is None else at[loop] for axis, loop in enumerate(self.loops)]

    def sized(self, listed: Sequence[Op | None]) -> list[tuple[Op, int]]:
        """Returns the index tensors among the subscripts, each with the size of the dim that it indexes."""
        return [(op, self.source[axis]) for axis, op in enumerate(listed) if op is not None]


def subscripts_of(source: Sequence[int], listed: Sequence[Op | None], symbol_table: SymbolTable) -> Subscripts:
    """Returns the subscripts `listed` of a tensor of shape `source`.

    As in NumPy, the dims that the indices broadcast to replace the indexed dims, or come first if a slice separates
    these. Raises `LoweringError` for masks, for which the size of the result is unknown at compile time.
    """
    if any(item is not None and is_mask(item) for item in listed):
        raise LoweringError("the size of the result of a mask depends on data")
    chosen = [axis for axis, item in enumerate(listed) if item is not None]
    indices = [listed[axis] for axis in chosen]
    shapes = [op.tensor_meta.shape for op in indices if op is not None]
    block = broadcast_shape(shapes)
    first = chosen[0] if chosen[-1] - chosen[0] == len(chosen) - 1 else 0
    kept = [axis for axis in range(len(source)) if axis not in chosen]
    before, after = kept[:first], kept[first:]
    shape = [*(source[axis] for axis in before), *block, *(source[axis] for axis in after)]
    order = [*before, *[None] * len(block), *after]
    loops = [order.index(axis) if axis in kept else None for axis in range(len(source))]
    tensors = [value_of(op, symbol_table) for op in indices]
    types = [op.tensor_meta.dtype for op in indices if op is not None]
    dims = [_shift_dims(st.broadcast_dims(st.shape_of(value), block), first) for value in tensors]
    return Subscripts(
        tuple(tensors), tuple(types), tuple(chosen), tuple(source), tuple(shape), tuple(dims), tuple(loops)
    )


def is_mask(item: Op) -> bool:
    return item.tensor_meta.dtype in (TensorDType.Bool, TensorDType.UInt8)


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Returns the shape that all of `shapes` broadcast to."""
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]


def _shift_dims(dims: Sequence[int | None], by: int) -> tuple[int | None, ...]:
    return tuple(None if dim is None else dim + by for dim in dims)
