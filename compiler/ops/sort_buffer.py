"""A row of keys with their positions, for sorting algorithms whose loops have a data-dependent length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.loop_state import LoopState
from buddy.compiler.ops.loops import element, insert, position
from buddy.compiler.ops.scalar import Scalar

Entry = tuple[Scalar, Scalar]
# True if the first of two keys must come before the second.
Order = Callable[[Scalar, Scalar], Scalar]


class SortBuffer(LoopState):
    """Row `row` of two loop-carried tensors [rows, n]: keys of `dtype` and their positions (i64).

    Algorithms may append further tensors.
    """

    def __init__(self, tensors: Sequence[Any], row: Any, dtype: TensorDType, order: Order) -> None:
        super().__init__(tensors)
        self.row, self.dtype, self.order = row, dtype, order

    def get(self, i: Any) -> Entry:
        at = [self.row, position(i)]
        return element(self.tensors[0], at, self.dtype), element(self.tensors[1], at, TensorDType.Int64)

    def put(self, i: Any, entry: Entry) -> None:
        at = [self.row, position(i)]
        self.tensors[:2] = [insert(x, at, tensor) for x, tensor in zip(entry, self.tensors[:2], strict=True)]

    def swap(self, i: Any, j: Any) -> None:
        left, right = self.get(i), self.get(j)
        self.put(i, right)
        self.put(j, left)

    def before(self, i: Any, j: Any) -> Scalar:
        """True if the key at `i` must come before the key at `j`."""
        return self.order(self.get(i)[0], self.get(j)[0])
