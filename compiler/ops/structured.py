"""Builders of structured ops on tensors, which lowerings share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.sizes import Dim as Extent
from buddy.compiler.graph.sizes import is_dynamic, product
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir, linalg, tensor
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sizes import index_value, known_shape, remember, split_sizes
from buddy.compiler.ops.utils import constant, meta_type, mlir_element_type_get, tensor_type

PARALLEL, REDUCTION = "parallel", "reduction"


def shape_of(value: Any) -> tuple[Any, ...]:
    """Returns the shape of a tensor: an int per static dim, a `Size` per dynamic dim.

    Raises `LoweringError` for a tensor with dynamic dims whose shape was not recorded, as all builders here do.
    """
    return known_shape(value)


@dataclass(frozen=True)
class WindowDim:
    """A dim that a sliding window reads at `stride * outer + dilation * inner`, where both are loop dims."""

    outer: int
    stride: int
    inner: int
    dilation: int


@dataclass(frozen=True)
class ReversedDim:
    """A dim of static size that is read backwards along a loop."""

    loop: int
    size: int


Dim = int | WindowDim | ReversedDim | None


def affine_map(rank: int, dims: Sequence[Dim]) -> Any:
    """Returns the affine map from `rank` loops to `dims`; `None` is the constant 0, for a broadcast unit dim."""
    return ir.AffineMap.get(rank, 0, [_expression(dim) for dim in dims])


def _expression(dim: Dim) -> Any:
    if dim is None:
        return ir.AffineConstantExpr.get(0)
    if isinstance(dim, WindowDim):
        return ir.AffineDimExpr.get(dim.outer) * dim.stride + ir.AffineDimExpr.get(dim.inner) * dim.dilation
    if isinstance(dim, ReversedDim):
        return ir.AffineConstantExpr.get(dim.size - 1) - ir.AffineDimExpr.get(dim.loop)
    return ir.AffineDimExpr.get(dim)


def broadcast_dims(operand_shape: Sequence[Extent], shape: Sequence[Extent]) -> list[int | None]:
    """Returns the loop dims that an operand reads when it is broadcast to `shape`."""
    offset = len(shape) - len(operand_shape)
    return [None if size == 1 and shape[offset + i] != 1 else offset + i for i, size in enumerate(operand_shape)]


def empty(shape: Sequence[Extent], dtype: TensorDType) -> Any:
    sizes = [size if isinstance(size, int) else index_value(size) for size in shape]
    return remember(tensor.empty(sizes, mlir_element_type_get(dtype)), shape)


def filled(value: bool | int | float, shape: Sequence[Extent], dtype: TensorDType) -> Any:
    return remember(linalg.fill(constant(value, dtype), outs=[empty(shape, dtype)]), shape)


def generic(
    inputs: Sequence[Any], dims: Sequence[Sequence[Dim]], outs: Sequence[Any],
    out_dims: Sequence[Sequence[Dim]], iterators: Sequence[str], body: Callable[..., Sequence[Any]],
) -> list[Any]:  # fmt: skip
    """Emits a `linalg.generic`; `body` takes one MLIR scalar per operand and returns one per result."""
    rank = len(iterators)
    maps = [ir.AffineMapAttr.get(affine_map(rank, d)) for d in (*dims, *out_dims)]
    kinds = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in iterators]
    results = [out.type for out in outs]
    op = linalg.GenericOp(results, list(inputs), list(outs), ir.ArrayAttr.get(maps), ir.ArrayAttr.get(kinds))
    elements = [ir.RankedTensorType(value.type).element_type for value in (*inputs, *outs)]
    location = ir.Location.current
    block = op.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
    with ir.InsertionPoint(block):
        linalg.yield_(list(body(*block.arguments)))
    return [remember(result, shape_of(out)) for result, out in zip(op.results, outs, strict=True)]


def pointwise(
    inputs: Sequence[tuple[Any, TensorDType]], shape: Sequence[Extent], dtype: TensorDType, body: Callable[..., Scalar]
) -> Any:
    """Returns a tensor of `shape` whose elements are `body` of the broadcast inputs' elements."""
    types = [t for _, t in inputs]

    def scalars(*values: Any) -> list[Any]:
        return [body(*map(Scalar, values, types)).value]

    dims = [broadcast_dims(shape_of(value), shape) for value, _ in inputs]
    every = list(range(len(shape)))
    out = empty(shape, dtype)
    return generic([v for v, _ in inputs], dims, [out], [every], [PARALLEL] * len(shape), scalars)[0]


def reduce(
    inputs: Sequence[tuple[Any, TensorDType]], shape: Sequence[int], axes: Sequence[int], keep: bool,
    initial: bool | int | float, dtype: TensorDType, body: Callable[..., Scalar],
) -> Any:  # fmt: skip
    """Folds the inputs, broadcast to `shape`, over `axes`, by `body(*elements, accumulated)` from `initial`.

    `dtype` is the element type of the result; with `keep`, the reduced dims stay as unit dims.
    """
    if any(shape[i] == 1 for i in axes):
        return _reduce_without_units(inputs, shape, axes, keep, initial, dtype, body)
    rank, types = len(shape), [t for _, t in inputs]
    kept = [None if i in axes else i for i in range(rank)] if keep else [i for i in range(rank) if i not in axes]
    out_shape = [1 if d is None else shape[d] for d in kept]

    def scalars(*values: Any) -> list[Any]:
        return [body(*map(Scalar, values, (*types, dtype))).value]

    dims = [broadcast_dims(shape_of(value), shape) for value, _ in inputs]
    iterators = [REDUCTION if i in axes else PARALLEL for i in range(rank)]
    out = filled(initial, out_shape, dtype)
    return generic([v for v, _ in inputs], dims, [out], [kept], iterators, scalars)[0]


def _reduce_without_units(
    inputs: Sequence[tuple[Any, TensorDType]], shape: Sequence[int], axes: Sequence[int], keep: bool,
    initial: bool | int | float, dtype: TensorDType, body: Callable[..., Scalar],
) -> Any:  # fmt: skip
    """Implements `reduce` without loops over axes of size 1, whose bounds no operand has once a reshape is fused."""
    rank, units = len(shape), [i for i in axes if shape[i] == 1]
    rest, squeezed = [i for i in range(rank) if i not in units], []
    for value, kind in inputs:
        sizes = shape_of(value)
        kept = [size for i, size in enumerate(sizes, rank - len(sizes)) if i not in units]
        squeezed.append((reshape(value, kept, kind), kind))
    others = [rest.index(i) for i in axes if i not in units]
    found = reduce(squeezed, [shape[i] for i in rest], others, False, initial, dtype, body)
    wanted = [1 if i in axes else shape[i] for i in range(rank) if keep or i not in axes]
    return reshape(found, wanted, dtype)


def contract(
    a: Any, b: Any, a_dims: str, b_dims: str, out_dims: str, dtype: TensorDType, start: Any = None,
    unsigned: tuple[bool, bool] = (False, False),
) -> Any:  # fmt: skip
    """Emits a contraction in index notation, such as `contract(a, b, "mk", "kn", "mn", f32)`; sums start from `start`.

    The factors are extended to `dtype`: integers by sign, or by zeros if they are `unsigned`.
    """
    letters = out_dims + "".join(dict.fromkeys(c for c in a_dims + b_dims if c not in out_dims))
    sizes = dict(zip(a_dims, shape_of(a), strict=True)) | dict(zip(b_dims, shape_of(b), strict=True))
    dims = [[letters.index(c) for c in dims] for dims in (a_dims, b_dims, out_dims)]
    if start is None:
        start = filled(0, [sizes[c] for c in out_dims], dtype)
    if any(unsigned):
        iterators = [PARALLEL if c in out_dims else REDUCTION for c in letters]
        return generic([a, b], dims[:2], [start], dims[2:], iterators, _multiply_add(dtype, unsigned))[0]
    maps = [affine_map(len(letters), indices) for indices in dims]
    return remember(linalg.contract(a, b, outs=[start], indexing_maps=maps), shape_of(start))


def _multiply_add(dtype: TensorDType, unsigned: tuple[bool, bool]) -> Callable[..., list[Any]]:
    """Returns a body for integers of either signedness; `linalg.contract` extends both factors in the same way."""
    element = mlir_element_type_get(dtype)

    def body(a: Any, b: Any, total: Any) -> list[Any]:
        wide = [
            factor if factor.type == element else (arith.extui if positive else arith.extsi)(element, factor)
            for factor, positive in zip((a, b), unsigned, strict=True)
        ]
        return [arith.addi(arith.muli(*wide), total)]

    return body


def transpose(value: Any, permutation: Sequence[int], dtype: TensorDType) -> Any:
    """Transposes: result dim `i` is input dim `permutation[i]`."""
    if list(permutation) == sorted(permutation):
        return value
    shape = shape_of(value)
    out = empty([shape[p] for p in permutation], dtype)
    turned = linalg.transpose(value, outs=[out], permutation=list(permutation)).operation.results[0]
    return remember(turned, shape_of(out))


def broadcast(value: Any, shape: Sequence[Extent], dtype: TensorDType) -> Any:
    if shape_of(value) == tuple(shape):
        return value
    return pointwise([(value, dtype)], shape, dtype, lambda x: x)


def reshape(value: Any, shape: Sequence[Extent], dtype: TensorDType) -> Any:
    """Reshapes in row-major order: collapses to common groups, then expands."""
    old, new = shape_of(value), tuple[Any, ...](shape)
    if old == new:
        return value
    if 0 in old:
        return empty(new, dtype)
    groups = _symbolic_groups(old, new) if is_dynamic((*old, *new)) else _common_groups(old, new)
    middle = [product(old[a:b]) for (a, b), _ in groups]
    if len(middle) != len(old):
        value = _collapse(value, [list(range(a, b)) for (a, b), _ in groups], middle, dtype)
    if len(middle) != len(new):
        value = _expand(value, [list(range(c, d)) for _, (c, d) in groups], new, dtype)
    return value


def _collapse(value: Any, groups: list[list[int]], shape: Sequence[Extent], dtype: TensorDType) -> Any:
    return remember(tensor.collapse_shape(tensor_type(shape, dtype), value, groups), shape)


def _expand(value: Any, groups: list[list[int]], shape: Sequence[Extent], dtype: TensorDType) -> Any:
    return remember(tensor.expand_shape(tensor_type(shape, dtype), value, groups, *split_sizes(shape)), shape)


Groups = list[tuple[tuple[int, int], tuple[int, int]]]


def _symbolic_groups(old: Sequence[Extent], new: Sequence[Extent]) -> Groups:
    """Returns `_common_groups` of symbolic sizes; a group ends only where products are provably equal."""
    if not old or not new:
        return []
    groups: Groups = []
    i = j = 0
    for a in range(1, len(old)):
        found = (b for b in range(j + 1, len(new)) if product(old[i:a]) == product(new[j:b]))
        b = next(found, None)
        # Dims of size 1 after a boundary belong to the next group, which needs another dim.
        if b is not None and product(old[a:]) == product(new[b:]):
            groups.append(((i, a), (j, b)))
            i, j = a, b
    return [*groups, ((i, len(old)), (j, len(new)))]


def _common_groups(old: Sequence[int], new: Sequence[int]) -> Groups:
    """Returns the finest ranges of dims of both shapes with equal products; an empty list if either has rank 0."""
    if not old or not new:
        return []
    groups: Groups = []
    i = j = 0
    while i < len(old) and j < len(new):
        a, b, left, right = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        groups.append(((a, i), (b, j)))
    # Remaining unit dims on one side join the last group.
    (a, _), (b, _) = groups[-1]
    groups[-1] = ((a, len(old)), (b, len(new)))
    return groups


def slice_of(
    value: Any, offsets: Sequence[Any], sizes: Sequence[Extent], strides: Sequence[Any], shape: Sequence[Extent],
    dtype: TensorDType,
) -> Any:  # fmt: skip
    """Extracts `sizes` elements from `offsets` on, `strides` apart, as a tensor of `shape`, which may lack unit dims.

    Offsets and strides are numbers, sizes, or values of type index.
    """
    kind = tensor_type(shape, dtype)
    return remember(tensor.extract_slice(kind, value, *_slice_operands(offsets, sizes, strides)), shape)


def _slice_operands(offsets: Sequence[Any], sizes: Sequence[Extent], strides: Sequence[Any]) -> list[Any]:
    """Returns the operands of slice ops: the dynamic offsets, sizes and strides, then the static ones."""
    dynamic, static = zip(*map(split_sizes, (offsets, sizes, strides)), strict=True)
    return [*dynamic, *static]


def insert_slice(
    piece: Any, value: Any, offsets: Sequence[Any], sizes: Sequence[Extent], strides: Sequence[Any]
) -> Any:
    """Returns `value` with `piece` inserted at the elements that `slice_of` reads."""
    return remember(tensor.insert_slice(piece, value, *_slice_operands(offsets, sizes, strides)), shape_of(value))


def fitted(value: Any, meta: TensorMeta) -> Any:
    """Returns `value` cast to the type of `meta`, if the two types differ only in which sizes are static."""
    wanted = meta_type(meta)
    if not isinstance(value.type, ir.RankedTensorType) or len(value.type.shape) != len(meta.shape):
        return value
    return remember(value if value.type == wanted else tensor.cast(wanted, value), meta.shape)


def index_to(value: Any, dtype: TensorDType) -> Any:
    return arith.index_cast(mlir_element_type_get(dtype), value)


def to_index(value: Any) -> Any:
    return arith.index_cast(ir.IndexType.get(), value)


def loop_index(dim: int) -> Any:
    """Returns the position along loop `dim`, inside a body."""
    return linalg.IndexOp(dim).result
