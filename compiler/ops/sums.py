"""Accumulator types, and casts of whole tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import cast

if TYPE_CHECKING:
    from buddy.compiler.graph.sizes import Size
    from buddy.compiler.mlir.bindings import ir

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
    return st.pointwise([(value, dtype)], st.shape_of(value), to, lambda x: cast(x, to))
