"""Tiles of tensors in memory order, and the loops over them that the lowering of attention is built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf, tensor
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.structured import PARALLEL, REDUCTION, broadcast_dims, generic, shape_of
from buddy.compiler.ops.utils import tensor_type

# An int, or an MLIR value of type index.
Index = int | ir.Value
# The arguments of slice ops: the dynamic offsets, sizes and strides, then the static ones.
SliceArguments = tuple[list[ir.Value], list[ir.Value], list[ir.Value], list[int], list[int], list[int]]
T = TypeVar("T")


@dataclass(frozen=True)
class TileOperand:
    """A logical tensor [batch..., rows, width]; its dim `i` is dim `order[i]` of the tensor `value` in memory."""

    value: Any
    dtype: TensorDType
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape [batch..., rows, width] of the logical tensor."""
        memory_shape = shape_of(self.value)
        return tuple(memory_shape[dim] for dim in self.order)

    def tile(self, offsets: Sequence[Index], sizes: Sequence[int]) -> ir.Value:
        """Returns the matrix [rows, width] at `offsets`, of the given `sizes`, which are 1 for batch dims."""
        return tensor.extract_slice(tensor_type(sizes[-2:], self.dtype), self.value, *self.slice(offsets, sizes))

    def slice(self, offsets: Sequence[Index], sizes: Sequence[int]) -> SliceArguments:
        """Returns the arguments of slice ops for the matrix that `tile` returns."""
        return slice_arguments(self._in_memory_order(offsets), self._in_memory_order(sizes))

    def _in_memory_order(self, values: Sequence[T]) -> list[T]:
        """Permutes per-dim values from the operand's dim order to that of the tensor in memory."""
        return [values[self.order.index(dim)] for dim in range(len(values))]


def slice_arguments(offsets: Sequence[Index], sizes: Sequence[int]) -> SliceArguments:
    """Returns the arguments of slice ops with strides of 1.

    Only offsets may be dynamic. Among the static offsets, MLIR's marker takes the place of a dynamic one.
    """
    marker = ir.ShapedType.get_dynamic_stride_or_offset()
    dynamic_offsets = [offset for offset in offsets if not isinstance(offset, int)]
    static = [offset if isinstance(offset, int) else marker for offset in offsets]
    return dynamic_offsets, [], [], static, list(sizes), [1] * len(sizes)


def update_in_place(
    target: ir.Value, dtype: TensorDType, inputs: Sequence[tuple[ir.Value, TensorDType]], body: Callable[..., Scalar]
) -> ir.Value:
    """Returns `target` with each element replaced by `body(element, *elements of the broadcast inputs)`.

    The op uses `target` as its output operand, so that bufferization updates loop-carried tensors in place.
    """
    shape, types = shape_of(target), [input_type for _, input_type in inputs]

    def scalars(*values: ir.Value) -> list[ir.Value]:
        *elements, old = values
        return [body(Scalar(old, dtype), *map(Scalar, elements, types)).value]

    dims = [broadcast_dims(shape_of(value), shape) for value, _ in inputs]
    all_loops = list(range(len(shape)))
    return generic([value for value, _ in inputs], dims, [target], [all_loops], [PARALLEL] * len(shape), scalars)[0]


def reduce_rows(
    value: ir.Value, start: ir.Value, dtype: TensorDType, body: Callable[[Scalar, Scalar], Scalar]
) -> ir.Value:
    """Reduces the rows of `value` [rows, n] by `body(accumulated, element)`, with initial values `start` [rows, 1]."""

    def scalars(x: ir.Value, accumulated: ir.Value) -> list[ir.Value]:
        return [body(Scalar(accumulated, dtype), Scalar(x, dtype)).value]

    return generic([value], [[0, 1]], [start], [[0, None]], [PARALLEL, REDUCTION], scalars)[0]


def multiply_index(index: Index, factor: int) -> Index:
    """Returns `index * factor`; emits no op for numbers, and for a factor of 1."""
    if isinstance(index, int):
        return index * factor
    return index if factor == 1 else arith.muli(index, _constant(factor))


def add_to_index(index: Index, number: int) -> Index:
    """Returns `index + number`; emits no op for numbers, and for 0."""
    if isinstance(index, int):
        return index + number
    return index if number == 0 else arith.addi(index, _constant(number))


def divide_index(index: Index, divisor: int) -> Index:
    """Returns `index // divisor` for an `index` of 0 or more; emits no op for numbers, and for a divisor of 1."""
    if isinstance(index, int):
        return index // divisor
    return index if divisor == 1 else arith.divui(index, _constant(divisor))


def _index_value(index: Index) -> ir.Value:
    return _constant(index) if isinstance(index, int) else index


def _constant(number: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), number)


def emit_loop(
    lower: Index, upper: Index, carried: list[ir.Value], body: Callable[[Index, list[ir.Value]], list[ir.Value]]
) -> list[ir.Value]:
    """Emits an `scf.for`; `body(index, carried)` returns the next loop-carried values. Returns the final ones.

    Emits only the body for a static trip count of 1, and nothing for 0.
    """
    if isinstance(lower, int) and isinstance(upper, int) and upper - lower <= 1:
        return body(lower, carried) if upper > lower else carried
    loop = scf.ForOp(_index_value(lower), _index_value(upper), _constant(1), carried)
    with ir.InsertionPoint(loop.body):
        scf.yield_(body(loop.induction_variable, list(loop.inner_iter_args)))
    return list(loop.results)


def emit_parallel(
    sizes: Sequence[int], out: TileOperand, matrix_shape: Sequence[int],
    body: Callable[[list[Index], ir.Value], ir.Value],
) -> ir.Value:  # fmt: skip
    """Emits a parallel loop nest with trip counts `sizes` over the batch dims of `out`. Returns the new `out`.

    `body(indices, matrix)` returns the matrix, of `matrix_shape`, that replaces `matrix` at these indices.
    """
    tile_sizes = [*[1] * len(sizes), *matrix_shape]
    if all(size == 1 for size in sizes):
        offsets: list[Index] = [0] * len(tile_sizes)
        matrix = body(offsets[:-2], out.tile(offsets, tile_sizes))
        return tensor.insert_slice(matrix, out.value, *out.slice(offsets, tile_sizes))
    loop = scf.ForallOp([0] * len(sizes), list(sizes), [1] * len(sizes), [out.value])
    with ir.InsertionPoint(loop.body):
        indices, shared = list(loop.induction_variables), dataclasses.replace(out, value=loop.inner_iter_args[0])
        offsets = [*indices, 0, 0]
        matrix = body(indices, shared.tile(offsets, tile_sizes))
        target = shared.slice(offsets, tile_sizes)
        with ir.InsertionPoint(scf.InParallelOp().block):
            tensor.ParallelInsertSliceOp(matrix, shared.value, *target)
    return loop.results[0]
