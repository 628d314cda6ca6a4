"""Reshapes that only add or drop dims of size 1, seen as changes of an indexing map."""

from __future__ import annotations

from typing import Any

from buddy.compiler.bindings import ir

_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


def through_unit_reshapes(value: Any, map_: Any) -> tuple[Any, Any]:
    """What `value` is a reshape of, and the map that reads it as `map_` reads `value`."""
    while isinstance(value, ir.OpResult) and value.owner.name in _RESHAPES:
        results = _source_indices(value, list(map_.results))
        if results is None:
            break
        value, map_ = value.owner.operands[0], ir.AffineMap.get(map_.n_dims, 0, results)
    return value, map_


def _source_indices(value: Any, indices: list[Any]) -> list[Any] | None:
    """The indices into the source of a reshape; `None` when more than unit dims come or go."""
    groups = [
        [_integer(dim) for dim in ir.ArrayAttr(group)]
        for group in ir.ArrayAttr(value.owner.attributes["reassociation"])
    ]
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


def _moving_dim(group: list[Any], shape: Any) -> int | None:
    """The only dim of `group` that is not 1 (the first one where all are); `None` when there are several."""
    moving = [dim for dim in group if shape[dim] != 1]
    return None if len(moving) > 1 or not group else (moving or group)[0]


def _integer(attribute: Any) -> int:
    return int(ir.IntegerAttr(attribute).value)
