"""Emits a loop over a stack of matrices that runs an algorithm on each, and the fallback to eager if one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim, product
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.func import eager_call
from buddy.compiler.ops.loops import (
    Extent,
    LoopState,
    compare,
    copy_shapes,
    element,
    for_each,
    index_to_scalar,
    insert,
    minus,
    number,
    pick,
    position,
)
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import Registry, SymbolTable, value_of

INT32 = TensorDType.Int32
# A tensor [count, ...] with a matrix, vector or number of each of `count` problems, and its element type. A complex
# tensor has its real and imaginary parts along an additional last dim, which shapes in this package do not include.
StackedTensor = tuple[ir.Value, TensorDType]
# The name of a part and the indices of an element or a row of it, such as ("a", i, j) or ("a", i).
Subscript = tuple[Any, ...]
# A loop-carried value: a scalar or a value of type index.
Carried = TypeVar("Carried", bound=Scalar | Extent)
# Maps the index `j` of an element of a row or column to the element's subscript, such as ("a", i, j).
SubscriptAt = Callable[[ir.Value], Subscript]


class StackedProblem(LoopState):
    """Problem number `index` of a stack, such as a system of equations. Its parts have names, such as the matrix "a".

    `problem["a", i, j]` is an element of the part "a", and can be assigned. `dtypes` are the element types of the parts
    that can be assigned, whose tensors are loop-carried. The parts in `inputs` are read-only.
    """

    def __init__(
        self,
        dtypes: Mapping[str, TensorDType],
        tensors: Sequence[ir.Value],
        inputs: Mapping[str, StackedTensor],
        index: ir.Value,
    ):
        super().__init__(tensors)
        self.dtypes, self.inputs, self.index = dtypes, inputs, index

    def __getitem__(self, subscript: str | Subscript) -> Scalar:
        name, *indices = subscript if isinstance(subscript, tuple) else (subscript,)
        value, dtype = self.inputs.get(name) or (self.tensors[self._tensor_index(name)], self.dtypes[name])
        return element(value, self._tensor_indices(indices), dtype)

    def __setitem__(self, subscript: str | Subscript, value: Scalar) -> None:
        name, *indices = subscript if isinstance(subscript, tuple) else (subscript,)
        i = self._tensor_index(name)
        old = self.tensors[i]
        (self.tensors[i],) = copy_shapes([insert(value, self._tensor_indices(indices), old)], [old])

    def fold(
        self, start: Extent, end: Extent, initial: Sequence[Carried], step: Callable[..., Sequence[Carried]]
    ) -> list[Carried]:
        """Emits a loop over `start <= i < end`; `step(i, *values)` returns the next values. Returns the final values.

        The values, which are `initial` at first, are scalars or values of type index.
        """

        def as_initial(values: Sequence[ir.Value]) -> list[Any]:
            """Returns the MLIR values as scalars and positions, like `initial`."""
            remaining = iter(values)
            return [
                _take_scalar(remaining, value.dtype) if isinstance(value, Scalar) else next(remaining)
                for value in initial
            ]

        def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
            return _values(step(arith.addi(position(start), indices[0]), *as_initial(carried)))

        return as_initial(for_each([minus(end, start)], _values(initial), visit))

    def update(self, row: Subscript, start: Extent, end: Extent, body: Callable[[ir.Value, Scalar], Scalar]) -> None:
        """Replaces the elements `start <= j < end` of a row ("a", i) or a vector ("v",) by `body(j, element)`."""

        def visit(j: ir.Value) -> None:
            self[(*row, j)] = body(j, self[(*row, j)])

        self.each(start, end, visit)

    def update_pairs(
        self,
        first: SubscriptAt,
        second: SubscriptAt,
        start: Extent,
        end: Extent,
        body: Callable[[Scalar, Scalar], tuple[Scalar, Scalar]],
    ) -> None:
        """Replaces the pairs of elements `start <= j < end` of two rows or columns by the results of `body`."""

        def visit(j: ir.Value) -> None:
            self[first(j)], self[second(j)] = body(self[first(j)], self[second(j)])

        self.each(start, end, visit)

    def exchange(self, first: SubscriptAt, second: SubscriptAt, start: Extent, end: Extent) -> None:
        """Exchanges the elements `start <= j < end` of two rows or columns."""
        self.update_pairs(first, second, start, end, lambda x, y: (y, x))

    def find_largest(self, start: ir.Value, end: Extent, subscript: SubscriptAt) -> tuple[Scalar, ir.Value]:
        """Returns the largest magnitude of a row or column and its first position, like BLAS's `iamax`."""

        def step(i: ir.Value, largest: Scalar, largest_position: ir.Value) -> list[Scalar | ir.Value]:
            magnitude = s.blas_magnitude(self[subscript(i)])
            is_larger = magnitude > largest
            return [s.select(is_larger, magnitude, largest), pick(is_larger, i, largest_position)]

        dtype = self.dtypes[subscript(start)[0]]
        results: list[Any] = self.fold(start, end, [number(0, dtype.part), start], step)
        largest, largest_position = results
        return largest, largest_position

    def shape(self, name: str) -> tuple[Dim, ...]:
        """Returns the shape of a part, without the dim of the stack."""
        return stack_shape(self.tensors[self._tensor_index(name)], self.dtypes[name])[1:]

    def _tensor_index(self, name: str) -> int:
        return list(self.dtypes).index(name)

    def _tensor_indices(self, indices: Sequence[Extent]) -> list[ir.Value]:
        return [self.index, *map(position, indices)]


def _values(items: Sequence[Scalar | Extent]) -> list[ir.Value]:
    """Returns the MLIR values of scalars and positions; two for a complex scalar."""
    values: list[ir.Value] = []
    for item in items:
        value = item.value if isinstance(item, Scalar) else position(item)
        values += value if isinstance(value, tuple) else [value]
    return values


def _take_scalar(values: Iterator[ir.Value], dtype: TensorDType) -> Scalar:
    """Returns the next scalar of `values`, which `_values` has returned; it takes two for a complex scalar."""
    if dtype.is_complex:
        return s.ComplexScalar(Scalar(next(values), dtype.part), Scalar(next(values), dtype.part))
    return Scalar(next(values), dtype)


def stack_shape(value: ir.Value, dtype: TensorDType) -> tuple[Dim, ...]:
    """Returns the shape of a stack, without the last dim of the parts of complex numbers."""
    shape = st.shape_of(value)
    return shape[:-1] if dtype.is_complex else shape


def empty_stack(shape: Sequence[Dim], dtype: TensorDType) -> ir.Value:
    """Returns an uninitialised stack."""
    stored = TensorMeta(tuple(shape), dtype).stored
    return st.empty(stored.shape, stored.dtype)


def for_each_problem(
    parts: Mapping[str, StackedTensor],
    algorithm: Callable[[StackedProblem], None],
    inputs: Mapping[str, StackedTensor] | None = None,
) -> list[ir.Value]:
    """Emits a loop that runs `algorithm` on each of `count` problems; returns the new tensors [count, ...] of `parts`.

    `inputs` are read-only parts. If any part is empty, emits no loop, and `parts` keep their values.
    """
    dtypes = {name: dtype for name, (_, dtype) in parts.items()}
    tensors = [value for value, _ in parts.values()]
    if any(0 in st.shape_of(value) for value, _ in (*parts.values(), *(inputs or {}).values())):
        return tensors

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        problem = StackedProblem(dtypes, carried, inputs or {}, indices[0])
        algorithm(problem)
        return problem.tensors

    return for_each([st.shape_of(tensors[0])[0]], tensors, visit)


def as_stack(argument: Op, symbol_table: SymbolTable, rank: int = 2, batch: Sequence[Dim] | None = None) -> ir.Value:
    """Returns a tensor argument as a stack: all dims except the last `rank` ones are merged to one.

    If `batch` is not `None`, first broadcasts the dims to be merged to the sizes `batch`.
    """
    value, dtype = value_of(argument, symbol_table), argument.tensor_meta.dtype
    shape = st.shape_of(value)
    rank += dtype.is_complex
    leading, trailing = shape[: len(shape) - rank], shape[len(shape) - rank :]
    if batch is not None and tuple(batch) != leading:
        leading = tuple(batch)
        value = st.broadcast(value, [*leading, *trailing], dtype.part)
    return st.reshape(value, [product(leading), *trailing], dtype.part)


def meta_of(node: Op, index: int) -> TensorMeta:
    """Returns the meta of a result, which must be a tensor."""
    meta = node.metas[index]
    assert meta is not None
    return meta


def reshape_to_results(node: Op, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Reshapes stacks to the shapes of the node's results."""
    metas = [meta_of(node, number).stored for number in range(len(values))]
    return [st.reshape(value, meta.shape, meta.dtype) for value, meta in zip(values, metas, strict=True)]


def transpose_matrices(value: ir.Value, dtype: TensorDType) -> ir.Value:
    """Transposes each matrix of [count, rows, columns]."""
    return st.transpose(value, [0, 2, 1, 3][: len(st.shape_of(value))], dtype.part)


def conjugate(value: ir.Value, dtype: TensorDType) -> ir.Value:
    """Returns the complex conjugate of each element; a real stack unchanged."""
    if not dtype.is_complex:
        return value

    def negate_imaginary_part(x: Scalar) -> Scalar:
        part = index_to_scalar(st.loop_index(rank - 1))
        return s.select(part.compare("eq", 1), -x, x)

    rank = len(st.shape_of(value))
    return st.pointwise([(value, dtype.part)], st.shape_of(value), dtype.part, negate_imaginary_part)


def adjoint_matrices(value: ir.Value, dtype: TensorDType) -> ir.Value:
    """Returns the conjugate transpose of each matrix."""
    return conjugate(transpose_matrices(value, dtype), dtype)


def smaller_extent(x: Dim, y: Dim) -> Extent:
    """Returns the smaller of two extents, as a number if both are numbers."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return pick(compare("slt", x, y), x, y)


ops_registry = Registry()


def results_or_eager(
    info: ir.Value, node: Op, symbol_table: SymbolTable, results: Sequence[ir.Value | None], condition: str
) -> list[ir.Value]:
    """Emits a branch that returns `results`, or eager's results if an element of `info` [count] (i32) is not 0.

    A result that no node reads may be `None`; it becomes an uninitialised tensor. `condition` says, for messages, when
    an element of `info` is not 0.
    """
    state = LoopState([value for value in results if value is not None])

    def call_eager() -> None:
        eager_results = enumerate(eager_call(node, symbol_table, condition)[: len(results)])
        needed = [
            (result, meta_of(node, i).stored.dtype)
            for i, result in eager_results
            if results[i] is not None and result is not None
        ]
        pairs = zip(state.tensors, needed, strict=True)
        state.tensors = [_copy_into(value, result, dtype) for value, (result, dtype) in pairs]

    state.branch(_any_failed(info), call_eager)
    tensors = iter(state.tensors)
    metas = [meta_of(node, i).stored for i in range(len(results))]
    return [
        st.empty(m.shape, m.dtype) if value is None else next(tensors) for m, value in zip(metas, results, strict=True)
    ]


def _any_failed(info: ir.Value) -> Scalar:
    """Returns whether any element of `info` is not 0."""

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        return [(Scalar(carried[0], INT32) | element(info, indices, INT32)).value]

    (combined,) = for_each(st.shape_of(info), [number(0, INT32).value], visit)
    return Scalar(combined, INT32).compare("ne", 0)


def _copy_into(value: ir.Value, result: ir.Value, dtype: TensorDType) -> ir.Value:
    """Copies the elements of `result` into the memory of `value`, one by one.

    Both branches must yield the same buffer, and MLIR would fold an insertion of the whole tensor to `result` itself.
    """

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        return [insert(element(result, indices, dtype), indices, carried[0])]

    return for_each(st.shape_of(value), [value], visit)[0]


@ops_registry.lowering("CheckErrorsOp")
def check_errors(node: Op, symbol_table: SymbolTable) -> list[ir.Value | None]:
    """Calls eager, which raises the error, if an element of the first argument is not 0. The node has no result."""
    info = as_stack(node.args[0], symbol_table, rank=0)
    results_or_eager(info, node, symbol_table, (), "a factorization has failed")
    return [None]
