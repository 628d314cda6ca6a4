"""Sequential loops with loop-carried tensors, which bufferize in place, for scans, sorts and scatters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, scf, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.sizes import index_value, remember
from buddy.compiler.ops.structured import shape_of
from buddy.compiler.ops.utils import constant

# A number, a symbolic size, or a value of type index.
Extent = Any
Body = Callable[[list[Any], list[Any]], Sequence[Any]]


def position(value: Extent) -> Any:
    """Returns `value` as a value of type index."""
    return index_value(value)


def for_each(extents: Sequence[Extent], carried: Sequence[Any], body: Body) -> list[Any]:
    """Emits a loop nest over a box in row-major order; `body(position, carried)` returns the next carried values.

    `carried` are tensors, which `body` may only change by `insert`, or scalars. Returns the final carried values.
    """

    def nest(at: list[Any], held: list[Any]) -> list[Any]:
        if len(at) == len(extents):
            return list(body(at, held))
        loop = scf.ForOp(position(0), position(extents[len(at)]), position(1), held)
        with ir.InsertionPoint(loop.body):
            scf.yield_(nest([*at, loop.induction_variable], shaped(loop.inner_iter_args, held)))
        return shaped(loop.results, held)

    return nest([], list(carried))


def shaped(values: Iterable[Any], like: Sequence[Any]) -> list[Any]:
    """Returns `values`; records for each tensor that it has the shape of the corresponding one in `like`."""
    pairs = list(zip(values, like, strict=True))
    return [remember(a, shape_of(b)) if isinstance(b.type, ir.RankedTensorType) else a for a, b in pairs]


def element(value: Any, at: Sequence[Any], dtype: TensorDType) -> Scalar:
    """Reads the element of a tensor of `dtype` at the position `at`, in values of type index."""
    return Scalar(tensor.extract(value, list(at)), dtype)


def insert(value: Any, at: Sequence[Any], into: Any) -> Any:
    """Returns the tensor `into` with the element at `at` replaced by `value`."""
    return tensor.insert(value.value if isinstance(value, Scalar) else value, into, list(at))


def index_of(value: Any, dtype: TensorDType = TensorDType.Int64) -> Scalar:
    """Converts an MLIR index to a scalar of an integer type."""
    return s.cast(Scalar(arith.index_cast(ir.IntegerType.get_signless(64), value), TensorDType.Int64), dtype)


def index_position(value: Scalar) -> Any:
    """Converts a signed integer to an MLIR index."""
    return arith.index_cast(ir.IndexType.get(), value.value)


def number(value: bool | int | float, dtype: TensorDType) -> Scalar:
    return Scalar(constant(value, dtype), dtype)
