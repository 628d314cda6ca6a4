"""Builders of tensor ops that lowerings share: `linalg` ops, reshapes, slices and casts; the types of accumulators.

Each builder returns a tensor, and records the tensor's shape if it has symbolic sizes. Element types (`dtype`) are
those of the graph, because MLIR's types lack the signedness of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buddy.compiler.graph.sizes import Dim, is_dynamic, product
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir, linalg, tensor
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sizes import index_value, known_shape, record_shape, split_sizes
from buddy.compiler.ops.utils import constant, meta_type, mlir_element_type_get, tensor_type

if TYPE_CHECKING:
    from buddy.compiler.graph.sizes import Size


PARALLEL, REDUCTION = "parallel", "reduction"


def shape_of(value: ir.Value) -> tuple[Any, ...]:
    """Returns the shape of a tensor: an int per static dim, a `Size` per dynamic dim.

    This function, and all that use it, raise `LoweringError` for a tensor with dynamic dims whose shape was not
    recorded.
    """
    return known_shape(value)


@dataclass(frozen=True)
class WindowDim:
    """A dim read at index `stride * i + dilation * j`, where `i`, `j` are the indices of loop `outer` and `inner`."""

    outer: int
    stride: int
    inner: int
    dilation: int


@dataclass(frozen=True)
class ReversedDim:
    """A dim of static size that a loop reads from the last to the first element."""

    loop: int
    size: int


# How the loops of a structured op index a dim of an operand: by the loop with this number, by one of these classes, or
# `None` for a broadcast unit dim.
DimIndex = int | WindowDim | ReversedDim | None


# A number, a symbolic size, or a value of type index.
Index = Dim | ir.Value


def affine_map(rank: int, dims: Sequence[DimIndex]) -> ir.AffineMap:
    """Returns the affine map from the indices of `rank` loops to those of `dims`; a broadcast dim has the index 0."""
    return ir.AffineMap.get(rank, 0, [_expression(dim) for dim in dims])


def _expression(dim: DimIndex) -> ir.AffineExpr:
    """Returns the index of a dim as an affine expression of the loops' indices."""
    if dim is None:
        return ir.AffineConstantExpr.get(0)
    if isinstance(dim, WindowDim):
        return ir.AffineDimExpr.get(dim.outer) * dim.stride + ir.AffineDimExpr.get(dim.inner) * dim.dilation
    if isinstance(dim, ReversedDim):
        return ir.AffineConstantExpr.get(dim.size - 1) - ir.AffineDimExpr.get(dim.loop)
    return ir.AffineDimExpr.get(dim)


def broadcast_dims(operand_shape: Sequence[Dim], shape: Sequence[Dim]) -> list[int | None]:
    """Returns the loop that indexes each dim of an operand broadcast to `shape`; `None` for broadcast unit dims."""
    offset = len(shape) - len(operand_shape)
    return [None if size == 1 and shape[offset + i] != 1 else offset + i for i, size in enumerate(operand_shape)]


def empty(shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    """Returns a tensor whose elements are undefined, into which an op writes its result."""
    sizes = [size if isinstance(size, int) else index_value(size) for size in shape]
    return record_shape(tensor.empty(sizes, mlir_element_type_get(dtype)), shape)


def filled(value: bool | int | float, shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    """Returns a tensor whose elements are all `value`."""
    return record_shape(linalg.fill(constant(value, dtype), outs=[empty(shape, dtype)]), shape)


def generic(
    inputs: Sequence[ir.Value], dims: Sequence[Sequence[DimIndex]], outs: Sequence[ir.Value],
    out_dims: Sequence[Sequence[DimIndex]], iterators: Sequence[str], body: Callable[..., Sequence[ir.Value]],
) -> list[ir.Value]:  # fmt: skip
    """Emits a `linalg.generic`; returns its results, one for each of `outs`.

    `iterators` has the kind of each loop, `PARALLEL` or `REDUCTION`. `dims[i]` says how the loops index the dims of
    `inputs[i]`, and `out_dims[i]` those of `outs[i]`. `body` takes one MLIR scalar per operand, inputs first, and
    returns one per result.
    """
    rank = len(iterators)
    maps = [ir.AffineMapAttr.get(affine_map(rank, operand_dims)) for operand_dims in (*dims, *out_dims)]
    iterator_types = [ir.Attribute.parse(f"#linalg.iterator_type<{name}>") for name in iterators]
    results, attributes = [out.type for out in outs], (ir.ArrayAttr.get(maps), ir.ArrayAttr.get(iterator_types))
    op = linalg.GenericOp(results, list(inputs), list(outs), *attributes)
    elements = [ir.RankedTensorType(value.type).element_type for value in (*inputs, *outs)]
    location = ir.Location.current
    block = op.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
    with ir.InsertionPoint(block):
        linalg.yield_(list(body(*block.arguments)))
    return [record_shape(result, shape_of(out)) for result, out in zip(op.results, outs, strict=True)]


def pointwise(
    inputs: Sequence[tuple[ir.Value, TensorDType]],
    shape: Sequence[Dim],
    dtype: TensorDType,
    body: Callable[..., Scalar],
) -> ir.Value:
    """Returns a tensor of `shape` with elements `body(*elements)`, where the inputs are broadcast to `shape`."""
    types = [input_type for _, input_type in inputs]

    def scalars(*values: ir.Value) -> list[ir.Value]:
        return [body(*map(Scalar, values, types)).value]

    dims = [broadcast_dims(shape_of(value), shape) for value, _ in inputs]
    all_loops = list(range(len(shape)))
    out = empty(shape, dtype)
    return generic([value for value, _ in inputs], dims, [out], [all_loops], [PARALLEL] * len(shape), scalars)[0]


def reduce(
    inputs: Sequence[tuple[ir.Value, TensorDType]], shape: Sequence[Dim], axes: Sequence[int],
    initial: bool | int | float, dtype: TensorDType, body: Callable[..., Scalar], *, keep: bool = False,
) -> ir.Value:  # fmt: skip
    """Reduces the inputs, broadcast to `shape`, over the dims `axes`.

    `initial` is the first accumulated value, and `body(*elements, accumulated)` returns the next one. `dtype` is the
    element type of the result. With `keep`, the reduced dims remain as unit dims.
    """
    if any(shape[i] == 1 for i in axes):
        return _reduce_without_unit_dims(inputs, shape, axes, initial, dtype, body, keep=keep)
    rank, types = len(shape), [input_type for _, input_type in inputs]
    out_dims = [None if i in axes else i for i in range(rank) if keep or i not in axes]
    out_shape = [1 if dim is None else shape[dim] for dim in out_dims]

    def scalars(*values: ir.Value) -> list[ir.Value]:
        return [body(*map(Scalar, values, (*types, dtype))).value]

    dims = [broadcast_dims(shape_of(value), shape) for value, _ in inputs]
    iterators = [REDUCTION if i in axes else PARALLEL for i in range(rank)]
    out = filled(initial, out_shape, dtype)
    return generic([value for value, _ in inputs], dims, [out], [out_dims], iterators, scalars)[0]


def _reduce_without_unit_dims(
    inputs: Sequence[tuple[ir.Value, TensorDType]], shape: Sequence[Dim], axes: Sequence[int],
    initial: bool | int | float, dtype: TensorDType, body: Callable[..., Scalar], *, keep: bool = False,
) -> ir.Value:  # fmt: skip
    """Implements `reduce` without loops over axes of size 1.

    After a reshape is fused, no operand would determine the trip count of such a loop.
    """
    rank, unit_dims = len(shape), [i for i in axes if shape[i] == 1]
    other_dims = [i for i in range(rank) if i not in unit_dims]
    squeezed = []
    for value, input_type in inputs:
        sizes = shape_of(value)
        squeezed_shape = [size for i, size in enumerate(sizes, rank - len(sizes)) if i not in unit_dims]
        squeezed.append((reshape(value, squeezed_shape, input_type), input_type))
    other_axes = [other_dims.index(i) for i in axes if i not in unit_dims]
    reduced = reduce(squeezed, [shape[i] for i in other_dims], other_axes, initial, dtype, body)
    out_shape = [1 if i in axes else shape[i] for i in range(rank) if keep or i not in axes]
    return reshape(reduced, out_shape, dtype)


def contract(
    a: ir.Value, b: ir.Value, a_dims: str, b_dims: str, out_dims: str, dtype: TensorDType,
    start: ir.Value | None = None, unsigned: tuple[bool, bool] = (False, False),
) -> ir.Value:  # fmt: skip
    """Emits a contraction in index notation, such as `contract(a, b, "mk", "kn", "mn", f32)`.

    The sums are added to the tensor `start`, by default zeros. The operands are extended to `dtype`; integers are
    zero-extended if `unsigned` is true for the operand, else sign-extended.
    """
    # One loop per letter: first those of the result, then those that are summed over.
    letters = out_dims + "".join(dict.fromkeys(c for c in a_dims + b_dims if c not in out_dims))
    sizes = dict(zip(a_dims, shape_of(a), strict=True)) | dict(zip(b_dims, shape_of(b), strict=True))
    dims = [[letters.index(c) for c in operand_dims] for operand_dims in (a_dims, b_dims, out_dims)]
    if start is None:
        start = filled(0, [sizes[c] for c in out_dims], dtype)
    if any(unsigned):
        iterators = [PARALLEL if c in out_dims else REDUCTION for c in letters]
        return generic([a, b], dims[:2], [start], dims[2:], iterators, _multiply_add(dtype, unsigned))[0]
    maps = [affine_map(len(letters), indices) for indices in dims]
    return record_shape(linalg.contract(a, b, outs=[start], indexing_maps=maps), shape_of(start))


def _multiply_add(dtype: TensorDType, unsigned: tuple[bool, bool]) -> Callable[..., list[ir.Value]]:
    """Returns a body for integers of mixed signedness; `linalg.contract` extends both operands in the same way."""
    element = mlir_element_type_get(dtype)

    def extend(operand: ir.Value, is_unsigned: bool) -> ir.Value:
        if operand.type == element:
            return operand
        return (arith.extui if is_unsigned else arith.extsi)(element, operand)

    def body(a: ir.Value, b: ir.Value, total: ir.Value) -> list[ir.Value]:
        return [arith.addi(arith.muli(extend(a, unsigned[0]), extend(b, unsigned[1])), total)]

    return body


def transpose(value: ir.Value, permutation: Sequence[int], dtype: TensorDType) -> ir.Value:
    """Transposes: result dim `i` is input dim `permutation[i]`."""
    if list(permutation) == sorted(permutation):
        return value
    shape = shape_of(value)
    out = empty([shape[p] for p in permutation], dtype)
    transposed = linalg.transpose(value, outs=[out], permutation=list(permutation)).operation.results[0]
    return record_shape(transposed, shape_of(out))


def broadcast(value: ir.Value, shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    """Returns a tensor broadcast to `shape`; its element type is `dtype`."""
    if shape_of(value) == tuple(shape):
        return value
    return pointwise([(value, dtype)], shape, dtype, lambda x: x)


def reshape(value: ir.Value, shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    """Reshapes in row-major order: collapses the dims to groups that both shapes have in common, then expands them."""
    old, new = shape_of(value), tuple[Any, ...](shape)
    if old == new:
        return value
    if 0 in old:
        return empty(new, dtype)
    groups = _symbolic_groups(old, new) if is_dynamic((*old, *new)) else _common_groups(old, new)
    collapsed = [product(old[start:end]) for (start, end), _ in groups]
    if len(collapsed) != len(old):
        value = _collapse(value, [list(range(*old_dims)) for old_dims, _ in groups], collapsed, dtype)
    if len(collapsed) != len(new):
        value = _expand(value, [list(range(*new_dims)) for _, new_dims in groups], new, dtype)
    return value


def _collapse(value: ir.Value, groups: list[list[int]], shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    return record_shape(tensor.collapse_shape(tensor_type(shape, dtype), value, groups), shape)


def _expand(value: ir.Value, groups: list[list[int]], shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    return record_shape(tensor.expand_shape(tensor_type(shape, dtype), value, groups, *split_sizes(shape)), shape)


# Pairs of a range of dims of the old shape and a range of dims of the new shape, as (start, end).
Groups = list[tuple[tuple[int, int], tuple[int, int]]]


def _symbolic_groups(old: Sequence[Dim], new: Sequence[Dim]) -> Groups:
    """Returns the groups of symbolic shapes; a group ends only where the products are certainly equal."""
    if not old or not new:
        return []
    groups: Groups = []
    old_start = new_start = 0
    for old_end in range(1, len(old)):
        old_product = product(old[old_start:old_end])
        new_ends = range(new_start + 1, len(new))
        new_end = next((end for end in new_ends if product(new[new_start:end]) == old_product), None)
        # Dims of size 1 after the end of a group belong to the next group, which needs another dim.
        if new_end is not None and product(old[old_end:]) == product(new[new_end:]):
            groups.append(((old_start, old_end), (new_start, new_end)))
            old_start, new_start = old_end, new_end
    return [*groups, ((old_start, len(old)), (new_start, len(new)))]


def _common_groups(old: Sequence[int], new: Sequence[int]) -> Groups:
    """Returns the smallest possible groups of static shapes, whose sizes have equal products in both shapes.

    Returns an empty list if either shape has rank 0.
    """
    if not old or not new:
        return []
    groups: Groups = []
    i = j = 0
    while i < len(old) and j < len(new):
        old_start, new_start, old_product, new_product = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while old_product != new_product:
            if old_product < new_product:
                old_product, i = old_product * old[i], i + 1
            else:
                new_product, j = new_product * new[j], j + 1
        groups.append(((old_start, i), (new_start, j)))
    # Remaining unit dims on one side join the last group.
    (old_start, _), (new_start, _) = groups[-1]
    groups[-1] = ((old_start, len(old)), (new_start, len(new)))
    return groups


def slice_of(
    value: ir.Value, offsets: Sequence[Index], sizes: Sequence[Dim], strides: Sequence[Index],
    shape: Sequence[Dim], dtype: TensorDType,
) -> ir.Value:  # fmt: skip
    """Extracts a slice as a tensor of `shape`, in which unit dims of the slice may be left out.

    Offsets and strides are numbers, symbolic sizes, or values of type index. `dtype` is the element type.
    """
    result_type = tensor_type(shape, dtype)
    return record_shape(tensor.extract_slice(result_type, value, *_slice_operands(offsets, sizes, strides)), shape)


def _slice_operands(
    offsets: Sequence[Index], sizes: Sequence[Dim], strides: Sequence[Index]
) -> list[list[ir.Value] | list[int]]:
    """Returns the operands of slice ops: the dynamic offsets, sizes and strides, then the static ones."""
    dynamic, static = zip(*map(split_sizes, (offsets, sizes, strides)), strict=True)
    return [*dynamic, *static]


def insert_slice(
    piece: ir.Value,
    value: ir.Value,
    offsets: Sequence[Index],
    sizes: Sequence[Dim],
    strides: Sequence[Index],
) -> ir.Value:
    """Returns `value` with `piece` in place of the elements that `slice_of` extracts with the same arguments."""
    return record_shape(tensor.insert_slice(piece, value, *_slice_operands(offsets, sizes, strides)), shape_of(value))


def cast_shape(value: ir.Value, meta: TensorMeta) -> ir.Value:
    """Casts a tensor to the type of `meta`, from which its type differs in which sizes are static.

    Returns `value` unchanged if it is not a tensor of the rank of `meta`.
    """
    result_type = meta_type(meta)
    if not isinstance(value.type, ir.RankedTensorType) or len(value.type.shape) != len(meta.shape):
        return value
    return record_shape(value if value.type == result_type else tensor.cast(result_type, value), meta.shape)


def index_to_integer(value: ir.Value, dtype: TensorDType) -> ir.Value:
    """Casts a value of type `index` to an integer type."""
    return arith.index_cast(mlir_element_type_get(dtype), value)


def integer_to_index(value: ir.Value) -> ir.Value:
    """Casts a signed integer to the type `index`."""
    return arith.index_cast(ir.IndexType.get(), value)


def loop_index(dim: int) -> ir.Value:
    """Returns the index of loop `dim`, inside a body."""
    return linalg.IndexOp(dim).result


# ---- accumulator types and casts -------------------------------------------------------------------------------------


# Sums of at least this many f32 terms use an f64 accumulator.
MIN_F64_TERMS = 1 << 16
_WIDE = {TensorDType.Float16: TensorDType.Float32, TensorDType.BFloat16: TensorDType.Float32}


def accumulator_type(dtype: TensorDType, count: int | Size = 1) -> TensorDType:
    """Returns the accumulator type for `count` elements of `dtype`.

    It is f32 for 16-bit floats, as in PyTorch, and f64 for at least `MIN_F64_TERMS` floats of up to 32 bits. A symbolic
    `count` counts as small.

    PyTorch adds many numbers pairwise, while compiled code may use one accumulator. There, f32 with its 24 bits loses
    most of each term: a sum of 2**16 equal terms is 2**16 times as large as a term.
    """
    wide = _WIDE.get(dtype, dtype)
    is_long_sum = isinstance(count, int) and count >= MIN_F64_TERMS
    return TensorDType.Float64 if wide is TensorDType.Float32 and is_long_sum else wide


def cast_tensor(value: ir.Value, dtype: TensorDType, to: TensorDType) -> ir.Value:
    """Casts each element of a tensor from `dtype` to `to`."""
    if dtype is to:
        return value
    return pointwise([(value, dtype)], shape_of(value), to, lambda x: cast(x, to))
