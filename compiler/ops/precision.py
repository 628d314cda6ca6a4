"""Emits products in the precision that the recipe selects for a node: operands in bfloat16, or in 8-bit integers.

- `bf16`: both operands are rounded to bfloat16; sums are in f32.
- `bf16x3`: each operand is the sum of two bfloat16, `high = round(x)` and `low = round(x - high)`, whose relative error
  is 2**-17 at most; the products high * high, high * low and low * high are added in f32. All three are emitted as one
  product with three times the depth, of [high, high, low] and [high, low, high].
- `int8-dynamic`: both operands are rounded to 8-bit integers, with one scale per row of the left and per column of the
  right operand; sums are exact, in 32 bits, and are multiplied by both scales in f32.
- `int8-weights`: the operand that is a parameter is rounded to 8-bit integers, with one scale per output channel; the
  other operand is multiplied by these integers in f32, and the sums by the scales.
- `int4-weights`, `int4-weights-64`, `int4-weights-32`: the operand that is a parameter is rounded to 4-bit integers,
  with one scale for each group of 128, 64 or 32 of them along K and each output channel. With few rows of the other
  operand, the sum of each group is multiplied by its scale; with more rows, the integers are multiplied by their scales
  first.

A scale is the largest magnitude of its row, column or group divided by 127 (4 bits: 7), so a row with NaN or infinity
has NaN or infinity as its scale, its integers are 0, and its results are NaN. In `bf16x3`, the results of infinity are
also NaN, because `low` is infinity minus infinity. Operands that several nodes read are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import defining_op
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.rounded_operands import (
    GROUP_LETTER,
    INT8_LIMIT,
    Operand,
    is_parameter,
    quantise,
    quantise_groups,
    round_to_bfloat16,
    split_dim,
    split_operand,
    transpose_permutation,
)
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import accumulator_type
from buddy.compiler.protocol.recipe import F32, GROUP_SIZES, Precision

_F32, _BF16, _INT8, _INT32 = TensorDType.Float32, TensorDType.BFloat16, TensorDType.Int8, TensorDType.Int32
# The largest number of products of two 8-bit integers whose sum fits into 32 bits.
MAX_TERMS = (2**31 - 1) // INT8_LIMIT**2
# A product with an operand of at most this many rows takes the time of reading the other operand. Its 4-bit weights are
# therefore read as they are.
_FEW_ROWS = 4
# What rejections call precisions in which only products of matrices are computed.
_NAMES: dict[Precision, str] = {
    "bf16x3": "pairs of bfloat16", "int8-dynamic": "8-bit integers", "int8-weights": "8-bit integers",
    **dict.fromkeys(GROUP_SIZES, "4-bit integers"),
}  # fmt: skip

# The op classes that users expect to compute in a selected precision. The table of nodes says why a node does not.
MULTIPLYING_OPS = frozenset({
    "MatmulOp", "BatchMatmulOp", "TransposeMatmulFusedOp", "MatVecOp", "AddMMOp", "BaddbmmOp", "AddBatchMatmulOp",
    "AddMatVecOp", "TransposeAddMMFusedOp", "GroupedMatmulOp", "TrilinearOp", "Conv2dOp", "ConvolutionBackwardOp",
    "ScaledDotProductFlashAttentionForCpuOp", "FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp",
    "MaskedSoftmaxAttentionOp", "LstmLayerOp", "GruLayerOp", "RnnLayerOp",
    "RecurrentBackwardOp",
})  # fmt: skip


# The op classes that multiply the 8-bit integers of a quantised program.
INTEGER_PRODUCTS = frozenset({"IntMatmulOp", "IntegerProductOp", "IntegerConvolutionOp"})


class _PrecisionError(Exception):
    """A product cannot be computed in the requested precision; the text is the reason."""


@dataclass
class PrecisionRequest:
    """The precision requested for the products of one node.

    `is_applied` says whether the node's lowering has emitted a product in it; if not, `rejection` may say why.
    """

    precision: Precision
    is_applied: bool = False
    rejection: str = ""


_request: ContextVar[PrecisionRequest | None] = ContextVar("_request", default=None)


@contextmanager
def requested_precision(precision: Precision) -> Iterator[PrecisionRequest]:
    """Requests `precision` for the products that are emitted in the `with` block."""
    request = PrecisionRequest(precision)
    token = _request.set(request if precision != F32 else None)
    try:
        yield request
    finally:
        _request.reset(token)


def emit_product(
    a: ir.Value, b: ir.Value, a_dims: str, b_dims: str, out_dims: str, dtype: TensorDType
) -> tuple[ir.Value, TensorDType]:
    """Emits a contraction of tensors of element type `dtype`, in the requested precision if that is possible.

    Returns the sums and their element type: that of accumulators, which is f32 for 16-bit floats and all precisions.
    """
    request = _request.get()
    if request is not None:
        try:
            if dtype is not _F32:
                raise _PrecisionError(f"it multiplies {dtype.value}, and precisions apply to f32")
            sums = _EMITTERS[request.precision](Operand(a, a_dims), Operand(b, b_dims), out_dims)
            request.is_applied = True
            return sums, _F32
        except _PrecisionError as reason:
            request.rejection = str(reason)
    wide = accumulator_type(dtype)
    if wide is _F32:
        # Kernels convert the bytes of one operand themselves, and so read a quarter of the memory that floats take.
        b_bytes = _bytes_of_parameter(b)
        if b_bytes is not b:
            b = b_bytes
        else:
            a = _bytes_of_parameter(a)
    return st.contract(a, b, a_dims, b_dims, out_dims, wide), wide


def _bytes_of_parameter(value: Any) -> Any:
    """Returns the bytes of a parameter if `value` is their conversion to floats, perhaps transposed; else `value`."""
    owner = defining_op(value)
    if owner is not None and owner.name == "linalg.transpose":
        operand = owner.operands[0]
        source = _bytes_of_parameter(operand)
        return value if source is operand else st.transpose(source, transpose_permutation(owner), _INT8)
    if owner is None or owner.name != "linalg.generic" or len(owner.operands) != 2:
        return value
    (bytes_, _), body = owner.operands, owner.regions[0].blocks[0].operations
    maps = [ir.AffineMapAttr(attribute).value for attribute in owner.attributes["indexing_maps"]]
    converts = [op.operation.name for op in body] == ["arith.sitofp", "linalg.yield"] and maps[0] == maps[1]
    is_of_bytes = converts and ir.RankedTensorType(bytes_.type).element_type == ir.IntegerType.get_signless(8)
    return bytes_ if is_of_bytes and is_parameter(bytes_) else value


def reject_precision(reason: str) -> None:
    """Records why the node that is being lowered is not computed in a requested precision; no effect without one."""
    request = _request.get()
    if request is not None:
        request.rejection = reason


def round_operands_if_requested(
    values: Sequence[ir.Value], dtype: TensorDType, op_name: str
) -> tuple[list[ir.Value], TensorDType]:
    """Returns the operands of an op, rounded to bfloat16 if that is requested, and their element type.

    The op has products inside, whose sums are then in f32. A rejection calls it `op_name`, such as "a convolution".
    """
    request = _request.get()
    if request is None:
        return list(values), dtype
    if dtype is not _F32:
        request.rejection = f"it multiplies {dtype.value}, and precisions apply to f32"
    elif request.precision != "bf16":
        request.rejection = f"{op_name} in {_NAMES[request.precision]} is not supported"
    else:
        request.is_applied = True
        return [round_to_bfloat16(value) for value in values], _BF16
    return list(values), dtype


# ---- precisions ------------------------------------------------------------------------------------------------------


def _multiply_bfloat16(a: Operand, b: Operand, out_dims: str) -> Any:
    """Emits a product of operands rounded to bfloat16, with sums in f32."""
    a_value, b_value = round_to_bfloat16(a.value), round_to_bfloat16(b.value)
    return st.contract(a_value, b_value, a.letters, b.letters, out_dims, _F32)


def _multiply_pairs(a: Operand, b: Operand, out_dims: str) -> Any:
    """Emits a product of operands that are each split into two bfloat16, without the product of both low parts."""
    _check_rows(a, b, out_dims)
    a_parts = split_operand(a, out_dims, "left", low=2)
    b_parts = split_operand(b, out_dims, "right", low=1)
    return st.contract(a_parts.value, b_parts.value, a_parts.letters, b_parts.letters, out_dims, _F32)


def _check_rows(a: Operand, b: Operand, out_dims: str) -> None:
    """Raises `_PrecisionError` if one operand has so few rows that the time is that of reading the other one."""
    for operand, other in ((a, b), (b, a)):
        row_sizes = [
            size
            for letter, size in zip(operand.letters, st.shape_of(operand.value), strict=True)
            if letter in out_dims and letter not in other.letters
        ]
        if all(isinstance(size, int) for size in row_sizes) and prod(row_sizes) <= _FEW_ROWS:
            raise _PrecisionError("its time is that of reading an operand, which is faster in f32")


def _multiply_integers(a: Operand, b: Operand, out_dims: str) -> Any:
    """Emits a product of operands that are both quantised to 8 bits, with sums in i32, times their scales."""
    _check_terms(a, b, out_dims)
    (a_integers, a_scale), (b_integers, b_scale) = (quantise(operand, out_dims) for operand in (a, b))
    sums = st.contract(a_integers, b_integers, a.letters, b.letters, out_dims, _INT32)
    return _scaled(sums, _INT32, out_dims, [a_scale, b_scale])


def _multiply_integer_weights(a: Operand, b: Operand, out_dims: str) -> Any:
    """Emits a product of an operand in f32 and a parameter quantised to 8 bits, times its scale."""
    if is_parameter(b.value):
        weights, scale = quantise(b, out_dims)
        sums = st.contract(a.value, weights, a.letters, b.letters, out_dims, _F32)
    elif is_parameter(a.value):
        weights, scale = quantise(a, out_dims)
        sums = st.contract(weights, b.value, a.letters, b.letters, out_dims, _F32)
    else:
        raise _PrecisionError("neither of its operands is a parameter")
    return _scaled(sums, _F32, out_dims, [scale])


def _multiply_grouped_weights(group_size: int) -> Callable[[Operand, Operand, str], Any]:
    """Returns the emitter of products with 4-bit weights in groups of `group_size` along K."""

    def emit(a: Operand, b: Operand, out_dims: str) -> Any:
        if is_parameter(b.value):
            weights, other = b, a
        elif is_parameter(a.value):
            weights, other = a, b
        else:
            raise _PrecisionError("neither of its operands is a parameter")
        summed = [letter for letter in weights.letters if letter not in out_dims]
        if len(summed) != 1:
            raise _PrecisionError(f"its weights have {len(summed)} dims that it sums over, and groups lie along one")
        depth = st.shape_of(weights.value)[weights.letters.index(summed[0])]
        if depth % group_size:
            raise _PrecisionError(f"it adds {depth} products, which groups of {group_size} do not divide")
        return _grouped_product(other, weights, summed[0], group_size, out_dims)

    return emit


def _grouped_product(x: Operand, weights: Operand, summed: str, group_size: int, out_dims: str) -> Any:
    """Emits a product with 4-bit weights, whose dim `summed` has groups of `group_size` with a scale each."""
    integers, scale = quantise_groups(weights, summed, group_size)
    return _multiply_groups(x, integers, scale, summed, out_dims)


def int4_product(x: Any, steps: Any, scales: Any) -> Any:
    """Emits `x` [m, k] times the transpose of `steps` [n, k] times `scales` [n, groups].

    `steps` are 4-bit integers in bytes; each group of k / groups of them has a scale.
    """
    (rows, depth), groups = st.shape_of(steps), st.shape_of(scales)[1]
    integers = Operand(st.reshape(steps, [rows, groups, depth // groups], _INT8), "nGk")
    return _multiply_groups(Operand(x, "mk"), integers, Operand(scales, "nG"), "k", "mn")


def _multiply_groups(x: Operand, integers: Operand, scale: Operand, summed: str, out_dims: str) -> Any:
    """Emits the product of `x` with `integers`, which have a `scale` for each of their groups along `summed`.

    With few rows of `x`, multiplies the sum of each group by its scale. Otherwise, and for operands with a batch dim,
    multiplies the integers by their scales first.
    """
    group_size = st.shape_of(integers.value)[integers.letters.index(summed)]
    sizes = dict(zip(x.letters, st.shape_of(x.value), strict=True))
    rows = [size for letter, size in sizes.items() if letter != summed]
    has_few_rows = all(isinstance(size, int) for size in rows) and prod(rows) <= _FEW_ROWS
    if has_few_rows and not set(integers.letters) & set(x.letters) - {summed}:
        grouped = split_dim(x, summed, group_size)
        return _scaled_group_sums(grouped, integers, scale, out_dims)
    loops = list(range(len(integers.letters)))
    scale_dims = [integers.letters.index(letter) for letter in scale.letters]

    def body(step: Any, factor: Any, _out: Any) -> list[Any]:
        return [(cast(Scalar(step, _INT8), _F32) * Scalar(factor, _F32)).value]

    target = st.empty(st.shape_of(integers.value), _F32)
    iterators = [st.PARALLEL] * len(loops)
    numbers = st.generic([integers.value, scale.value], [loops, scale_dims], [target], [loops], iterators, body)[0]
    letters = integers.letters.replace(GROUP_LETTER, "")
    extents = dict(zip(integers.letters, st.shape_of(integers.value), strict=True))
    extents[summed] *= extents[GROUP_LETTER]
    shape = [extents[letter] for letter in letters]
    return st.contract(x.value, st.reshape(numbers, shape, _F32), x.letters, letters, out_dims, _F32)


def _scaled_group_sums(x: Operand, integers: Operand, scale: Operand, out_dims: str) -> Any:
    """Emits the sum over groups of the sums of products of `x` and 4-bit `integers`, times the `scale` of the group.

    Each integer is in the low 4 bits of a byte. Kernels recognise this op.
    """
    letters = out_dims + "".join(c for c in dict.fromkeys(x.letters + integers.letters) if c not in out_dims)
    sizes = dict(zip(x.letters + integers.letters, (*st.shape_of(x.value), *st.shape_of(integers.value)), strict=True))

    def body(number: Any, byte: Any, factor: Any, total: Any) -> list[Any]:
        step = arith.sitofp(ir.F32Type.get(), arith.trunci(ir.IntegerType.get_signless(4), byte))
        return [arith.addf(total, arith.mulf(number, arith.mulf(step, factor)))]

    dims = [[letters.index(letter) for letter in operand.letters] for operand in (x, integers, scale)]
    iterators = [st.PARALLEL if letter in out_dims else st.REDUCTION for letter in letters]
    start = st.filled(0, [sizes[letter] for letter in out_dims], _F32)
    values = [operand.value for operand in (x, integers, scale)]
    return st.generic(values, dims, [start], [list(range(len(out_dims)))], iterators, body)[0]


# The emitter of each precision: emits the product of two operands over `out_dims`, or raises `_PrecisionError`.
_EMITTERS: dict[Precision, Callable[[Operand, Operand, str], Any]] = {
    "bf16x3": _multiply_pairs,
    "bf16": _multiply_bfloat16,
    "int8-dynamic": _multiply_integers,
    "int8-weights": _multiply_integer_weights,
    **{name: _multiply_grouped_weights(size) for name, size in GROUP_SIZES.items()},
}


def _check_terms(a: Operand, b: Operand, out_dims: str) -> None:
    """Raises `_PrecisionError` if sums of products of 8-bit integers may not fit into 32 bits."""
    sizes = dict(zip(a.letters, st.shape_of(a.value), strict=True))
    sizes |= dict(zip(b.letters, st.shape_of(b.value), strict=True))
    summed = [size for letter, size in sizes.items() if letter not in out_dims]
    if not all(isinstance(size, int) for size in summed):
        raise _PrecisionError("the number of products that it adds is dynamic, and 32 bits may overflow")
    if prod(summed) > MAX_TERMS:
        raise _PrecisionError(f"it adds {prod(summed)} products, and more than {MAX_TERMS} may overflow 32 bits")


def _scaled(sums: Any, dtype: TensorDType, out_dims: str, scales: list[Operand]) -> Any:
    """Emits the product of `sums`, a tensor over `out_dims`, with all `scales`, in f32 and in this order."""
    dims = [[out_dims.index(letter) for letter in operand.letters] for operand in (Operand(sums, out_dims), *scales)]

    def body(total: Any, *factors: Any) -> list[Any]:
        result = cast(Scalar(total, dtype), _F32)
        for factor in factors[:-1]:  # the last argument is the element of the result
            result = result * Scalar(factor, _F32)
        return [result.value]

    values = [sums, *(scale.value for scale in scales)]
    target = st.empty(st.shape_of(sums), _F32)
    all_loops = list(range(len(out_dims)))
    return st.generic(values, dims, [target], [all_loops], [st.PARALLEL] * len(all_loops), body)[0]
