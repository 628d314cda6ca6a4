"""The memory layout of each tensor, and transposes, reshapes, slices and copies of tensors in other layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.passes.kernels.access import reassociation, with_unit_dims_moved

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


def arrange_transpose(op: Any, layouts: ValueLayouts) -> bool:
    """Replaces a transpose of a moved tensor by the same tensor with another layout."""
    source = op.operands[0]
    permutation = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    order = tuple(permutation.index(dim) for dim in layouts.order(source))
    # The tensor may have other uses with its layout there: a cast to its own type creates a separate value.
    value = tensor.cast(source.type, source)
    _replace(op, layouts, value, order)
    return True


def arrange_expand(op: Any, layouts: ValueLayouts) -> bool:
    """Keeps the dims together that one dim is split into."""
    source, groups = op.operands[0], reassociation(op)
    order = tuple(dim for place in layouts.order(source) for dim in groups[place])
    shape = [op.results[0].type.shape[dim] for dim in order]
    type_ = ir.RankedTensorType.get(shape, source.type.element_type)
    wide = tensor.expand_shape(type_, source, _runs(groups, layouts.order(source)), [], shape)
    _replace(op, layouts, wide, order)
    return True


def arrange_collapse(op: Any, layouts: ValueLayouts) -> bool:
    """Collapses dims that are adjacent in memory, in order, except for unit dims; returns `False` for others."""
    source, groups = op.operands[0], reassociation(op)
    own = layouts.order(source)
    moving = [dim for dim, size in zip(own, source.type.shape, strict=True) if size != 1]
    places = {number: min((i for i, dim in enumerate(moving) if dim in group), default=own.index(group[0]) - len(own))
              for number, group in enumerate(groups)}  # fmt: skip
    order = tuple(sorted(range(len(groups)), key=lambda number: places[number]))
    wanted = tuple(dim for number in order for dim in groups[number])
    if [dim for dim in wanted if dim in moving] != moving:
        return False
    source = layouts.ordered(source, wanted)
    shape = [op.results[0].type.shape[number] for number in order]
    type_ = ir.RankedTensorType.get(shape, source.type.element_type)
    _replace(op, layouts, tensor.collapse_shape(type_, source, _runs(groups, order)), order)
    return True


def _runs(groups: Sequence[Sequence[int]], order: Order) -> list[list[int]]:
    """Returns `groups` in another layout, as runs of consecutive dims."""
    runs, start = [], 0
    for number in order:
        runs.append(list(range(start, start + len(groups[number]))))
        start += len(groups[number])
    return runs


def arrange_insert(op: Any, layouts: ValueLayouts) -> bool:
    """Gives a slice and the tensor that it is inserted into the same layout.

    Returns `False` if the slice drops dims or sizes are dynamic.
    """
    source, target, *dynamic = op.operands
    if dynamic or len(source.type.shape) != len(target.type.shape):
        return False
    order = layouts.order(target) if layouts.is_permuted(target) else layouts.order(source)
    operands = layouts.ordered(source, order), layouts.ordered(target, order)
    _replace(op, layouts, tensor.insert_slice(*operands, [], [], [], *_bounds(op, order)), order)
    return True


def arrange_extract(op: Any, layouts: ValueLayouts) -> bool:
    """Gives a slice the layout of its source; returns `False` if dims are dropped or sizes are dynamic."""
    source, *dynamic = op.operands
    if dynamic or len(source.type.shape) != len(op.results[0].type.shape):
        return False
    order = layouts.order(source)
    bounds = _bounds(op, order)
    type_ = ir.RankedTensorType.get(bounds[1], source.type.element_type)
    _replace(op, layouts, tensor.extract_slice(type_, source, [], [], [], *bounds), order)
    return True


def _bounds(op: Any, order: Order) -> list[list[int]]:
    """Returns offsets, sizes and strides of a slice op, in `order`."""
    names = ("static_offsets", "static_sizes", "static_strides")
    every = [list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in names]
    return [[numbers[dim] for dim in order] for numbers in every]


def _replace(op: Any, layouts: ValueLayouts, value: Any, order: Order) -> None:
    layouts.put(value, order)
    op.results[0].replace_all_uses_with(value)


ARRANGED = {
    "linalg.transpose": arrange_transpose,
    "tensor.expand_shape": arrange_expand,
    "tensor.collapse_shape": arrange_collapse,
    "tensor.insert_slice": arrange_insert,
    "tensor.extract_slice": arrange_extract,
}
