"""Stacks of matrices, solved one problem at a time, and the fallback to eager if an algorithm fails on the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import product
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.func import eager_call
from buddy.compiler.ops.loops import (
    LoopState,
    compare,
    element,
    for_each,
    insert,
    minus,
    number,
    pick,
    position,
    shaped,
)
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import SymbolTable, value_of

INT32 = TensorDType.Int32
# A tensor [count, ...] and its element type.
Part = tuple[Any, TensorDType]
# Maps element `j` of a row or column to its subscript, such as ("a", i, j).
Place = Callable[[Any], tuple[Any, ...]]


class StackedProblem(LoopState):
    """Problem number `at` of a stack: `problem["a", i, j]` is an element of the part "a", and can be assigned.

    `kinds` are the element types of the parts that can be assigned; those in `given` are read-only.
    """

    def __init__(self, kinds: Mapping[str, TensorDType], tensors: Sequence[Any], given: Mapping[str, Part], at: Any):
        super().__init__(tensors)
        self.kinds, self.given, self.at = kinds, given, at

    def __getitem__(self, place: Any) -> Scalar:
        name, *where = place if isinstance(place, tuple) else (place,)
        value, dtype = self.given.get(name) or (self.tensors[self._number(name)], self.kinds[name])
        return element(value, self._place(where), dtype)

    def __setitem__(self, place: Any, value: Scalar) -> None:
        name, *where = place if isinstance(place, tuple) else (place,)
        number = self._number(name)
        old = self.tensors[number]
        (self.tensors[number],) = shaped([insert(value, self._place(where), old)], [old])

    def fold(self, first: Any, last: Any, start: Sequence[Any], step: Callable[..., Sequence[Any]]) -> list[Any]:
        """Folds `step(i, *values)` over `first <= i < last`, starting at `start`: scalars, or values of type index."""
        kinds = [value.dtype if isinstance(value, Scalar) else None for value in start]

        def scalars(values: Sequence[Any]) -> list[Any]:
            return [Scalar(v, kind) if kind else v for v, kind in zip(values, kinds, strict=True)]

        def visit(at: list[Any], held: list[Any]) -> list[Any]:
            return _values(step(arith.addi(position(first), at[0]), *scalars(held)))

        return scalars(for_each([minus(last, first)], _values(start), visit))

    def revise(self, line: tuple[Any, ...], first: Any, last: Any, body: Callable[[Any, Scalar], Scalar]) -> None:
        """Replaces the elements `first <= j < last` of `line`, ("a", i) or ("v",), by `body(j, x)`."""

        def visit(j: Any) -> None:
            self[(*line, j)] = body(j, self[(*line, j)])

        self.each(first, last, visit)

    def revise_both(
        self, one: Place, other: Place, first: Any, last: Any, body: Callable[[Scalar, Scalar], tuple[Scalar, Scalar]]
    ) -> None:
        """Replaces pairs of elements of two rows or columns by the results of `body`."""

        def visit(j: Any) -> None:
            self[one(j)], self[other(j)] = body(self[one(j)], self[other(j)])

        self.each(first, last, visit)

    def exchange(self, one: Place, other: Place, first: Any, last: Any) -> None:
        self.revise_both(one, other, first, last, lambda x, y: (y, x))

    def largest(self, first: Any, last: Any, place: Place) -> list[Any]:
        """Returns the largest magnitude of a row or column and its first position, as LAPACK's `iamax`."""

        def step(i: Any, best: Scalar, where: Any) -> list[Any]:
            size = s.absolute(self[place(i)])
            return [s.select(size > best, size, best), pick(size > best, i, where)]

        dtype = self.kinds[place(first)[0]]
        return self.fold(first, last, [number(0, dtype), first], step)

    def shape(self, name: str) -> tuple[Any, ...]:
        """Returns the shape of a part, without the dim of the stack."""
        return st.shape_of(self.tensors[self._number(name)])[1:]

    def _number(self, name: str) -> int:
        return list(self.kinds).index(name)

    def _place(self, where: Sequence[Any]) -> list[Any]:
        return [self.at, *map(position, where)]


def _values(items: Sequence[Any]) -> list[Any]:
    return [item.value if isinstance(item, Scalar) else position(item) for item in items]


def solve_stack(
    parts: Mapping[str, Part], steps: Callable[[StackedProblem], None], given: Mapping[str, Part] | None = None
) -> list[Any]:
    """Returns the tensors [count, ...] of `parts`, after running `steps` on each of the `count` problems.

    If a part has no elements, `steps` do not run and the other parts keep their values.
    """
    kinds = {name: dtype for name, (_, dtype) in parts.items()}
    tensors = [value for value, _ in parts.values()]
    if any(0 in st.shape_of(value) for value, _ in (*parts.values(), *(given or {}).values())):
        return tensors

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        problem = StackedProblem(kinds, held, given or {}, at[0])
        steps(problem)
        return problem.tensors

    return for_each([st.shape_of(tensors[0])[0]], tensors, visit)


def as_stack(argument: Op, symbol_table: SymbolTable, rank: int = 2, batch: Sequence[Any] | None = None) -> Any:
    """Returns a tensor argument [..., *rank dims] as [count, *rank dims], broadcast to the leading dims `batch`."""
    value, dtype = value_of(argument, symbol_table), argument.tensor_meta.dtype
    shape = st.shape_of(value)
    front, back = shape[: len(shape) - rank], shape[len(shape) - rank :]
    if batch is not None and tuple(batch) != front:
        front = tuple(batch)
        value = st.broadcast(value, [*front, *back], dtype)
    return st.reshape(value, [product(front), *back], dtype)


def meta_of(node: Op, number: int) -> TensorMeta:
    """Returns shape and element type of a result, for ops whose results are all tensors."""
    meta = node.metas[number]
    assert meta is not None
    return meta


def as_results(node: Op, values: Sequence[Any]) -> list[Any]:
    """Reshapes stacks to the shapes of the node's results."""
    metas = [meta_of(node, number) for number in range(len(values))]
    return [st.reshape(value, meta.shape, meta.dtype) for value, meta in zip(values, metas, strict=True)]


def transpose_matrices(value: Any, dtype: TensorDType) -> Any:
    """Transposes each matrix of [count, rows, columns]."""
    return st.transpose(value, [0, 2, 1], dtype)


def smaller_extent(x: Any, y: Any) -> Any:
    """Returns the smaller of two extents, as a number if both are numbers."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return pick(compare("slt", x, y), x, y)


ops_registry = Registry()


def results_or_eager(
    info: Any, node: Op, symbol_table: SymbolTable, results: Sequence[Any], condition: str
) -> list[Any]:
    """Returns `results`, or eager's results if an element of `info` [count] (i32) is not 0.

    Results that no node reads may be `None`. `condition` says when an element of `info` is not 0.
    """
    state = LoopState([value for value in results if value is not None])

    def call_eager() -> None:
        found = enumerate(eager_call(node, symbol_table, condition)[: len(results)])
        kept = [(piece, meta_of(node, i).dtype) for i, piece in found if results[i] is not None]
        pairs = zip(state.tensors, kept, strict=True)
        state.tensors = [_copy_into(value, result, dtype) for value, (result, dtype) in pairs]

    state.choose(_any_failed(info), call_eager)
    made = iter(state.tensors)
    metas = [meta_of(node, i) for i in range(len(results))]
    return [
        st.empty(m.shape, m.dtype) if value is None else next(made) for m, value in zip(metas, results, strict=True)
    ]


def _any_failed(info: Any) -> Scalar:
    def visit(at: list[Any], state: list[Any]) -> list[Any]:
        return [(Scalar(state[0], INT32) | element(info, at, INT32)).value]

    (found,) = for_each(st.shape_of(info), [number(0, INT32).value], visit)
    return Scalar(found, INT32).compare("ne", 0)


def _copy_into(value: Any, result: Any, dtype: TensorDType) -> Any:
    """Copies the elements of `result` into the memory of `value` one by one.

    Both branches must yield the same buffer, and an insertion of the whole slice would be folded to `result` itself.
    """

    def visit(at: list[Any], state: list[Any]) -> list[Any]:
        return [insert(element(result, at, dtype), at, state[0])]

    return for_each(st.shape_of(value), [value], visit)[0]


@ops_registry.lowering("CheckErrorsOp")
def check_errors(node: Op, symbol_table: SymbolTable) -> list[Any]:
    info = as_stack(node.args[0], symbol_table, rank=0)
    results_or_eager(info, node, symbol_table, (), "a factorization has failed")
    return [None]
