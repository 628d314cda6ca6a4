"""Describes memrefs as a flat buffer with a stride per loop, merges loops, and views buffers in other shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, memref, tensor
from buddy.compiler.mlir.walk import bytes_of


class UnsupportedError(Exception):
    """The code generator does not support the op; the text is the reason, which a remark shows."""


@dataclass(frozen=True)
class MemrefLayout:
    """Shape and strides of a memref, all static; `offset` is `None` if it is dynamic."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int | None

    @property
    def span(self) -> int:
        """The number of elements from the first to the last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


def layout_of(type_: Any) -> MemrefLayout:
    """Returns the layout of a memref type.

    Raises `UnsupportedError` for dynamic shapes or strides.
    """
    if not isinstance(type_, ir.MemRefType):
        raise UnsupportedError(f"operand of type {type_} is not a memref")
    if not type_.has_static_shape:
        raise UnsupportedError(f"dynamic shape {type_}")
    if 0 in type_.shape:
        return MemrefLayout(
            tuple(type_.shape), (0,) * len(type_.shape), 0
        )  # MLIR reports no strides for an empty memref
    strides, offset = type_.get_strides_and_offset()
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    if dynamic in strides or any(stride < 0 for stride in strides):
        raise UnsupportedError(f"strides of {type_} are not known")
    return MemrefLayout(tuple(type_.shape), tuple(strides), None if offset == dynamic else offset)


def flatten(value: Any) -> Any:
    """Returns `value` as a 1-D memref of unit stride from its first element; emitted at the insertion point."""
    type_ = value.type
    layout = layout_of(type_)
    if layout.strides == (1,):
        return value
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    offset = dynamic if layout.offset is None else layout.offset
    offsets = [memref.ExtractStridedMetadataOp(value).results[1]] if layout.offset is None else []
    return memref.reinterpret_cast(flat_type(type_), value, offsets, [], [], [offset], [layout.span], [1])


def flat_type(type_: Any) -> Any:
    """Returns the type of `flatten`'s result for a memref of `type_`."""
    layout = layout_of(type_)
    mark = "" if layout.offset == 0 else f", strided<[1], offset: {'?' if layout.offset is None else layout.offset}>"
    space = f", {type_.memory_space}" if type_.memory_space is not None else ""
    return ir.Type.parse(f"memref<{layout.span}x{type_.element_type}{mark}{space}>")


@dataclass(frozen=True)
class Loop:
    """One loop of a structured op: its size, the stride of each operand (0 if constant), whether it is a reduction.

    `dims` are the dims of the op's iteration space that were merged into it.
    """

    size: int
    strides: tuple[int, ...]
    reduction: bool
    dims: tuple[int, ...]
    used: tuple[bool, ...]


def loops_of(
    sizes: Sequence[int], reductions: Sequence[bool], maps: Sequence[Any], layouts: Sequence[MemrefLayout]
) -> list[Loop]:
    """Returns the loops of an op whose operands are indexed by linear combinations of loops, given by `maps`.

    Raises `UnsupportedError` for other maps.
    """
    strides = [[0] * len(sizes) for _ in maps]
    used = [[False] * len(sizes) for _ in maps]
    for operand, (map_, layout) in enumerate(zip(maps, layouts, strict=True)):
        for expression, stride in zip(map_.results, layout.strides, strict=True):
            for loop, factor in _terms(expression):
                strides[operand][loop] += stride * factor
                used[operand][loop] = True
    return [
        Loop(size, tuple(s[d] for s in strides), reductions[d], (d,), tuple(u[d] for u in used))
        for d, size in enumerate(sizes)
    ]


def _terms(expression: Any) -> list[tuple[int, int]]:
    """Returns (loop, factor) for each term of a linear index such as `2 * h + kh`."""
    if isinstance(expression, ir.AffineDimExpr):
        return [(expression.position, 1)]
    if isinstance(expression, ir.AffineAddExpr):
        return [*_terms(expression.lhs), *_terms(expression.rhs)]
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        return [(loop, factor * expression.rhs.value) for loop, factor in _terms(expression.lhs)]
    if isinstance(expression, ir.AffineConstantExpr) and expression.value == 0:
        return []
    raise UnsupportedError(f"index {expression} is not a sum of loop indices")


def loop_sizes(dims: int, maps: Sequence[Any], layouts: Sequence[MemrefLayout]) -> list[int]:
    """Returns the size of each of `dims` loops, from the operands' shapes.

    Raises `UnsupportedError` if no operand determines it.
    """
    sizes: list[int | None] = [None] * dims
    for map_, layout in zip(maps, layouts, strict=True):
        for expression, size in zip(map_.results, layout.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    known = [size for size in sizes if size is not None]
    if len(known) != dims:
        raise UnsupportedError("a loop's size does not follow from the operands' shapes")
    return known


def merge(loops: Sequence[Loop], keep: frozenset[int] = frozenset()) -> list[Loop]:
    """Merges neighbouring loops that are contiguous in every operand, and drops loops of size 1.

    Loops over a dim in `keep` are not merged (a body that reads its index needs it).
    """
    merged: list[Loop] = []
    for loop in loops:
        if loop.size == 1 and not keep.intersection(loop.dims):
            continue
        if merged and not keep.intersection(loop.dims + merged[-1].dims) and _continues(merged[-1], loop):
            outer = merged.pop()
            loop = replace(loop, size=outer.size * loop.size, dims=outer.dims + loop.dims)
        merged.append(loop)
    return merged


def _continues(outer: Loop, inner: Loop) -> bool:
    return (
        outer.reduction == inner.reduction
        and outer.used == inner.used
        and all(a == b * inner.size for a, b in zip(outer.strides, inner.strides, strict=True))
    )


def byte_type(size: int) -> Any:
    return ir.MemRefType.get([size], ir.IntegerType.get_signless(8))


def part(memory: Any, offset: int, type_: Any) -> Any:
    """Returns the memref of `type_` at a byte offset of the bytes `memory`; emitted at the insertion point."""
    return memref.ViewOp(type_, memory, arith.constant(ir.IndexType.get(), offset), []).result


def as_bytes(function: Any, argument: Any) -> Any:
    """Makes `argument` a memref of bytes, and replaces its uses by a view; the caller's pointer is unchanged."""
    kind, signature = argument.type, ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    inputs = list(signature.inputs)
    inputs[argument.arg_number] = byte_type(bytes_of(kind))
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, signature.results))
    argument.set_type(inputs[argument.arg_number])
    with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), function.location:
        view = part(argument, 0, kind)
    argument.replace_all_uses_except(view, view.owner.operation)
    return argument


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
