"""Transposes, reshapes and slices of tensors in other layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir, tensor
from buddy.compiler.passes.kernels.reshapes import reassociation
from buddy.compiler.passes.layouts.values import Order, ValueLayouts


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
