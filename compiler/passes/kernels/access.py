"""The layouts of memrefs, the loops of structured ops with a stride per operand, and views and reshapes of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from buddy.compiler.mlir.bindings import arith, ir, memref, tensor
from buddy.compiler.mlir.walk import bytes_of
from buddy.compiler.protocol.errors import BuddyError

SizeAndStride = tuple[int, int]  # size of a loop, and an operand's stride along it, in elements


class UnsupportedError(BuddyError):
    """A pass or its kernel generator does not support an op; the text is the reason, which a remark shows."""


# ---- layouts of memrefs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemrefLayout:
    """Shape and strides of a memref, all static; `offset` is `None` if it is dynamic."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int | None

    @property
    def span(self) -> int:
        """Returns the number of elements from the first to the last one, including gaps."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


def layout_of(type_: ir.Type) -> MemrefLayout:
    """Returns the layout of a memref type.

    Raises `UnsupportedError` for a type that is not a memref, for dynamic shapes or strides, and for negative strides.
    """
    if not isinstance(type_, ir.MemRefType):
        raise UnsupportedError(f"operand of type {type_} is not a memref")
    if not type_.has_static_shape:
        raise UnsupportedError(f"dynamic shape {type_}")
    if 0 in type_.shape:
        # MLIR reports no strides for an empty memref.
        return MemrefLayout(tuple(type_.shape), (0,) * len(type_.shape), 0)
    strides, offset = type_.get_strides_and_offset()
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    if dynamic in strides or any(stride < 0 for stride in strides):
        raise UnsupportedError(f"dynamic or negative strides in {type_}")
    return MemrefLayout(tuple(type_.shape), tuple(strides), None if offset == dynamic else offset)


def flatten(value: ir.Value) -> ir.Value:
    """Emits a view of the memref `value` as a 1-D memref of unit stride from its first element."""
    type_ = value.type
    layout = layout_of(type_)
    if layout.strides == (1,):
        return value
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    offset = dynamic if layout.offset is None else layout.offset
    offsets = [memref.ExtractStridedMetadataOp(value).results[1]] if layout.offset is None else []
    return memref.reinterpret_cast(flat_type(type_), value, offsets, [], [], [offset], [layout.span], [1])


def subrange(flat: ir.Value, offset: ir.Value, size: int) -> ir.Value:
    """Emits a view of `size` elements of the 1-D memref `flat`, from `offset` on."""
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    type_ = ir.Type.parse(f"memref<{size}x{flat.type.element_type}, strided<[1], offset: ?>>")
    return memref.reinterpret_cast(type_, flat, [offset], [], [], [dynamic], [size], [1])


def flat_type(type_: ir.Type) -> ir.Type:
    """Returns the type of `flatten`'s result for a memref of `type_`."""
    layout = layout_of(type_)
    offset = "?" if layout.offset is None else str(layout.offset)
    strided = "" if layout.offset == 0 else f", strided<[1], offset: {offset}>"
    space = f", {type_.memory_space}" if type_.memory_space is not None else ""
    return ir.Type.parse(f"memref<{layout.span}x{type_.element_type}{strided}{space}>")


def is_used(value: ir.Value) -> bool:
    """True if an op uses `value`."""
    return any(True for _ in value.uses)


# ---- loops of structured ops -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """One loop of a structured op: its size, each operand's stride along it, and whether it is a reduction.

    A stride, in elements, is 0 for an operand that does not vary along the loop. `dims` are the dims of the op's
    iteration space that were merged into the loop. `used` says for each operand whether the loop indexes it; the stride
    may be 0 even then.
    """

    size: int
    strides: tuple[int, ...]
    reduction: bool
    dims: tuple[int, ...]
    used: tuple[bool, ...]


def loops_of(
    sizes: Sequence[int],
    reductions: Sequence[bool],
    maps: Sequence[ir.AffineMap],
    layouts: Sequence[MemrefLayout],
    allow_constants: bool = False,
) -> list[Loop]:
    """Returns the loops of an op whose operands are indexed by linear combinations of loops, given by `maps`.

    With `allow_constants`, indices may have a constant term, as the index of a reversed dim has; `start_offsets`
    returns the offsets that follow from such terms. Raises `UnsupportedError` if an index is not a linear combination
    of loops.
    """
    strides = [[0] * len(sizes) for _ in maps]
    used = [[False] * len(sizes) for _ in maps]
    for operand, (map_, layout) in enumerate(zip(maps, layouts, strict=True)):
        for expression, stride in zip(map_.results, layout.strides, strict=True):
            terms, constant = _terms(expression)
            if constant and not allow_constants:
                raise UnsupportedError(f"index {expression} has a constant term")
            for loop, factor in terms:
                strides[operand][loop] += stride * factor
                used[operand][loop] = True
    # From one list per operand to one tuple per loop.
    strides_by_loop, used_by_loop = zip(*strides, strict=True), zip(*used, strict=True)
    return [
        Loop(size, loop_strides, is_reduction, (dim,), loop_used)
        for dim, (size, is_reduction, loop_strides, loop_used) in enumerate(
            zip(sizes, reductions, strides_by_loop, used_by_loop, strict=True)
        )
    ]


def start_offsets(maps: Sequence[ir.AffineMap], layouts: Sequence[MemrefLayout]) -> tuple[int, ...]:
    """Returns the offset of the element of each operand that the first iteration of all loops reads or writes."""
    return tuple(
        sum(_terms(expression)[1] * stride for expression, stride in zip(map_.results, layout.strides, strict=True))
        for map_, layout in zip(maps, layouts, strict=True)
    )


def _terms(expression: ir.AffineExpr) -> tuple[list[tuple[int, int]], int]:
    """Returns (loop, factor) for each term of a linear index such as `2 * h + kh`, and the constant term.

    Raises `UnsupportedError` for another index.
    """
    if isinstance(expression, ir.AffineDimExpr):
        return [(expression.position, 1)], 0
    if isinstance(expression, ir.AffineAddExpr):
        (left, first), (right, second) = _terms(expression.lhs), _terms(expression.rhs)
        return [*left, *right], first + second
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        (terms, constant), multiplier = _terms(expression.lhs), expression.rhs.value
        return [(loop, factor * multiplier) for loop, factor in terms], constant * multiplier
    if isinstance(expression, ir.AffineConstantExpr):
        return [], expression.value
    raise UnsupportedError(f"index {expression} is not a sum of loop indices")


def loop_sizes(dims: int, maps: Sequence[ir.AffineMap], layouts: Sequence[MemrefLayout]) -> list[int]:
    """Returns the size of each of `dims` loops, from the operands' shapes.

    Raises `UnsupportedError` if a loop does not index a dim of an operand alone.
    """
    sizes: list[int | None] = [None] * dims
    for map_, layout in zip(maps, layouts, strict=True):
        for expression, size in zip(map_.results, layout.shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    known_sizes = [size for size in sizes if size is not None]
    if len(known_sizes) != dims:
        raise UnsupportedError("a loop's size does not follow from the operands' shapes")
    return known_sizes


def merge_loops(loops: Sequence[Loop], unmerged_dims: frozenset[int] = frozenset()) -> list[Loop]:
    """Merges neighbouring loops that are contiguous in every operand, and drops loops of size 1.

    Loops over a dim in `unmerged_dims` stay as they are, such as a dim whose index the body reads.
    """
    merged: list[Loop] = []
    for loop in loops:
        if loop.size == 1 and not unmerged_dims.intersection(loop.dims):
            continue
        can_merge = not unmerged_dims.intersection(loop.dims + (merged[-1].dims if merged else ()))
        if merged and can_merge and _are_contiguous(merged[-1], loop):
            outer = merged.pop()
            loop = replace(loop, size=outer.size * loop.size, dims=outer.dims + loop.dims)
        merged.append(loop)
    return merged


def _are_contiguous(outer: Loop, inner: Loop) -> bool:
    """True if one loop can replace `outer` and `inner`: a step of `outer` is `inner.size` steps of `inner`."""
    return (
        outer.reduction == inner.reduction
        and outer.used == inner.used
        and all(a == b * inner.size for a, b in zip(outer.strides, inner.strides, strict=True))
    )


def row_major_strides(sizes: Sequence[int], stride: int) -> list[int]:
    """Returns row-major strides over `sizes` with `stride` as the last one."""
    strides: list[int] = []
    for size in reversed(sizes):
        strides.insert(0, stride)
        stride *= size
    return strides


# ---- buffers of bytes ------------------------------------------------------------------------------------------------


def byte_type(size: int) -> ir.Type:
    """Returns the type of a buffer of `size` bytes."""
    return ir.MemRefType.get([size], ir.IntegerType.get_signless(8))


def byte_view(memory: ir.Value, offset: int, type_: ir.Type) -> ir.Value:
    """Emits a view of the bytes `memory` from byte `offset` on, as a memref of `type_`."""
    return memref.ViewOp(type_, memory, arith.constant(ir.IndexType.get(), offset), []).result


def retype_as_bytes(function: ir.Operation, argument: ir.BlockArgument) -> ir.Value:
    """Makes `argument` a memref of bytes, and replaces its uses by a view of the old type; returns `argument`.

    Callers pass the same pointer as before.
    """
    type_, signature = argument.type, ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    inputs = list(signature.inputs)
    inputs[argument.arg_number] = byte_type(bytes_of(type_))
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, signature.results))
    argument.set_type(inputs[argument.arg_number])
    with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]), function.location:
        view = byte_view(argument, 0, type_)
    argument.replace_all_uses_except(view, view.owner.operation)
    return argument


# ---- reshapes that add or drop unit dims -----------------------------------------------------------------------------

_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


def skip_unit_reshapes(value: ir.Value, map_: ir.AffineMap) -> tuple[ir.Value, ir.AffineMap]:
    """Skips the reshapes before `value` that only add or drop unit dims.

    Returns their source, and the map that reads of the source what `map_` reads of `value`.
    """
    while isinstance(value, ir.OpResult) and value.owner.name in _RESHAPES:
        results = _source_indices(value, list(map_.results))
        if results is None:
            break
        value, map_ = value.owner.operands[0], ir.AffineMap.get(map_.n_dims, 0, results)
    return value, map_


def move_unit_dims(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Emits a reshape of the tensor `value` to `shape`, which differs only in the positions of unit dims."""
    old = list(value.type.shape)
    if old == list(shape):
        return value
    sizes = [size for size in old if size != 1]
    if sizes != old:
        value = tensor.collapse_shape(_tensor_type(sizes, value), value, reassociation_without(old, _unit_dims(old)))
    if sizes != list(shape):
        groups = reassociation_without(shape, _unit_dims(shape))
        value = tensor.expand_shape(_tensor_type(shape, value), value, groups, [], list(shape))
    return value


def _unit_dims(shape: Sequence[int]) -> list[int]:
    return [dim for dim, size in enumerate(shape) if size == 1]


def _tensor_type(shape: Sequence[int], value: ir.Value) -> ir.Type:
    """Returns the tensor type of `shape` with the elements of `value`."""
    return ir.RankedTensorType.get(list(shape), value.type.element_type)


def reassociation_without(shape: Sequence[int], dims: Sequence[int]) -> list[list[int]]:
    """Returns the reassociation of a reshape that drops the unit dims `dims` of `shape`.

    There is a group for each remaining dim. A dim in `dims` joins the group of the remaining dim before it, or the
    first group.
    """
    groups: list[list[int]] = []
    leading_dims: list[int] = []
    for dim in range(len(shape)):
        if dim not in dims:
            groups.append([*leading_dims, dim])
            leading_dims = []
        elif groups:
            groups[-1].append(dim)
        else:
            leading_dims.append(dim)
    return groups


def _source_indices(value: ir.Value, indices: list[ir.AffineExpr]) -> list[ir.AffineExpr] | None:
    """Returns the indices into the source of the reshape `value` that correspond to `indices` into `value`.

    Returns `None` if the reshape changes other dims than unit dims.
    """
    groups = reassociation(value.owner)
    source_shape = list(value.owner.operands[0].type.shape)
    if value.owner.name == "tensor.expand_shape":
        dims = [_non_unit_dim(group, value.type.shape) for group in groups]
        return None if None in dims else [indices[dim] for dim in dims if dim is not None]
    source_indices: list[ir.AffineExpr] = [ir.AffineConstantExpr.get(0)] * len(source_shape)
    for group, index in zip(groups, indices, strict=True):
        dim = _non_unit_dim(group, source_shape)
        if dim is None:
            return None
        source_indices[dim] = index
    return source_indices


def reassociation(op: ir.Operation) -> list[list[int]]:
    """Returns the groups of dims of a reshape op."""
    return [[_integer(dim) for dim in ir.ArrayAttr(group)] for group in ir.ArrayAttr(op.attributes["reassociation"])]


def permutation_of(transpose: ir.Operation) -> list[int]:
    """Returns the permutation of a `linalg.transpose`: dim `i` of the result is dim `permutation[i]` of the source."""
    return list(ir.DenseI64ArrayAttr(transpose.attributes["permutation"]))


def _non_unit_dim(group: list[int], shape: list[int]) -> int | None:
    """Returns the only dim of `group` whose size is not 1; the first dim of the group if all sizes are 1.

    Returns `None` if several sizes are not 1, or if the group is empty.
    """
    non_unit_dims = [dim for dim in group if shape[dim] != 1]
    return None if len(non_unit_dims) > 1 or not group else (non_unit_dims or group)[0]


def _integer(attribute: ir.Attribute) -> int:
    return int(ir.IntegerAttr(attribute).value)
