"""Reshapes that only add, drop or move dims of size 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir, tensor

_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


def through_unit_reshapes(value: Any, map_: Any) -> tuple[Any, Any]:
    """Returns the source of the unit reshapes of `value`, and the map that reads it as `map_` reads `value`."""
    while isinstance(value, ir.OpResult) and value.owner.name in _RESHAPES:
        results = _source_indices(value, list(map_.results))
        if results is None:
            break
        value, map_ = value.owner.operands[0], ir.AffineMap.get(map_.n_dims, 0, results)
    return value, map_


def with_unit_dims_moved(value: Any, shape: Sequence[int]) -> Any:
    """Returns the tensor `value` in a `shape` that has the same dims, except those of size 1, in the same order."""
    old = list(value.type.shape)
    if old == list(shape):
        return value
    sizes = [size for size in old if size != 1]
    if sizes != old:
        value = tensor.collapse_shape(_tensor(sizes, value), value, groups_without(old, _unit_dims(old)))
    if sizes != list(shape):
        groups = groups_without(shape, _unit_dims(shape))
        value = tensor.expand_shape(_tensor(shape, value), value, groups, [], list(shape))
    return value


def _unit_dims(shape: Sequence[int]) -> list[int]:
    return [dim for dim, size in enumerate(shape) if size == 1]


def _tensor(shape: Sequence[int], like: Any) -> Any:
    return ir.RankedTensorType.get(list(shape), like.type.element_type)


def groups_without(shape: Sequence[int], dims: Sequence[int]) -> list[list[int]]:
    """Returns the dims of `shape` in one group per remaining dim; those in `dims` join a neighbour."""
    groups: list[list[int]] = []
    waiting: list[int] = []
    for dim in range(len(shape)):
        if dim not in dims:
            groups.append([*waiting, dim])
            waiting = []
        elif groups:
            groups[-1].append(dim)
        else:
            waiting.append(dim)
    return groups


def _source_indices(value: Any, indices: list[Any]) -> list[Any] | None:
    """Returns the indices into the source of a reshape, or `None` if it changes other dims than unit dims."""
    groups = reassociation(value.owner)
    source = list(value.owner.operands[0].type.shape)
    if value.owner.name == "tensor.expand_shape":
        chosen = [_moving_dim(group, value.type.shape) for group in groups]
        return None if None in chosen else [indices[dim] for dim in chosen if dim is not None]
    found: list[Any] = [ir.AffineConstantExpr.get(0)] * len(source)
    for group, index in zip(groups, indices, strict=True):
        dim = _moving_dim(group, source)
        if dim is None:
            return None
        found[dim] = index
    return found


def reassociation(op: Any) -> list[list[int]]:
    """Returns the groups of dims of a reshape op."""
    return [[_integer(dim) for dim in ir.ArrayAttr(group)] for group in ir.ArrayAttr(op.attributes["reassociation"])]


def _moving_dim(group: list[Any], shape: Any) -> int | None:
    """Returns the only dim of `group` that is not 1 (the first if all are), or `None` if there are several."""
    moving = [dim for dim in group if shape[dim] != 1]
    return None if len(moving) > 1 or not group else (moving or group)[0]


def _integer(attribute: Any) -> int:
    return int(ir.IntegerAttr(attribute).value)
