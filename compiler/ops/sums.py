"""Accumulator types, and sums in which several elements are added to the same position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import loops
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast

if TYPE_CHECKING:
    from buddy.compiler.graph.sizes import Size
    from buddy.compiler.mlir.bindings import ir

# Maps an element's indices to (target indices along the last dims, weight) pairs; the weight `None` means 1.
Taps = Callable[[Sequence["ir.Value"]], Sequence[tuple[Sequence[Scalar], Scalar | None]]]

# Sums of at least this many f32 terms use an f64 accumulator.
MIN_F64_TERMS = 1 << 16
_WIDE = {TensorDType.Float16: TensorDType.Float32, TensorDType.BFloat16: TensorDType.Float32}


def accumulator_type(dtype: TensorDType, count: int | Size = 1) -> TensorDType:
    """Returns the accumulator type for `count` elements of `dtype`.

    It is f32 for 16-bit floats, as in PyTorch, and f64 for at least `MIN_F64_TERMS` floats of up to 32 bits.

    PyTorch adds many numbers pairwise, while compiled code may use one accumulator. There, f32 with its 24 bits loses
    most of each term: a sum of 2**16 equal terms is 2**16 times as large as a term.
    """
    wide = _WIDE.get(dtype, dtype)
    return (
        TensorDType.Float64
        if wide is TensorDType.Float32 and isinstance(count, int) and count >= MIN_F64_TERMS
        else wide
    )


def cast_tensor(value: ir.Value, dtype: TensorDType, to: TensorDType) -> ir.Value:
    """Casts each element of a tensor from `dtype` to `to`."""
    if dtype is to:
        return value
    return st.pointwise([(value, dtype)], st.shape_of(value), to, lambda x: cast(x, to))


def accumulate_taps(value: ir.Value, dtype: TensorDType, shape: Sequence[int], spatial: int, taps: Taps) -> ir.Value:
    """Returns a tensor of zeros of `shape` and `dtype`, plus the elements of `value` times weights, added sequentially.

    All dims but the last `spatial` ones are equal in `value` and the result, and are flattened to one plane index.
    `taps(indices)` returns where an element of `value` is added, and its weights; `indices` are the plane index and the
    indices along the last dims, as values of type index.
    """
    wide, planes = accumulator_type(dtype), prod(shape[:-spatial])
    counts = [planes, *st.shape_of(value)[-spatial:]]
    flat = st.reshape(value, counts, dtype)

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        element, out = cast(loops.element(flat, indices, dtype), wide), carried[0]
        for target, weight in taps(indices):
            target_indices = [indices[0], *(loops.scalar_to_index(p) for p in target)]
            term = element if weight is None else element * weight
            out = loops.insert(loops.element(out, target_indices, wide) + term, target_indices, out)
        return [out]

    (summed,) = loops.for_each(counts, [st.filled(0, [planes, *shape[-spatial:]], wide)], visit)
    return st.reshape(cast_tensor(summed, wide, dtype), shape, dtype)
