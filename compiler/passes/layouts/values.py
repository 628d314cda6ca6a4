"""The memory layout of each tensor, and copies of tensors in other layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.passes.kernels.reshapes import with_unit_dims_moved

Order = tuple[int, ...]  # dim `i` in memory is dim `order[i]` of the original tensor


def natural(rank: int) -> Order:
    return tuple(range(rank))


def rank_of(value: Any) -> int:
    return len(value.type.shape)


@dataclass
class ValueLayouts:
    """The layouts of the values of one function; values that are not `known` have the original layout.

    The known values are results of convolutions and of ops that depend on them, whatever their layout: a transpose of
    such a value changes its layout and copies nothing. The type of a known value is that of its layout. `changed` is
    called with each transpose that is emitted.
    """

    changed: Callable[[Any, Order], None]
    known: dict[Any, Order] = field(default_factory=dict)
    _copies: dict[tuple[Any, Order], Any] = field(default_factory=dict)

    def order(self, value: Any) -> Order:
        return self.known.get(value) or natural(rank_of(value))

    def is_permuted(self, value: Any) -> bool:
        """True if `value` has another layout than the original one."""
        return self.order(value) != natural(rank_of(value))

    def follows(self, value: Any) -> bool:
        """True if `value` depends on a convolution."""
        return value in self.known

    def put(self, value: Any, order: Order) -> Any:
        """Records that `value` has the layout `order`."""
        self.known[value] = order
        return value

    def ordered(self, value: Any, order: Order) -> Any:
        """Returns `value` in `order`: itself, or a copy that is inserted after it."""
        if self.order(value) == order:
            return value
        if (value, order) not in self._copies:
            place = _insertion_point_after(value)
            with place, value.location:
                self._copies[value, order] = self.put(self._copy(value, order), order)
        return self._copies[value, order]

    def plain(self, value: Any) -> Any:
        """Returns `value` in the original layout."""
        return self.ordered(value, natural(rank_of(value)))

    def _copy(self, value: Any, order: Order) -> Any:
        old = self.order(value)
        permutation = [old.index(dim) for dim in order]
        shape = [value.type.shape[p] for p in permutation]
        made = _recreate(value, shape)
        if made is not None:
            return made
        moving = [p for p in permutation if value.type.shape[p] != 1]
        if moving == sorted(moving):
            return with_unit_dims_moved(value, shape)
        self.changed(value, order)
        return linalg.transpose(
            value, outs=[tensor.empty(shape, value.type.element_type)], permutation=permutation
        ).results[0]


def _recreate(value: Any, shape: Sequence[int]) -> Any | None:
    """Returns `value` in another shape, if it is a splat or empty tensor; otherwise `None`."""
    maker = value.owner.name if isinstance(value, ir.OpResult) else ""
    if maker not in ("tensor.empty", "linalg.fill"):
        return None
    made = tensor.empty(list(shape), value.type.element_type)
    return made if maker == "tensor.empty" else linalg.fill(value.owner.operands[0], outs=[made])


def _insertion_point_after(value: Any) -> Any:
    """Returns the insertion point after the definition of `value`."""
    if isinstance(value, ir.BlockArgument):
        return ir.InsertionPoint.at_block_begin(value.owner)
    return ir.InsertionPoint.after(value.owner)
