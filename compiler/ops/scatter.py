"""Writes by index. Writes to the same position are applied sequentially, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import product, smallest
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.bounds import fall_back_if, fall_back_if_outside, within
from buddy.compiler.ops.indexing import Subscripts, is_mask, subscripts_of
from buddy.compiler.ops.loops import element, for_each, index_of, insert, number, position
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import accumulator_type
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, normalized, value_of

ops_registry = Registry()
lowering = ops_registry.lowering

Positions = Sequence[Any]
Combine = Callable[[Scalar, Scalar], Scalar]
# Returns the value to write at a position of the box.
Reader = Callable[[Positions], Scalar]


def _replace(_old: Scalar, new: Scalar) -> Scalar:
    return new


# How each mode combines the old with the new value, and its neutral element as a function of the element type.
_COMBINE: dict[str, Combine] = {
    "": _replace,
    "add": lambda old, new: old + new, "sum": lambda old, new: old + new, "mean": lambda old, new: old + new,
    "multiply": lambda old, new: old * new, "prod": lambda old, new: old * new,
    "amax": s.maximum, "amin": s.minimum,
}  # fmt: skip
_NEUTRAL: dict[str, Callable[[TensorDType], int | float]] = {
    "sum": lambda _: 0, "mean": lambda _: 0, "prod": lambda _: 1,
    "amax": lambda dtype: s.limits(dtype)[0], "amin": lambda dtype: s.limits(dtype)[1],
}  # fmt: skip


class ScatterWrites:
    """Writes into tensors of one shape: `place` maps every position of a box to its target."""

    def __init__(self, box: Sequence[Any], place: Callable[[Positions], Positions]) -> None:
        self.box, self.place = box, place

    def into(self, target: Any, dtype: TensorDType, given: Reader, combine: Combine) -> Any:
        """Returns `target` after `target[place] = combine(target[place], given)` at each position, in order."""

        def visit(at: list[Any], held: list[Any]) -> list[Any]:
            where = self.place(at)
            return [insert(combine(element(held[0], where, dtype), cast(given(at), dtype)), where, held[0])]

        return target if 0 in self.box else for_each(self.box, [target], visit)[0]

    def reduced(
        self, target: Any, dtype: TensorDType, given: Reader, mode: str, own: bool, wide: TensorDType | None = None
    ) -> Any:
        """Combines the writes by `mode`; with `own`, the old elements take part.

        `wide` is the accumulator type; by default, half types are computed in f32 and rounded once, as in PyTorch.
        """
        wide = wide or accumulator_type(dtype)
        shape = st.shape_of(target)
        start = _cast(target, dtype, wide)
        if not own:
            start = self.into(start, wide, lambda _: number(_NEUTRAL[mode](wide), wide), _replace)
        found = self.into(start, wide, given, _COMBINE[mode])
        if mode != "mean":
            return _cast(found, wide, dtype)
        kind = wide if wide.is_float else TensorDType.Int64
        counts = self.into(st.filled(int(own), shape, kind), kind, lambda _: number(1, kind), _COMBINE["sum"])

        def average(x: Scalar, count: Scalar) -> Scalar:
            return cast(_quotient(x, cast(s.maximum(count, 1), wide)), dtype)

        return st.pointwise([(found, wide), (counts, kind)], shape, dtype, average)


def _quotient(x: Scalar, count: Scalar) -> Scalar:
    """Divides; integer quotients are rounded down."""
    if x.dtype.is_float:
        return x / count
    return Scalar((arith.divui if x.is_unsigned else arith.floordivsi)(x.value, count.value), x.dtype)


def _cast(value: Any, dtype: TensorDType, wanted: TensorDType) -> Any:
    if dtype is wanted:
        return value
    return st.pointwise([(value, dtype)], st.shape_of(value), wanted, lambda x: cast(x, wanted))


def _reader(argument_: Any, symbol_table: SymbolTable) -> Reader:
    """Returns a reader of a node's argument: a tensor, or a zero-dimensional tensor or number for all positions."""
    if not isinstance(argument_, Op):
        kind = TensorDType.Float64 if isinstance(argument_, float) else TensorDType.Int64
        return lambda _: number(argument_, kind)
    value, meta = value_of(argument_, symbol_table), argument_.tensor_meta
    return lambda at: element(value, at if meta.shape else [], meta.dtype)


def _writes_along_dim(node: Op, symbol_table: SymbolTable) -> ScatterWrites:
    """Returns writes to `x[..., index[..., i, ...], ...]` for every element of the index tensor, the third argument."""
    indices, kind = value_of(node.args[2], symbol_table), node.args[2].tensor_meta.dtype
    shape = node.tensor_meta.shape
    axis = normalized(node.args[1], len(shape))
    rank = len(node.args[2].tensor_meta.shape)
    fall_back_if_outside(node, symbol_table, [(node.args[2], shape[axis] if shape else 1)])

    def place(at: Positions) -> Positions:
        found = within(element(indices, at, kind), shape[axis] if shape else 1)
        if not shape:
            return []
        return [found if i == axis else at[i] for i in range(len(shape))] if rank else [found]

    return ScatterWrites(st.shape_of(indices), place)


@lowering("ScatterOp")
def scatter(node: Op, symbol_table: SymbolTable) -> Any:
    """Lowers scatter; `reduce` is "add", "multiply" or absent."""
    target, dtype = value_of(node.args[0], symbol_table), node.tensor_meta.dtype
    mode, given = argument(node, 4, "reduce", ""), _reader(node.args[3], symbol_table)
    wide = accumulator_type(dtype) if mode else dtype

    def rounded(at: Positions) -> Scalar:
        return cast(given(at), dtype)  # a number is first converted to the tensor's type

    found = _writes_along_dim(node, symbol_table).into(_cast(target, dtype, wide), wide, rounded, _COMBINE[mode])
    return _cast(found, wide, dtype)


@lowering("ScatterAddOp")
def scatter_add(node: Op, symbol_table: SymbolTable) -> Any:
    target, given = value_of(node.args[0], symbol_table), _reader(node.args[3], symbol_table)
    return _writes_along_dim(node, symbol_table).reduced(target, node.tensor_meta.dtype, given, "sum", True)


@lowering("ScatterReduceOp")
def scatter_reduce(node: Op, symbol_table: SymbolTable) -> Any:
    target, given = value_of(node.args[0], symbol_table), _reader(node.args[3], symbol_table)
    own = argument(node, 5, "include_self", True)
    return _writes_along_dim(node, symbol_table).reduced(target, node.tensor_meta.dtype, given, node.args[4], own)


@lowering("IndexReduceOp")
def index_reduce(node: Op, symbol_table: SymbolTable) -> Any:
    """Combines `x[:, index[i], :]` with `source[:, i, :]`."""
    target, (axis, index, source, mode) = value_of(node.args[0], symbol_table), node.args[1:5]
    shape = node.tensor_meta.shape
    axis, kind = normalized(axis, len(shape)), index.tensor_meta.dtype
    indices, given = value_of(index, symbol_table), value_of(source, symbol_table)
    fall_back_if_outside(node, symbol_table, [(index, shape[axis] if shape else 1)])

    def place(at: Positions) -> Positions:
        here = [] if not index.tensor_meta.shape else [at[axis] if shape else position(0)]
        found = within(element(indices, here, kind), shape[axis] if shape else 1)
        return [found if i == axis else at[i] for i in range(len(shape))]

    own, dtype = argument(node, 5, "include_self", True), node.tensor_meta.dtype
    writes = ScatterWrites(st.shape_of(given), place)
    # Unlike in a scatter, every step is rounded to the element type.
    return writes.reduced(target, dtype, _reader(source, symbol_table), mode, own, wide=dtype)


@lowering("IndexPutOp")
def index_put(node: Op, symbol_table: SymbolTable) -> Any:
    target, dtype = value_of(node.args[0], symbol_table), node.tensor_meta.dtype
    listed, values = node.args[1], node.args[2]
    add = bool(argument(node, 3, "accumulate", False))
    if any(item is not None and is_mask(item) for item in listed):
        return _put_by_mask(node, symbol_table, add)
    subscripts = subscripts_of(st.shape_of(target), listed, symbol_table)
    fall_back_if_outside(node, symbol_table, subscripts.sized(listed), wraps=True)
    given, kind = value_of(values, symbol_table), values.tensor_meta.dtype
    read = st.broadcast_dims(st.shape_of(given), subscripts.shape)
    return _write(subscripts, target, dtype, lambda at: element(given, _read_position(at, read), kind), add)


def _read_position(at: Positions, dims: Sequence[int | None]) -> list[Any]:
    return [position(0) if dim is None else at[dim] for dim in dims]


def _write(subscripts: Subscripts, target: Any, dtype: TensorDType, given: Reader, add: bool) -> Any:
    def place(at: Positions) -> Positions:
        pairs = zip(subscripts.tensors, subscripts.dims, subscripts.types, strict=True)
        return subscripts.place([element(t, _read_position(at, dims), kind).value for t, dims, kind in pairs], at)

    return ScatterWrites(subscripts.shape, place).into(target, dtype, given, _COMBINE["add" if add else ""])


def _put_by_mask(node: Op, symbol_table: SymbolTable, add: bool) -> Any:
    """Lowers a write through one mask of a single value, or of as many values as the mask has ones.

    Raises `LoweringError` for a mask combined with other indices.
    """
    ((first, mask), *others) = [(axis, item) for axis, item in enumerate(node.args[1]) if item is not None]
    if others:
        raise LoweringError("a mask combined with other indices")
    target, values = value_of(node.args[0], symbol_table), value_of(node.args[2], symbol_table)
    inside = list(range(first, first + len(mask.tensor_meta.shape)))
    axes: list[int | None] = [axis for axis in range(len(st.shape_of(target))) if axis not in inside]
    axes.insert(first, None)
    sizes = st.shape_of(values)
    if 0 in st.shape_of(target):
        return target
    axes = axes[len(axes) - len(sizes) :]
    for axis, size in zip(axes, sizes, strict=True):
        if axis is None and size != 1:
            found = _count_ones(value_of(mask, symbol_table), mask.tensor_meta.dtype)
            wrong = found.compare("ne", index_of(position(size)))
            fall_back_if(node, symbol_table, wrong, "the mask selects another number of places than there are values")
    if 0 in sizes:
        return target
    if all(size == 1 for axis, size in zip(axes, sizes, strict=True) if axis is None):
        return _put_one_value(node, symbol_table, inside, axes, add)
    kind = node.args[2].tensor_meta.dtype

    def given(at: Positions, before: Any) -> Scalar:
        limits = zip(axes, sizes, strict=True)
        inner = [_clamp(before, size) if axis is None else _clamp(at[axis], size) for axis, size in limits]
        return element(values, inner, kind)

    count = next(size for axis, size in zip(axes, sizes, strict=True) if axis is None)
    ones = _Mask(value_of(mask, symbol_table), mask.tensor_meta.dtype, inside, count)
    return _write_in_order(target, node.tensor_meta.dtype, ones, given, _COMBINE["add" if add else ""])


def _clamp(at: Any, size: Any) -> Any:
    """Clamps a position to the last one: for broadcast dims of size 1, and for masks with more ones than values."""
    return arith.minui(at, position(size - 1))


def _put_one_value(node: Op, symbol_table: SymbolTable, inside: list[int], axes: list[int | None], add: bool) -> Any:
    """Writes the value where the mask over the dims `inside` is set; the value is broadcast along the masked dims.

    Dim `i` of the value is dim `axes[i]` of the target.
    """
    (mask,) = [item for item in node.args[1] if item is not None]
    operands = [mask, node.args[2], node.args[0]]
    tensors = [value_of(op, symbol_table) for op in operands]
    types, meta = [op.tensor_meta.dtype for op in operands], node.tensor_meta
    every = list(range(len(meta.shape)))
    sizes = st.shape_of(tensors[1])
    read = [None if size == 1 else axis for axis, size in zip(axes, sizes, strict=True)]

    def body(*elements: Any) -> list[Any]:
        flag, value, old = map(Scalar, elements, types)
        new = _COMBINE["add" if add else ""](old, cast(value, meta.dtype))
        return [s.select(flag, new, old).value]

    out = st.empty(meta.shape, meta.dtype)
    return st.generic(tensors, [inside, read, every], [out], [every], [st.PARALLEL] * len(every), body)[0]


@dataclass(frozen=True)
class _Mask:
    """A mask over the dims `inside` of a target, with `count` values for its ones."""

    flags: Any
    dtype: TensorDType
    inside: list[int]
    count: Any


def _count_ones(flags: Any, dtype: TensorDType) -> Scalar:
    """Returns the number of set elements of a mask, as i64."""
    shape = st.shape_of(flags)
    found = st.reduce(
        [(flags, dtype)], shape, list(range(len(shape))), False, 0, TensorDType.Int64,
        lambda x, counted: counted + cast(cast(x, TensorDType.Bool), TensorDType.Int64),
    )  # fmt: skip
    return element(found, [], TensorDType.Int64)


def _write_in_order(
    target: Any, dtype: TensorDType, ones: _Mask, given: Callable[[Positions, Any], Scalar],
    combine: Combine = _replace,
) -> Any:  # fmt: skip
    """Combines `target` with `given(position, number of earlier ones)` where the mask is set, in row-major order."""
    sizes = st.shape_of(target)
    outside = [axis for axis in range(len(sizes)) if axis not in ones.inside]

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        flag = cast(element(ones.flags, at, ones.dtype), TensorDType.Bool)

        def write(rest: list[Any], carried: list[Any]) -> list[Any]:
            whole = dict(zip([*ones.inside, *outside], [*at, *rest], strict=True))
            where = [whole[axis] for axis in range(len(sizes))]
            old = element(carried[0], where, dtype)
            new = s.select(flag, combine(old, cast(given(where, held[1]), dtype)), old)
            return [insert(new, where, carried[0])]

        (found,) = for_each([sizes[axis] for axis in outside], [held[0]], write)
        return [found, arith.addi(held[1], arith.index_castui(ir.IndexType.get(), flag.value))]

    box = [sizes[axis] for axis in ones.inside]
    box[:1] = [size * smallest(ones.count, 1) for size in box[:1]]  # an empty loop if there are no values to read
    return for_each(box, [target, position(0)], visit)[0]


@lowering("MaskedScatterOp")
def masked_scatter(node: Op, symbol_table: SymbolTable) -> Any:
    """Writes the source's elements, in order, where the mask is set."""
    (target, flags, source), meta = (value_of(arg, symbol_table) for arg in node.args[:3]), node.tensor_meta
    kind = node.args[2].tensor_meta.dtype
    count = product(st.shape_of(source))
    if 0 in meta.shape:
        return target
    mask = st.broadcast(flags, meta.shape, TensorDType.Bool)
    wrong = _count_ones(mask, TensorDType.Bool) > index_of(position(count))
    fall_back_if(node, symbol_table, wrong, "the mask selects more places than the source has elements")
    if count == 0:
        return target
    line = st.reshape(source, [count], kind)
    ones = _Mask(mask, TensorDType.Bool, list(range(len(meta.shape))), count)
    start = st.broadcast(target, meta.shape, meta.dtype)

    def given(_at: Positions, before: Any) -> Scalar:
        return element(line, [_clamp(before, count)], kind)

    return _write_in_order(start, meta.dtype, ones, given)


@lowering("PutOp")
def put(node: Op, symbol_table: SymbolTable) -> Any:
    """Applies `x.flatten()[index] = source` sequentially."""
    target, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    index, source = (node.args[i] for i in (1, 2))
    add = bool(argument(node, 3, "accumulate", False))
    count, kind = product(meta.shape), index.tensor_meta.dtype
    writes = product(index.tensor_meta.shape)
    fall_back_if_outside(node, symbol_table, [(index, count)], wraps=True)
    indices = st.reshape(value_of(index, symbol_table), [writes], kind)
    given = st.reshape(value_of(source, symbol_table), [writes], source.tensor_meta.dtype)
    line = st.reshape(target, [count], meta.dtype)

    def place(at: Positions) -> Positions:
        return [within(element(indices, at, kind), count, wraps=True)]

    def read(at: Positions) -> Scalar:
        return element(given, at, source.tensor_meta.dtype)

    found = ScatterWrites([writes], place).into(line, meta.dtype, read, _COMBINE["add" if add else ""])
    return st.reshape(found, meta.shape, meta.dtype)
