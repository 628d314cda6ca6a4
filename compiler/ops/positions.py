"""Tensors computed from the position of each element, for reads that are not affine, such as wrapped indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import tensor
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import constant

INDEX = TensorDType.Int64
Position = Scalar | int


def read(value: Any, dtype: TensorDType, positions: Sequence[Position]) -> Scalar:
    """Reads the element of a tensor of `dtype` at integer positions, which must be within bounds."""
    return Scalar(tensor.extract(value, [st.to_index(whole(p).value) for p in positions]), dtype)


def whole(number: Position) -> Scalar:
    """Returns a position as an i64 scalar."""
    return cast(number, INDEX) if isinstance(number, Scalar) else Scalar(constant(number, INDEX), INDEX)


def loops(first: int, count: int) -> list[Scalar]:
    """Returns the indices of loops `first` to `first + count - 1` of the enclosing body."""
    return [Scalar(st.index_to(st.loop_index(dim), INDEX), INDEX) for dim in range(first, first + count)]


def computed(shape: Sequence[Any], dtype: TensorDType, body: Callable[..., Scalar]) -> Any:
    """Returns a tensor of `shape` whose element at each position is `body(*position)`."""
    rank = len(shape)

    def scalars(_out: Any) -> list[Any]:
        return [body(*loops(0, rank)).value]

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
        return [value.value for value in body(loops(0, rank), loops(rank, inner), values)]

    outs = [st.filled(value, shape, dtype) for value, dtype in initial]
    every: list[st.Dim] = [*range(rank)]
    iterators = [st.PARALLEL] * rank + [st.REDUCTION] * inner
    extent = st.empty(box, TensorDType.Bool)
    return st.generic([extent], [[*range(rank, rank + inner)]], outs, [every] * len(outs), iterators, scalars)
