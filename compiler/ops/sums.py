"""Accumulator types, and sums of elements that are added to the same position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import loops
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast

# Maps a position to pairs of target indices along the last dims and a weight; the weight `None` means 1.
Taps = Callable[[Sequence[Any]], Sequence[tuple[Sequence[Scalar], Scalar | None]]]

MANY = 1 << 16
_WIDE = {TensorDType.Float16: TensorDType.Float32, TensorDType.BFloat16: TensorDType.Float32}


def accumulator_type(dtype: TensorDType, count: Any = 1) -> TensorDType:
    """Returns the accumulator type for `count` elements of `dtype`: f32 for half types, as in PyTorch, f64 for many.

    PyTorch adds many numbers pairwise, while compiled code may use one accumulator. A sum of 2**16 equal terms is 16
    bits longer than a term, and f32 has 24 bits.
    """
    wide = _WIDE.get(dtype, dtype)
    return TensorDType.Float64 if wide is TensorDType.Float32 and isinstance(count, int) and count >= MANY else wide


def cast_tensor(value: Any, dtype: TensorDType, result: TensorDType) -> Any:
    """Casts each element of a tensor of `dtype` to `result`."""
    if dtype is result:
        return value
    return st.pointwise([(value, dtype)], st.shape_of(value), result, lambda x: cast(x, result))


def accumulate_taps(value: Any, dtype: TensorDType, shape: Sequence[int], spatial: int, taps: Taps) -> Any:
    """Returns a tensor of `shape` and `dtype` to which the elements of `value` are added sequentially.

    `value` and the result share the dims before the last `spatial`, which are flattened to one plane index.
    `taps(position)` returns the targets of an element; the position is the plane index and the indices along the last
    dims, as values of type index.
    """
    wide, planes = accumulator_type(dtype), prod(shape[:-spatial])
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
    return st.reshape(cast_tensor(summed, wide, dtype), shape, dtype)
