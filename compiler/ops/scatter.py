"""Lowers writes by index: scatter, index_put, masks. Writes to the same element are applied in order, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations import FullOp
from buddy.compiler.graph.sizes import Dim, product, smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.indexing import (
    Subscripts,
    clamp_index,
    fall_back_if,
    fall_back_if_outside,
    is_mask,
    subscripts_of,
)
from buddy.compiler.ops.loops import element, for_each, index_to_scalar, insert, number, position
from buddy.compiler.ops.scalar import Combine, Scalar, cast
from buddy.compiler.ops.structured import accumulator_type, cast_tensor
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, argument, normalize_dim, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

# Values of type index.
Indices = Sequence[ir.Value]
# Maps the indices of the loops to the value to write in this iteration.
Reader = Callable[[Indices], Scalar]


def _replace(_old: Scalar, new: Scalar) -> Scalar:
    return new


# For each mode, the function that combines the old with the new value; a mode of "" replaces the old value.
_COMBINE: dict[str, Combine] = {
    "": _replace,
    "add": lambda old, new: old + new, "sum": lambda old, new: old + new, "mean": lambda old, new: old + new,
    "multiply": lambda old, new: old * new, "prod": lambda old, new: old * new,
    "amax": s.maximum, "amin": s.minimum,
}  # fmt: skip
# For each mode, the value that does not change a result: a function of the element type.
_NEUTRAL: dict[str, Callable[[TensorDType], int | float]] = {
    "sum": lambda _: 0, "mean": lambda _: 0, "prod": lambda _: 1,
    "amax": lambda dtype: s.limits(dtype)[0], "amin": lambda dtype: s.limits(dtype)[1],
}  # fmt: skip


class ScatterWrites:
    """One write per iteration of a loop nest with trip counts `extents`.

    `target_indices` maps the indices of the loops to the indices of the element that the iteration writes.
    """

    def __init__(self, extents: Sequence[Dim], target_indices: Callable[[Indices], Indices]) -> None:
        self.extents, self.target_indices = extents, target_indices

    def apply(self, target: ir.Value, dtype: TensorDType, read: Reader, combine: Combine) -> ir.Value:
        """Returns `target` after all writes, in order: each stores `combine(old element, read(indices))`."""

        def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
            (target,), target_indices = carried, self.target_indices(indices)
            new = combine(element(target, target_indices, dtype), cast(read(indices), dtype))
            return [insert(new, target_indices, target)]

        return target if 0 in self.extents else for_each(self.extents, [target], visit)[0]

    def reduce(
        self,
        target: ir.Value,
        dtype: TensorDType,
        read: Reader,
        mode: str,
        include_self: bool,
        wide: TensorDType | None = None,
    ) -> ir.Value:
        """Combines the written values by `mode`; with `include_self`, also the old elements.

        An element to which nothing is written keeps its value. `wide` is the accumulator type; `None` means that of
        `accumulator_type`, which is f32 for 16-bit floats, as in PyTorch, so that the result is rounded once.
        """
        wide = wide or accumulator_type(dtype)
        shape = st.shape_of(target)
        start = cast_tensor(target, dtype, wide)
        if not include_self:
            start = self.apply(start, wide, lambda _: number(_NEUTRAL[mode](wide), wide), _replace)
        reduced = self.apply(start, wide, read, _COMBINE[mode])
        if mode != "mean":
            return cast_tensor(reduced, wide, dtype)
        count_type = wide if wide.is_float else TensorDType.Int64
        initial_counts = st.filled(int(include_self), shape, count_type)
        counts = self.apply(initial_counts, count_type, lambda _: number(1, count_type), _COMBINE["sum"])

        def average(x: Scalar, count: Scalar) -> Scalar:
            return cast(_quotient(x, cast(s.maximum(count, 1), wide)), dtype)

        return st.pointwise([(reduced, wide), (counts, count_type)], shape, dtype, average)


def _quotient(x: Scalar, count: Scalar) -> Scalar:
    """Returns `x / count`; an integer quotient is rounded down."""
    if x.dtype.is_float:
        return x / count
    return Scalar((arith.divui if x.is_unsigned else arith.floordivsi)(x.value, count.value), x.dtype)


def _reader(source: Op | int | float, symbol_table: SymbolTable) -> Reader:
    """Returns a reader of the elements of a tensor, or of the same number in each iteration."""
    if not isinstance(source, Op):
        dtype = TensorDType.Float64 if isinstance(source, float) else TensorDType.Int64
        return lambda _: number(source, dtype)
    value, meta = value_of(source, symbol_table), source.tensor_meta
    return lambda indices: element(value, indices if meta.shape else [], meta.dtype)


def _writes_along_dim(node: Op, symbol_table: SymbolTable) -> ScatterWrites:
    """Returns writes to `x[..., index[..., i, ...], ...]` for every element of the index tensor, the third argument."""
    index, index_type = value_of(node.args[2], symbol_table), node.args[2].tensor_meta.dtype
    shape = node.tensor_meta.shape
    dim = normalize_dim(node.args[1], len(shape))
    rank = len(node.args[2].tensor_meta.shape)
    fall_back_if_outside(node, symbol_table, [(node.args[2], shape[dim] if shape else 1)])

    def target_indices(indices: Indices) -> Indices:
        clamped = clamp_index(element(index, indices, index_type), shape[dim] if shape else 1)
        if not shape:
            return []
        return [clamped if i == dim else indices[i] for i in range(len(shape))] if rank else [clamped]

    return ScatterWrites(st.shape_of(index), target_indices)


@lowering("ScatterOp")
def scatter(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `scatter(x, dim, index, source or number, reduce)`; `reduce` is "add", "multiply" or absent."""
    if _writes_one_number_into_a_constant(node):
        return _select_written(node, symbol_table)
    target, dtype = value_of(node.args[0], symbol_table), node.tensor_meta.dtype
    mode, read = argument(node, 4, "reduce", ""), _reader(node.args[3], symbol_table)
    wide = accumulator_type(dtype) if mode else dtype

    def read_rounded(indices: Indices) -> Scalar:
        return cast(read(indices), dtype)  # a number is first converted to the tensor's type

    writes, start = _writes_along_dim(node, symbol_table), cast_tensor(target, dtype, wide)
    return cast_tensor(writes.apply(start, wide, read_rounded, _COMBINE[mode]), wide, dtype)


def _writes_one_number_into_a_constant(node: Op) -> bool:
    """True if `scatter` writes a number to one element of each row along its dim, into a tensor of one value."""
    target, dim, index, value, *reduce = (*node.args, *node.kwargs.values())
    shape = list(node.tensor_meta.shape)
    if reduce or isinstance(value, Op) or not isinstance(target, FullOp) or not shape:
        return False
    shape[normalize_dim(dim, len(shape))] = 1
    return list(index.tensor_meta.shape) == shape and isinstance(argument(target, 1, "fill_value"), bool | int | float)


def _select_written(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers the scatter of one number into a constant tensor to an element-wise op on the index.

    Each element is computed from its position, so that the op can be fused with its readers, such as the gradient of a
    loss.
    """
    target, dim, index, value = node.args[:4]
    meta, index_type = node.tensor_meta, index.tensor_meta.dtype
    dim = normalize_dim(dim, len(meta.shape))
    fall_back_if_outside(node, symbol_table, [(index, meta.shape[dim])])
    written, initial = number(value, meta.dtype), number(argument(target, 1, "fill_value"), meta.dtype)

    def body(written_position: Scalar) -> Scalar:
        is_written = cast(written_position, TensorDType.Int64).compare("eq", index_to_scalar(st.loop_index(dim)))
        return s.select(is_written, written, initial)

    return st.pointwise([(value_of(index, symbol_table), index_type)], meta.shape, meta.dtype, body)


@lowering("ScatterAddOp")
def scatter_add(node: Op, symbol_table: SymbolTable) -> ir.Value:
    target, read = value_of(node.args[0], symbol_table), _reader(node.args[3], symbol_table)
    writes = _writes_along_dim(node, symbol_table)
    return writes.reduce(target, node.tensor_meta.dtype, read, "sum", include_self=True)


@lowering("ScatterReduceOp")
def scatter_reduce(node: Op, symbol_table: SymbolTable) -> ir.Value:
    target, read = value_of(node.args[0], symbol_table), _reader(node.args[3], symbol_table)
    dtype, mode, include_self = node.tensor_meta.dtype, node.args[4], argument(node, 5, "include_self", True)
    return _writes_along_dim(node, symbol_table).reduce(target, dtype, read, mode, include_self)


@lowering("IndexReduceOp")
def index_reduce(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Combines `x[:, index[i], :]` with `source[:, i, :]`."""
    target, (dim, index, source, mode) = value_of(node.args[0], symbol_table), node.args[1:5]
    shape = node.tensor_meta.shape
    dim, index_type = normalize_dim(dim, len(shape)), index.tensor_meta.dtype
    index_value, source_value = value_of(index, symbol_table), value_of(source, symbol_table)
    fall_back_if_outside(node, symbol_table, [(index, shape[dim] if shape else 1)])

    def target_indices(indices: Indices) -> Indices:
        index_position = [] if not index.tensor_meta.shape else [indices[dim] if shape else position(0)]
        clamped = clamp_index(element(index_value, index_position, index_type), shape[dim] if shape else 1)
        return [clamped if i == dim else indices[i] for i in range(len(shape))]

    include_self, dtype = argument(node, 5, "include_self", True), node.tensor_meta.dtype
    writes = ScatterWrites(st.shape_of(source_value), target_indices)
    # Unlike scatter, PyTorch rounds each intermediate result to the element type.
    return writes.reduce(target, dtype, _reader(source, symbol_table), mode, include_self, wide=dtype)


@lowering("IndexPutOp")
def index_put(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Lowers `x[i, :, j] = values`, or `+=` with the argument `accumulate`; `i` and `j` may be masks."""
    target, dtype = value_of(node.args[0], symbol_table), node.tensor_meta.dtype
    items, values = node.args[1], node.args[2]
    add = bool(argument(node, 3, "accumulate", False))
    if any(item is not None and is_mask(item) for item in items):
        return _put_by_mask(node, symbol_table, add)
    subscripts = subscripts_of(st.shape_of(target), items, symbol_table)
    fall_back_if_outside(node, symbol_table, subscripts.with_sizes(items), wraps=True)
    value, value_type = value_of(values, symbol_table), values.tensor_meta.dtype
    dims = st.broadcast_dims(st.shape_of(value), subscripts.shape)

    def read(indices: Indices) -> Scalar:
        return element(value, _broadcast_indices(indices, dims), value_type)

    return _write(subscripts, target, dtype, read, add)


def _broadcast_indices(indices: Indices, dims: Sequence[int | None]) -> list[ir.Value]:
    """Returns the indices of an operand that is broadcast to the loops: its dim `i` has the loop `dims[i]` or none."""
    return [position(0) if dim is None else indices[dim] for dim in dims]


def _write(subscripts: Subscripts, target: ir.Value, dtype: TensorDType, read: Reader, add: bool) -> ir.Value:
    """Returns `target` after `target[subscripts] = read(indices)`, or `+=` with `add`."""

    def target_indices(indices: Indices) -> Indices:
        tensors = zip(subscripts.tensors, subscripts.dims, subscripts.types, strict=True)
        elements = [element(value, _broadcast_indices(indices, dims), type_).value for value, dims, type_ in tensors]
        return subscripts.source_indices(elements, indices)

    return ScatterWrites(subscripts.shape, target_indices).apply(target, dtype, read, _COMBINE["add" if add else ""])


def _put_by_mask(node: Op, symbol_table: SymbolTable, add: bool) -> ir.Value:
    """Lowers `x[:, mask] = values`, or `+=` with `add`; there is one value for all selected elements, or for each.

    A mask with several dims indexes as many dims of `x`. Raises `LoweringError` for a mask combined with other indices.
    """
    ((first, mask), *other_subscripts) = [(axis, item) for axis, item in enumerate(node.args[1]) if item is not None]
    if other_subscripts:
        raise LoweringError("a mask combined with other indices")
    target, values = value_of(node.args[0], symbol_table), value_of(node.args[2], symbol_table)
    mask_dims = list(range(first, first + len(mask.tensor_meta.shape)))
    # The target's dim for each dim of the values; `None` is the dim along the elements that the mask selects.
    axes: list[int | None] = [axis for axis in range(len(st.shape_of(target))) if axis not in mask_dims]
    axes.insert(first, None)
    sizes = st.shape_of(values)
    if 0 in st.shape_of(target):
        return target
    axes = axes[len(axes) - len(sizes) :]
    # The number of values along the selected elements; 1 if the values are broadcast along these.
    value_count = next((size for axis, size in zip(axes, sizes, strict=True) if axis is None), 1)
    if value_count != 1:
        ones = _count_ones(value_of(mask, symbol_table), mask.tensor_meta.dtype)
        invalid = ones.compare("ne", index_to_scalar(position(value_count)))
        fall_back_if(node, symbol_table, invalid, "the mask selects another number of elements than there are values")
    if 0 in sizes:
        return target
    if value_count == 1:
        return _put_one_value(node, symbol_table, mask_dims, axes, add)
    value_type = node.args[2].tensor_meta.dtype

    def read(target_indices: Indices, earlier_ones: ir.Value) -> Scalar:
        indices = [earlier_ones if axis is None else target_indices[axis] for axis in axes]
        return element(values, [_clamp(index, size) for index, size in zip(indices, sizes, strict=True)], value_type)

    mask_values = _Mask(value_of(mask, symbol_table), mask.tensor_meta.dtype, mask_dims, value_count)
    return _write_by_mask(target, node.tensor_meta.dtype, mask_values, read, _COMBINE["add" if add else ""])


def _clamp(index: ir.Value, size: Dim) -> ir.Value:
    """Clamps an index to the last one: for broadcast dims of size 1, and for masks with more ones than values."""
    return arith.minui(index, position(size - 1))


def _put_one_value(
    node: Op, symbol_table: SymbolTable, mask_dims: list[int], axes: list[int | None], add: bool
) -> ir.Value:
    """Writes the value, or adds it with `add`, where the mask over the target's dims `mask_dims` is set.

    Dim `i` of the value is dim `axes[i]` of the target; the value is broadcast along the masked dims.
    """
    (mask,) = [item for item in node.args[1] if item is not None]
    operands = [mask, node.args[2], node.args[0]]
    tensors = [value_of(op, symbol_table) for op in operands]
    types, meta = [op.tensor_meta.dtype for op in operands], node.tensor_meta
    all_loops = list(range(len(meta.shape)))
    sizes = st.shape_of(tensors[1])
    value_dims = [None if size == 1 else axis for axis, size in zip(axes, sizes, strict=True)]

    def body(*elements: ir.Value) -> list[ir.Value]:
        flag, value, old = map(Scalar, elements, types)
        new = _COMBINE["add" if add else ""](old, cast(value, meta.dtype))
        return [s.select(flag, new, old).value]

    out = st.empty(meta.shape, meta.dtype)
    dims: list[Sequence[st.DimIndex]] = [mask_dims, value_dims, all_loops]
    return st.generic(tensors, dims, [out], [all_loops], [st.PARALLEL] * len(all_loops), body)[0]


@dataclass(frozen=True)
class _Mask:
    """A mask `flags` over the dims `dims` of a target; there are `value_count` values for its ones."""

    flags: Any
    dtype: TensorDType
    dims: list[int]
    value_count: Any


def _count_ones(flags: ir.Value, dtype: TensorDType) -> Scalar:
    """Returns the number of set elements of a mask, as i64."""
    shape = st.shape_of(flags)
    total = st.reduce(
        [(flags, dtype)], shape, list(range(len(shape))), 0, TensorDType.Int64,
        lambda x, count: count + cast(cast(x, TensorDType.Bool), TensorDType.Int64),
    )  # fmt: skip
    return element(total, [], TensorDType.Int64)


def _write_by_mask(
    target: ir.Value, dtype: TensorDType, mask: _Mask, read: Callable[[Indices, ir.Value], Scalar],
    combine: Combine = _replace,
) -> ir.Value:  # fmt: skip
    """Returns `target` with each element that the mask selects combined with the value for it.

    The value is `read(target indices, number of ones in the mask before this element)`.
    """
    sizes = st.shape_of(target)
    other_dims = [dim for dim in range(len(sizes)) if dim not in mask.dims]

    def visit(mask_indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        target, earlier_ones = carried
        flag = cast(element(mask.flags, mask_indices, mask.dtype), TensorDType.Bool)

        def write(other_indices: list[ir.Value], targets: list[ir.Value]) -> list[ir.Value]:
            index_of_dim = dict(zip([*mask.dims, *other_dims], [*mask_indices, *other_indices], strict=True))
            indices = [index_of_dim[dim] for dim in range(len(sizes))]
            old = element(targets[0], indices, dtype)
            new = s.select(flag, combine(old, cast(read(indices, earlier_ones), dtype)), old)
            return [insert(new, indices, targets[0])]

        (target,) = for_each([sizes[dim] for dim in other_dims], [target], write)
        return [target, arith.addi(earlier_ones, arith.index_castui(ir.IndexType.get(), flag.value))]

    extents = [sizes[dim] for dim in mask.dims]
    # The loop does not run if a dynamic number of values is 0. A zero-dimensional mask has no extent.
    extents[:1] = [size * smallest(mask.value_count, 1) for size in extents[:1]]
    return for_each(extents, [target, position(0)], visit)[0]


@lowering("MaskedScatterOp")
def masked_scatter(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Writes the source's elements, in order, where the mask is set."""
    (target, flags, source), meta = (value_of(arg, symbol_table) for arg in node.args[:3]), node.tensor_meta
    source_type = node.args[2].tensor_meta.dtype
    count = product(st.shape_of(source))
    if 0 in meta.shape:
        return target
    mask = st.broadcast(flags, meta.shape, TensorDType.Bool)
    invalid = _count_ones(mask, TensorDType.Bool) > index_to_scalar(position(count))
    fall_back_if(node, symbol_table, invalid, "the mask selects more elements than the source has")
    if count == 0:
        return target
    flat_source = st.reshape(source, [count], source_type)
    mask_values = _Mask(mask, TensorDType.Bool, list(range(len(meta.shape))), count)
    start = st.broadcast(target, meta.shape, meta.dtype)

    def read(_target_indices: Indices, earlier_ones: ir.Value) -> Scalar:
        return element(flat_source, [_clamp(earlier_ones, count)], source_type)

    return _write_by_mask(start, meta.dtype, mask_values, read)


@lowering("PutOp")
def put(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Applies `x.flatten()[index] = source` sequentially."""
    target, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    index, source = (node.args[i] for i in (1, 2))
    add = bool(argument(node, 3, "accumulate", False))
    count, index_type = product(meta.shape), index.tensor_meta.dtype
    writes = product(index.tensor_meta.shape)
    fall_back_if_outside(node, symbol_table, [(index, count)], wraps=True)
    flat_index = st.reshape(value_of(index, symbol_table), [writes], index_type)
    flat_source = st.reshape(value_of(source, symbol_table), [writes], source.tensor_meta.dtype)
    flat_target = st.reshape(target, [count], meta.dtype)

    def target_indices(indices: Indices) -> Indices:
        return [clamp_index(element(flat_index, indices, index_type), count, wraps=True)]

    def read(indices: Indices) -> Scalar:
        return element(flat_source, indices, source.tensor_meta.dtype)

    result = ScatterWrites([writes], target_indices).apply(
        flat_target, meta.dtype, read, _COMBINE["add" if add else ""]
    )
    return st.reshape(result, meta.shape, meta.dtype)
