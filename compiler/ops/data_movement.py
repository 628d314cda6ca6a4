"""Lowers data movement: flips, rolls, diagonals, windows, strided reads, and reinterpreted bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, tensor
from buddy.compiler.ops import loops
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.integers import INTEGER_TYPES, bits_of, from_bits, stored_bit_width
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import (
    LoweringError,
    Registry,
    SymbolTable,
    argument,
    constant,
    mlir_element_type_get,
    normalize_dim,
    value_of,
)

# The element type of positions, which are integers here, unlike those of `loops`, which are of type index.
INDEX_TYPE = TensorDType.Int64
Position = Scalar | int


def read_element(value: ir.Value, dtype: TensorDType, positions: Sequence[Position]) -> Scalar:
    """Reads the element of a tensor of `dtype` at integer positions, which must be in bounds."""
    return Scalar(tensor.extract(value, [st.integer_to_index(position_scalar(p).value) for p in positions]), dtype)


def position_scalar(position: Position) -> Scalar:
    """Returns a position as an i64 scalar."""
    if isinstance(position, Scalar):
        return cast(position, INDEX_TYPE)
    return Scalar(constant(position, INDEX_TYPE), INDEX_TYPE)


def divide_position(value: Scalar, divisor: int) -> Scalar:
    """Returns a non-negative position (i64) divided by `divisor`, rounded down."""
    return Scalar(arith.divui(value.value, value.like(divisor).value), INDEX_TYPE)


def loop_indices(first: int, count: int) -> list[Scalar]:
    """Returns the indices (i64) of loops `first` to `first + count - 1`, inside the body of a `linalg.generic`."""
    return [
        Scalar(st.index_to_integer(st.loop_index(dim), INDEX_TYPE), INDEX_TYPE) for dim in range(first, first + count)
    ]


def compute_tensor(shape: Sequence[Dim], dtype: TensorDType, body: Callable[..., Scalar]) -> ir.Value:
    """Returns a tensor of `shape` whose element at each position is `body(*indices)`; the indices are i64 scalars."""
    rank = len(shape)

    def scalars(_out: ir.Value) -> list[ir.Value]:
        return [body(*loop_indices(0, rank)).value]

    return st.generic([], [], [st.empty(shape, dtype)], [[*range(rank)]], [st.PARALLEL] * rank, scalars)[0]


def fold_positions(
    shape: Sequence[Dim], inner_shape: Sequence[int], initial: Sequence[tuple[int | float, TensorDType]],
    body: Callable[[Sequence[Scalar], Sequence[Scalar], Sequence[Scalar]], Sequence[Scalar]],
) -> list[ir.Value]:  # fmt: skip
    """Reduces, for each position in `shape`, over the positions in `inner_shape`, in row-major order.

    `body(indices, inner indices, accumulated values)` returns the next accumulated values. Returns a tensor of `shape`
    for each (initial value, type) in `initial`.
    """
    rank, inner = len(shape), len(inner_shape)
    types = [dtype for _, dtype in initial]

    def scalars(_unused: ir.Value, *accumulated: ir.Value) -> list[ir.Value]:
        values = [Scalar(value, dtype) for value, dtype in zip(accumulated, types, strict=True)]
        return [value.value for value in body(loop_indices(0, rank), loop_indices(rank, inner), values)]

    outs = [st.filled(value, shape, dtype) for value, dtype in initial]
    all_loops: list[st.DimIndex] = [*range(rank)]
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * inner
    # This operand is never read: its shape sets the trip counts of the inner loops.
    extents = st.empty(inner_shape, TensorDType.Bool)
    return st.generic([extents], [[*range(rank, rank + inner)]], outs, [all_loops] * len(outs), iterators, scalars)


ops_registry = Registry()
lowering = ops_registry.lowering


@lowering("FlipOp")
def flip(node: Op, symbol_table: SymbolTable) -> ir.Value:
    meta = node.tensor_meta
    dims = [normalize_dim(dim, len(meta.shape)) for dim in node.args[1]]
    return reverse_dims(value_of(node.args[0], symbol_table), dims, meta.dtype)


def reverse_dims(value: ir.Value, dims: Sequence[int], dtype: TensorDType) -> ir.Value:
    """Reverses the elements along each of `dims`."""
    shape = st.shape_of(value)
    reversed_dims = [dim for dim in dims if dim < len(shape) and shape[dim] != 1]
    if not reversed_dims or 0 in shape:
        return value
    all_loops: list[st.DimIndex] = [*range(len(shape))]
    reads = [st.ReversedDim(i, shape[i]) if i in reversed_dims else i for i in range(len(shape))]
    out = st.empty(shape, dtype)
    return st.generic([value], [reads], [out], [all_loops], [st.PARALLEL] * len(shape), lambda x, _: [x])[0]


@lowering("RollOp")
def roll(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Rolls one dim after another; without dims, rolls the elements in row-major order."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    shifts, dims = node.args[1], argument(node, 2, "dims") or []
    if 0 in meta.shape:
        return value
    if not dims:
        flat = st.reshape(value, [prod(meta.shape)], meta.dtype)
        return st.reshape(_roll_dim(flat, shifts[0], 0, meta.dtype), meta.shape, meta.dtype)
    for shift, dim in zip(shifts, dims, strict=True):
        value = _roll_dim(value, shift, normalize_dim(dim, len(meta.shape)), meta.dtype)
    return value


def _roll_dim(value: ir.Value, shift: int, dim: int, dtype: TensorDType) -> ir.Value:
    """Rolls one dim: inserts both parts of the tensor, which change places, into a new one."""
    shape = list(st.shape_of(value))
    offset = shift % shape[dim]
    if not offset:
        return value
    out, ones = st.empty(shape, dtype), [1] * len(shape)
    for start, end, new_start in ((0, shape[dim] - offset, offset), (shape[dim] - offset, shape[dim], 0)):
        sizes = [end - start if i == dim else size for i, size in enumerate(shape)]
        source, target = ([first if i == dim else 0 for i in range(len(shape))] for first in (start, new_start))
        out = st.insert_slice(st.slice_of(value, source, sizes, ones, sizes, dtype), out, target, sizes, ones)
    return out


@lowering("UnfoldOp")
def unfold(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Extracts windows along a dim, `step` elements apart; a new last dim holds the elements of each window."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    last, step = len(meta.shape) - 1, node.args[3]
    if not last:  # a scalar has one window
        return st.reshape(value, meta.shape, meta.dtype) if meta.shape == (1,) else st.empty(meta.shape, meta.dtype)
    if 0 in meta.shape:
        return st.empty(meta.shape, meta.dtype)
    dims: list[st.DimIndex] = [*range(last)]
    dim = normalize_dim(node.args[1], last)
    dims[dim] = st.WindowDim(dim, step, last, 1)
    all_loops: list[st.DimIndex] = [*range(last + 1)]
    out = st.empty(meta.shape, meta.dtype)
    return st.generic([value], [dims], [out], [all_loops], [st.PARALLEL] * (last + 1), lambda x, _: [x])[0]


# ---- diagonals -------------------------------------------------------------------------------------------------------


# The arguments of diagonal ops, with their defaults.
_DIAGONAL_ARGUMENTS = (("offset", 0), ("dim1", 0), ("dim2", 1))


def _diagonal_arguments(node: Op, first: int, rank: int) -> tuple[int, int, int]:
    """Returns offset, row dim and column dim, which are the node's arguments from `first` on."""
    offset, row, column = (
        argument(node, first + i, name, default) for i, (name, default) in enumerate(_DIAGONAL_ARGUMENTS)
    )
    return offset, normalize_dim(row, rank), normalize_dim(column, rank)


@lowering("DiagonalOp")
def diagonal(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns a diagonal of each matrix, along a new last dim; the arguments are x, offset, dim1, dim2."""
    value, meta = value_of(node.args[0], symbol_table), node.tensor_meta
    rank = len(st.shape_of(value))
    offset, row, column = _diagonal_arguments(node, 1, rank)

    def body(*indices: Scalar) -> Scalar:
        *others, along = indices
        on_diagonal = {row: along + max(-offset, 0), column: along + max(offset, 0)}
        for dim in sorted(on_diagonal):
            others.insert(dim, on_diagonal[dim])
        return read_element(value, meta.dtype, others)

    return compute_tensor(meta.shape, meta.dtype, body)


@lowering("DiagonalScatterOp")
def diagonal_scatter(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the first operand with a diagonal of each matrix replaced by the second operand."""
    value, source = (value_of(arg, symbol_table) for arg in node.args[:2])
    meta, length, source_type = node.tensor_meta, st.shape_of(source)[-1], node.args[1].tensor_meta.dtype
    offset, row, column = _diagonal_arguments(node, 2, len(meta.shape))
    if 0 in st.shape_of(source):
        return value

    def body(*indices: Scalar) -> Scalar:
        along = s.minimum(s.maximum(indices[row] - max(-offset, 0), 0), length - 1)
        others = [index for i, index in enumerate(indices) if i not in (row, column)]
        new = cast(read_element(source, source_type, [*others, along]), meta.dtype)
        is_on_diagonal = (indices[column] - indices[row]).compare("eq", offset)
        return s.select(is_on_diagonal, new, read_element(value, meta.dtype, indices))

    return compute_tensor(meta.shape, meta.dtype, body)


# ---- by strides ------------------------------------------------------------------------------------------------------


def _strided_arguments(node: Op, first: int) -> tuple[list[int], list[int], int]:
    """Returns sizes, strides and offset, which are the node's arguments from `first` on."""
    return node.args[first], node.args[first + 1], argument(node, first + 2, "storage_offset") or 0


def _flatten(value: ir.Value, end: int, dtype: TensorDType) -> ir.Value:
    """Returns the elements of a tensor in row-major order, of which the node accesses those before `end`.

    Raises `LoweringError` if `end` is greater than their number, because the node then accesses storage outside of the
    tensor.
    """
    count = prod(st.shape_of(value))
    if end > count:
        raise LoweringError(f"the strides reach element {end - 1} of a tensor of {count} elements")
    return st.reshape(value, [count], dtype)


def _access_end(sizes: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """Returns the index after that of the last element that a strided access reads or writes."""
    return 0 if 0 in sizes else offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) + 1


@lowering("AsStridedOp")
def as_strided(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Reads the elements at the positions `offset + sum(index * stride)` of the operand in row-major order."""
    meta, (sizes, strides, offset) = node.tensor_meta, _strided_arguments(node, 1)
    flat = _flatten(value_of(node.args[0], symbol_table), _access_end(sizes, strides, offset), meta.dtype)

    def body(*indices: Scalar) -> Scalar:
        terms = (index * stride for index, stride in zip(indices, strides, strict=True))
        return read_element(flat, meta.dtype, [sum(terms, position_scalar(offset))])

    return compute_tensor(meta.shape, meta.dtype, body)


@lowering("AsStridedScatterOp")
def as_strided_scatter(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Returns the first operand with the elements that `as_strided` reads replaced by the second operand, in order."""
    meta, (sizes, strides, offset) = node.tensor_meta, _strided_arguments(node, 2)
    flat = _flatten(value_of(node.args[0], symbol_table), _access_end(sizes, strides, offset), meta.dtype)
    source, source_type = value_of(node.args[1], symbol_table), node.args[1].tensor_meta.dtype

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        terms = (loops.index_to_scalar(index) * stride for index, stride in zip(indices, strides, strict=True))
        target = loops.scalar_to_index(sum(terms, position_scalar(offset)))
        return [loops.insert(cast(loops.element(source, indices, source_type), meta.dtype), [target], carried[0])]

    (written,) = [flat] if 0 in sizes else loops.for_each(sizes, [flat], visit)
    return st.reshape(written, meta.shape, meta.dtype)


# ---- reinterpreted bits ----------------------------------------------------------------------------------------------


@lowering("ViewDtypeOp")
def view_dtype(node: Op, symbol_table: SymbolTable) -> ir.Value:
    """Reinterprets the bytes as elements of another type; the size of the last dim changes with the element size."""
    value, meta, old_type = value_of(node.args[0], symbol_table), node.tensor_meta, node.args[0].tensor_meta.dtype
    old_width, new_width = stored_bit_width(old_type), stored_bit_width(meta.dtype)
    if old_width == new_width:
        return st.pointwise([(value, old_type)], meta.shape, meta.dtype, lambda x: from_bits(bits_of(x), meta.dtype))
    parts, new_integer = max(old_width, new_width) // min(old_width, new_width), INTEGER_TYPES[new_width]

    def narrow(*indices: Scalar) -> Scalar:
        """Returns one of the parts of an old element."""
        *others, last = indices
        old_last = divide_position(last, parts)
        bits = bits_of(read_element(value, old_type, [*others, old_last]))
        shift = cast((last - old_last * parts) * new_width, bits.dtype)
        return from_bits(cast(Scalar(arith.shrui(bits.value, shift.value), bits.dtype), new_integer), meta.dtype)

    def widen(*indices: Scalar) -> Scalar:
        """Returns the concatenation of several old elements, the first one in the lowest bits."""
        *others, last = indices
        bits = Scalar(constant(0, new_integer), new_integer)
        for part in range(parts):
            old_bits = bits_of(read_element(value, old_type, [*others, last * parts + part]))
            extended = arith.extui(mlir_element_type_get(bits.dtype), old_bits.value)
            bits = bits | Scalar(arith.shli(extended, bits.like(part * old_width).value), bits.dtype)
        return from_bits(bits, meta.dtype)

    return compute_tensor(meta.shape, meta.dtype, narrow if old_width > new_width else widen)


@lowering("EmptyOp")
def empty(node: Op, symbol_table: SymbolTable) -> ir.Value:
    return st.empty(node.tensor_meta.shape, node.tensor_meta.dtype)
