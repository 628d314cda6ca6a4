"""The memory layout of each tensor, and transposes, reshapes, slices and copies of tensors in other layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.passes.kernels.access import move_unit_dims, permutation_of, reassociation

Order = tuple[int, ...]  # dim `i` in memory, from the outermost, is dim `order[i]` of the original tensor


def identity_order(rank: int) -> Order:
    """Returns the order of the original layout."""
    return tuple(range(rank))


def rank_of(value: ir.Value) -> int:
    return len(value.type.shape)


@dataclass
class ValueLayouts:
    """The layouts of the values of one function.

    `tracked` has the layout of each value that depends on a convolution, even if this is the original layout: a
    transpose of such a value changes its layout and copies nothing. The type of a value has its dims in the order of
    its layout. All other values have the original layout. `on_transpose` is called with each value that a new op
    transposes, and its new layout.
    """

    on_transpose: Callable[[Any, Order], None]
    tracked: dict[Any, Order] = field(default_factory=dict)
    _copies: dict[tuple[ir.Value, Order], ir.Value] = field(default_factory=dict)

    def order_of(self, value: ir.Value) -> Order:
        """Returns the layout of `value`."""
        return self.tracked.get(value) or identity_order(rank_of(value))

    def is_permuted(self, value: ir.Value) -> bool:
        """True if `value` has another layout than the original one."""
        return self.order_of(value) != identity_order(rank_of(value))

    def is_tracked(self, value: ir.Value) -> bool:
        """True if `value` depends on a convolution."""
        return value in self.tracked

    def track(self, value: ir.Value, order: Order) -> ir.Value:
        """Records that `value` depends on a convolution and has the layout `order`; returns `value`."""
        self.tracked[value] = order
        return value

    def in_order(self, value: ir.Value, order: Order) -> ir.Value:
        """Returns `value` if it has the layout `order`, otherwise a copy in this layout, inserted after `value`."""
        if self.order_of(value) == order:
            return value
        if (value, order) not in self._copies:
            with _insertion_point_after(value), value.location:
                self._copies[value, order] = self.track(self._copy(value, order), order)
        return self._copies[value, order]

    def in_original_order(self, value: ir.Value) -> ir.Value:
        """Returns `value` in the original layout, as `in_order` does."""
        return self.in_order(value, identity_order(rank_of(value)))

    def _copy(self, value: ir.Value, order: Order) -> ir.Value:
        """Emits `value` in the layout `order`: as a new splat, as a reshape, or, if necessary, as a transpose."""
        old = self.order_of(value)
        permutation = [old.index(dim) for dim in order]
        shape = [value.type.shape[p] for p in permutation]
        recreated = _recreate(value, shape)
        if recreated is not None:
            return recreated
        non_unit_dims = [p for p in permutation if value.type.shape[p] != 1]
        if non_unit_dims == sorted(non_unit_dims):
            return move_unit_dims(value, shape)
        self.on_transpose(value, order)
        return linalg.transpose(
            value, outs=[tensor.empty(shape, value.type.element_type)], permutation=permutation
        ).results[0]


def _recreate(value: ir.Value, shape: Sequence[int]) -> ir.Value | None:
    """Emits a tensor like `value` in another shape, if all elements are equal or undefined; else returns `None`."""
    producer = value.owner.name if isinstance(value, ir.OpResult) else ""
    if producer not in ("tensor.empty", "linalg.fill"):
        return None
    empty = tensor.empty(list(shape), value.type.element_type)
    return empty if producer == "tensor.empty" else linalg.fill(value.owner.operands[0], outs=[empty])


def _insertion_point_after(value: ir.Value) -> ir.InsertionPoint:
    """Returns the insertion point after the definition of `value`."""
    if isinstance(value, ir.BlockArgument):
        return ir.InsertionPoint.at_block_begin(value.owner)
    return ir.InsertionPoint.after(value.owner)


def relayout_transpose(op: ir.Operation, layouts: ValueLayouts) -> bool:
    """Replaces a transpose by its source with another layout: the memory is the same."""
    source = op.operands[0]
    permutation = permutation_of(op)
    order = tuple(permutation.index(dim) for dim in layouts.order_of(source))
    # The source keeps its layout for its other uses: a cast to the same type creates a separate value.
    value = tensor.cast(source.type, source)
    _replace(op, layouts, value, order)
    return True


def relayout_expand(op: ir.Operation, layouts: ValueLayouts) -> bool:
    """Expands the source in its layout: the dims that a dim is split into take its position."""
    source, groups = op.operands[0], reassociation(op)
    source_order = layouts.order_of(source)
    order = tuple(dim for source_dim in source_order for dim in groups[source_dim])
    shape = [op.results[0].type.shape[dim] for dim in order]
    type_ = ir.RankedTensorType.get(shape, source.type.element_type)
    expanded = tensor.expand_shape(type_, source, _runs(groups, source_order), [], shape)
    _replace(op, layouts, expanded, order)
    return True


def relayout_collapse(op: ir.Operation, layouts: ValueLayouts) -> bool:
    """Collapses the source in its layout; unit dims are moved for this.

    Returns `False` if the dims of a group, apart from unit dims, are not adjacent and in order in memory.
    """
    source, groups = op.operands[0], reassociation(op)
    source_order = layouts.order_of(source)
    non_unit_dims = [dim for dim, size in zip(source_order, source.type.shape, strict=True) if size != 1]

    def position(group: Sequence[int]) -> int:
        """Returns the position of the group's first non-unit dim; groups of unit dims are before all others."""
        first = source_order.index(group[0]) - len(source_order)
        return min((i for i, dim in enumerate(non_unit_dims) if dim in group), default=first)

    order = tuple(sorted(range(len(groups)), key=lambda number: position(groups[number])))
    grouped_order = tuple(dim for number in order for dim in groups[number])
    if [dim for dim in grouped_order if dim in non_unit_dims] != non_unit_dims:
        return False
    source = layouts.in_order(source, grouped_order)
    shape = [op.results[0].type.shape[number] for number in order]
    type_ = ir.RankedTensorType.get(shape, source.type.element_type)
    _replace(op, layouts, tensor.collapse_shape(type_, source, _runs(groups, order)), order)
    return True


def _runs(groups: Sequence[Sequence[int]], order: Order) -> list[list[int]]:
    """Returns the reassociation of the dims in memory: one run of consecutive dims for each group, in `order`."""
    runs, start = [], 0
    for number in order:
        runs.append(list(range(start, start + len(groups[number]))))
        start += len(groups[number])
    return runs


def relayout_insert(op: ir.Operation, layouts: ValueLayouts) -> bool:
    """Gives a slice and the tensor that it is inserted into the same layout.

    Returns `False` if the slice drops dims or sizes are dynamic.
    """
    source, target, *dynamic = op.operands
    if dynamic or len(source.type.shape) != len(target.type.shape):
        return False
    order = layouts.order_of(target) if layouts.is_permuted(target) else layouts.order_of(source)
    operands = layouts.in_order(source, order), layouts.in_order(target, order)
    _replace(op, layouts, tensor.insert_slice(*operands, [], [], [], *_bounds(op, order)), order)
    return True


def relayout_extract(op: ir.Operation, layouts: ValueLayouts) -> bool:
    """Gives a slice the layout of its source; returns `False` if dims are dropped or sizes are dynamic."""
    source, *dynamic = op.operands
    if dynamic or len(source.type.shape) != len(op.results[0].type.shape):
        return False
    order = layouts.order_of(source)
    bounds = _bounds(op, order)
    type_ = ir.RankedTensorType.get(bounds[1], source.type.element_type)
    _replace(op, layouts, tensor.extract_slice(type_, source, [], [], [], *bounds), order)
    return True


def _bounds(op: ir.Operation, order: Order) -> list[list[int]]:
    """Returns offsets, sizes and strides of a slice op, in `order`."""
    names = ("static_offsets", "static_sizes", "static_strides")
    bounds = [list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in names]
    return [[values[dim] for dim in order] for values in bounds]


def _replace(op: ir.Operation, layouts: ValueLayouts, value: ir.Value, order: Order) -> None:
    """Replaces the result of `op` by `value`, which has the layout `order`."""
    layouts.track(value, order)
    op.results[0].replace_all_uses_with(value)


# The function that rewrites an op to the layout of its operands; it returns `False`, without a change, if it cannot.
RELAYOUTS = {
    "linalg.transpose": relayout_transpose,
    "tensor.expand_shape": relayout_expand,
    "tensor.collapse_shape": relayout_collapse,
    "tensor.insert_slice": relayout_insert,
    "tensor.extract_slice": relayout_extract,
}
