"""Data movement: flips, rolls, diagonals, windows, strided reads, and tensors computed by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, tensor
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import (
    LoweringError,
    SymbolTable,
    argument,
    constant,
    mlir_element_type_get,
    normalized,
    value_of,
)

INDEX = TensorDType.Int64
Position = Scalar | int


def read(value: Any, dtype: TensorDType, positions: Sequence[Position]) -> Scalar:
    """Reads the element of a tensor of `dtype` at integer positions, which must be within bounds."""
    return Scalar(tensor.extract(value, [st.to_index(whole(p).value) for p in positions]), dtype)


def whole(number: Position) -> Scalar:
    """Returns a position as an i64 scalar."""
    return cast(number, INDEX) if isinstance(number, Scalar) else Scalar(constant(number, INDEX), INDEX)


def loop_indices(first: int, count: int) -> list[Scalar]:
    """Returns the indices of loops `first` to `first + count - 1` of the enclosing body."""
    return [Scalar(st.index_to(st.loop_index(dim), INDEX), INDEX) for dim in range(first, first + count)]


def computed(shape: Sequence[Any], dtype: TensorDType, body: Callable[..., Scalar]) -> Any:
    """Returns a tensor of `shape` whose element at each position is `body(*position)`."""
    rank = len(shape)

    def scalars(_out: Any) -> list[Any]:
        return [body(*loop_indices(0, rank)).value]

    return st.generic([], [], [st.empty(shape, dtype)], [[*range(rank)]], [st.PARALLEL] * rank, scalars)[0]


def folded(
    shape: Sequence[Any], box: Sequence[int], initial: Sequence[tuple[int | float, TensorDType]],
    body: Callable[[Sequence[Scalar], Sequence[Scalar], Sequence[Scalar]], Sequence[Scalar]],
) -> list[Any]:  # fmt: skip
    """Folds over the positions of `box` in row-major order, at each position of `shape`.

    Returns a tensor of `shape` for each (initial value, type) in `initial`. `body(position, position in the box,
    values so far)` returns the next values.
    """
    rank, inner = len(shape), len(box)
    types = [dtype for _, dtype in initial]

    def scalars(_box: Any, *so_far: Any) -> list[Any]:
        values = [Scalar(value, dtype) for value, dtype in zip(so_far, types, strict=True)]
        return [value.value for value in body(loop_indices(0, rank), loop_indices(rank, inner), values)]

    outs = [st.filled(value, shape, dtype) for value, dtype in initial]
    every: list[st.Dim] = [*range(rank)]
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * inner
    extent = st.empty(box, TensorDType.Bool)
    return st.generic([extent], [[*range(rank, rank + inner)]], outs, [every] * len(outs), iterators, scalars)


ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("FlipOp")
def flip(node: Op, symbol_table: SymbolTable) -> Any:
    meta = node.tensor_meta
    dims = [normalized(dim, len(meta.shape)) for dim in node.args[1]]
    return reverse_dims(value_of(node.args[0], symbol_table), dims, meta.dtype)


def reverse_dims(value: Any, dims: Sequence[int], dtype: TensorDType) -> Any:
    """Reverses the elements along each of `dims`."""
    shape = st.shape_of(value)
    turning = [dim for dim in dims if dim < len(shape) and shape[dim] != 1]
    if not turning or 0 in shape:
        return value
    every: list[st.Dim] = [*range(len(shape))]
    reads = [st.ReversedDim(i, shape[i]) if i in turning else i for i in range(len(shape))]
    out = st.empty(shape, dtype)
    return st.generic([value], [reads], [out], [every], [st.PARALLEL] * len(shape), lambda x, _: [x])[0]


@lowering("RollOp")
def roll(node: Op, symbol_table: SymbolTable) -> Any:
    """Rolls one dim after another; without dims, rolls the elements in row-major order."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    shifts, dims = node.args[1], argument(node, 2, "dims") or []
    if 0 in meta.shape:
        return value
    if not dims:
        flat = st.reshape(value, [prod(meta.shape)], meta.dtype)
        return st.reshape(_roll_dim(flat, shifts[0], 0, meta.dtype), meta.shape, meta.dtype)
    for shift, dim in zip(shifts, dims, strict=True):
        value = _roll_dim(value, shift, normalized(dim, len(meta.shape)), meta.dtype)
    return value


def _roll_dim(value: Any, shift: int, dim: int, dtype: TensorDType) -> Any:
    shape = list(st.shape_of(value))
    moved = shift % shape[dim]
    if not moved:
        return value
    out, ones = st.empty(shape, dtype), [1] * len(shape)
    for start, end, to in ((0, shape[dim] - moved, moved), (shape[dim] - moved, shape[dim], 0)):
        sizes = [end - start if i == dim else size for i, size in enumerate(shape)]
        here, there = ([at if i == dim else 0 for i in range(len(shape))] for at in (start, to))
        out = st.insert_slice(st.slice_of(value, here, sizes, ones, sizes, dtype), out, there, sizes, ones)
    return out


@lowering("UnfoldOp")
def unfold(node: Op, symbol_table: SymbolTable) -> Any:
    """Extracts windows of `size` every `step` along a dim; a new last dim holds their elements."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    last, step = len(meta.shape) - 1, node.args[3]
    if not last:  # a scalar has one window
        return st.reshape(value, meta.shape, meta.dtype) if meta.shape == (1,) else st.empty(meta.shape, meta.dtype)
    if 0 in meta.shape:
        return st.empty(meta.shape, meta.dtype)
    dims: list[st.Dim] = [*range(last)]
    dim = normalized(node.args[1], last)
    dims[dim] = st.WindowDim(dim, step, last, 1)
    every: list[st.Dim] = [*range(last + 1)]
    out = st.empty(meta.shape, meta.dtype)
    return st.generic([value], [dims], [out], [every], [st.PARALLEL] * (last + 1), lambda x, _: [x])[0]


# ---- diagonals -------------------------------------------------------------------------------------------------------


_DIAGONAL = (("offset", 0), ("dim1", 0), ("dim2", 1))


def _diagonal(node: Op, first: int, rank: int) -> tuple[int, int, int]:
    """Returns offset and both dims, which are the arguments from `first` on."""
    offset, one, other = (argument(node, first + i, name, default) for i, (name, default) in enumerate(_DIAGONAL))
    return offset, normalized(one, rank), normalized(other, rank)


@lowering("DiagonalOp")
def diagonal(node: Op, symbol_table: SymbolTable) -> Any:
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    rank = len(st.shape_of(value))
    offset, row, column = _diagonal(node, 1, rank)

    def body(*at: Scalar) -> Scalar:
        rest, along = list(at[:-1]), {row: at[-1] + max(-offset, 0), column: at[-1] + max(offset, 0)}
        return read(value, meta.dtype, [along[i] if i in along else rest.pop(0) for i in range(rank)])

    return computed(meta.shape, meta.dtype, body)


@lowering("DiagonalScatterOp")
def diagonal_scatter(node: Op, symbol_table: SymbolTable) -> Any:
    value, source = (value_of(arg, symbol_table) for arg in node.args[:2])
    meta, length, kind = node.tensor_meta, st.shape_of(source)[-1], node.args[1].tensor_meta.dtype
    offset, row, column = _diagonal(node, 2, len(meta.shape))
    if 0 in st.shape_of(source):
        return value

    def body(*at: Scalar) -> Scalar:
        along = s.minimum(s.maximum(at[row] - max(-offset, 0), 0), length - 1)
        rest = [p for i, p in enumerate(at) if i not in (row, column)]
        new = cast(read(source, kind, [*rest, along]), meta.dtype)
        return s.select((at[column] - at[row]).compare("eq", offset), new, read(value, meta.dtype, at))

    return computed(meta.shape, meta.dtype, body)


# ---- by strides ------------------------------------------------------------------------------------------------------


def _strided(node: Op, first: int) -> tuple[list[int], list[int], int]:
    """Returns sizes, strides and offset, which are the arguments from `first` on."""
    return node.args[first], node.args[first + 1], argument(node, first + 2, "storage_offset") or 0


def _storage(value: Any, reach: int, dtype: TensorDType) -> Any:
    """Returns the elements of a tensor in row-major order.

    Raises `LoweringError` if `reach` exceeds their number, because the program then accesses storage outside of the
    tensor.
    """
    count = prod(st.shape_of(value))
    if reach > count:
        raise LoweringError(f"the strides reach element {reach - 1} of a tensor of {count} elements")
    return st.reshape(value, [count], dtype)


def _reach(sizes: Sequence[int], strides: Sequence[int], offset: int) -> int:
    return 0 if 0 in sizes else offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) + 1


@lowering("AsStridedOp")
def as_strided(node: Op, symbol_table: SymbolTable) -> Any:
    meta, (sizes, strides, offset) = node.tensor_meta, _strided(node, 1)
    flat = _storage(value_of(node.args[0], symbol_table), _reach(sizes, strides, offset), meta.dtype)

    def body(*at: Scalar) -> Scalar:
        return read(flat, meta.dtype, [sum((p * step for p, step in zip(at, strides, strict=True)), whole(offset))])

    return computed(meta.shape, meta.dtype, body)


@lowering("AsStridedScatterOp")
def as_strided_scatter(node: Op, symbol_table: SymbolTable) -> Any:
    meta, (sizes, strides, offset) = node.tensor_meta, _strided(node, 2)
    flat = _storage(value_of(node.args[0], symbol_table), _reach(sizes, strides, offset), meta.dtype)
    source, kind = value_of(node.args[1], symbol_table), node.args[1].tensor_meta.dtype

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        steps = (loops.index_of(p) * step for p, step in zip(at, strides, strict=True))
        where = loops.index_position(sum(steps, whole(offset)))
        return [loops.insert(cast(loops.element(source, at, kind), meta.dtype), [where], held[0])]

    (written,) = [flat] if 0 in sizes else loops.for_each(sizes, [flat], visit)
    return st.reshape(written, meta.shape, meta.dtype)


# ---- reinterpreted bits ----------------------------------------------------------------------------------------------


@lowering("ViewDtypeOp")
def view_dtype(node: Op, symbol_table: SymbolTable) -> Any:
    """Reinterprets the bytes as elements of another type; the size of the last dim changes with the element size."""
    value, meta, old = value_of(node.args[0], symbol_table), node.tensor_meta, node.args[0].tensor_meta.dtype
    before, after = _bits(old), _bits(meta.dtype)
    if before == after:
        return st.pointwise([(value, old)], meta.shape, meta.dtype, lambda x: _from_bits(_bits_of(x), meta.dtype))
    parts = max(before, after) // min(before, after)

    def narrower(*at: Scalar) -> Scalar:
        bits = _bits_of(read(value, old, [*at[:-1], _divide(at[-1], parts)]))
        shift = cast((at[-1] - _divide(at[-1], parts) * parts) * after, bits.dtype)
        return _from_bits(cast(Scalar(arith.shrui(bits.value, shift.value), bits.dtype), _INTEGER[after]), meta.dtype)

    def wider(*at: Scalar) -> Scalar:
        bits = Scalar(constant(0, _INTEGER[after]), _INTEGER[after])
        for part in range(parts):
            found = _bits_of(read(value, old, [*at[:-1], at[-1] * parts + part]))
            extended = arith.extui(mlir_element_type_get(bits.dtype), found.value)
            bits = bits | Scalar(arith.shli(extended, bits.like(part * before).value), bits.dtype)
        return _from_bits(bits, meta.dtype)

    return computed(meta.shape, meta.dtype, narrower if before > after else wider)


_INTEGER = {8: TensorDType.Int8, 16: TensorDType.Int16, 32: TensorDType.Int32, 64: TensorDType.Int64}


def _bits(dtype: TensorDType) -> int:
    return 8 if dtype is TensorDType.Bool else int(mlir_element_type_get(dtype).width)


def _divide(value: Scalar, by: int) -> Scalar:
    return Scalar(arith.divui(value.value, value.like(by).value), INDEX)


def _bits_of(x: Scalar) -> Scalar:
    """Returns the bits of the element as a signed integer of the same size."""
    whole_type = _INTEGER[_bits(x.dtype)]
    if x.dtype.is_float:
        return Scalar(arith.bitcast(mlir_element_type_get(whole_type), x.value), whole_type)
    return cast(x, whole_type)


def _from_bits(bits: Scalar, dtype: TensorDType) -> Scalar:
    if dtype.is_float:
        return Scalar(arith.bitcast(mlir_element_type_get(dtype), bits.value), dtype)
    return cast(bits, dtype)


@lowering("EmptyOp")
def empty(node: Op, symbol_table: SymbolTable) -> Any:
    return st.empty(node.tensor_meta.shape, node.tensor_meta.dtype)
