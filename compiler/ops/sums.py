"""The element types that sums are taken in, and sums over elements that come to the same place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import loops
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast

# The places that an element goes to, each along the last dims, with its weight there: 1 where there is none.
Taps = Callable[[Sequence[Any]], Sequence[tuple[Sequence[Scalar], Scalar | None]]]

_WIDE = {TensorDType.Float16: TensorDType.Float32, TensorDType.BFloat16: TensorDType.Float32}


def summed_in(dtype: TensorDType) -> TensorDType:
    """The type that elements of `dtype` are summed in: f32 for halves, as PyTorch does."""
    return _WIDE.get(dtype, dtype)


def in_type(value: Any, dtype: TensorDType, result: TensorDType) -> Any:
    """A tensor of `dtype` with each element cast to `result`."""
    if dtype is result:
        return value
    return st.pointwise([(value, dtype)], st.shape_of(value), result, lambda x: cast(x, result))


def passed_back(value: Any, dtype: TensorDType, shape: Sequence[int], spatial: int, taps: Taps) -> Any:
    """A tensor of `shape` and `dtype` in which the elements of `value` are added up, one after another.

    Both have the same dims in front of the last `spatial`. `taps(position)` says where an element goes; the position is
    the number of its plane, then the MLIR indices along the last dims.
    """
    wide, planes = summed_in(dtype), prod(shape[:-spatial])
    counts = [planes, *st.shape_of(value)[-spatial:]]
    given = st.reshape(value, counts, dtype)

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        element, out = cast(loops.element(given, at, dtype), wide), held[0]
        for place, weight in taps(at):
            where = [at[0], *(loops.index_position(p) for p in place)]
            share = element if weight is None else element * weight
            out = loops.insert(loops.element(out, where, wide) + share, where, out)
        return [out]

    (summed,) = loops.for_each(counts, [st.filled(0, [planes, *shape[-spatial:]], wide)], visit)
    return st.reshape(in_type(summed, wide, dtype), shape, dtype)
