"""Emits products in the precision that the recipe selects for a node: operands in bfloat16, or in 8-bit integers.

- `bf16`: both operands are rounded to bfloat16; sums are in f32.
- `int8-dynamic`: both operands are rounded to 8-bit integers, with one scale per row of the left and per column of the
  right operand; sums are exact, in 32 bits, and are multiplied by both scales in f32.
- `int8-weights`: the operand that is a parameter is rounded to 8-bit integers, with one scale per output channel; the
  other operand is multiplied by these integers in f32, and the sums by the scales.

A scale is the largest magnitude of its row or column divided by 127, so a row with NaN or infinity has NaN or infinity
as its scale, its integers are 0, and its results are NaN. Operands that several nodes read are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import argument_attributes
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.sums import accumulator_type, cast_tensor
from buddy.compiler.protocol.recipe import F32, Precision

_F32, _BF16, _INT8, _INT32 = TensorDType.Float32, TensorDType.BFloat16, TensorDType.Int8, TensorDType.Int32
# The largest 8-bit integer that is used: the range is symmetric.
LIMIT = 127
# The largest number of products of two such integers whose sum fits into 32 bits.
MAX_TERMS = (2**31 - 1) // LIMIT**2

# The op classes that users expect to compute in a selected precision, of which those without one are reported.
MULTIPLYING_OPS = frozenset({
    "MatmulOp", "BatchMatmulOp", "TransposeMatmulFusedOp", "MatVecOp", "AddMMOp", "BaddbmmOp", "AddBatchMatmulOp",
    "AddMatVecOp", "TransposeAddMMFusedOp", "GroupedMatmulOp", "TrilinearOp", "Conv2dOp", "ConvolutionBackwardOp",
    "ScaledDotProductFlashAttentionForCpuOp", "FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp",
    "MaskedSoftmaxAttentionOp", "LstmLayerOp", "GruLayerOp", "RnnLayerOp",
})  # fmt: skip


class _PrecisionError(Exception):
    """A product cannot be computed in the requested precision; the text is the reason."""


@dataclass
class PrecisionRequest:
    """The precision requested for the products of one node.

    `is_applied` says whether the node's lowering has emitted a product in it; if not, `refusal` may say why.
    """

    precision: Precision
    is_applied: bool = False
    refusal: str = ""


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


def product(
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
            sums = _EMITTERS[request.precision](_Operand(a, a_dims), _Operand(b, b_dims), out_dims)
            request.is_applied = True
            return sums, _F32
        except _PrecisionError as reason:
            request.refusal = str(reason)
    wide = accumulator_type(dtype)
    return st.contract(a, b, a_dims, b_dims, out_dims, wide), wide


def refuse_precision(reason: str) -> None:
    """Records why the node that is being lowered is not computed in a requested precision."""
    request = _request.get()
    if request is not None:
        request.refusal = reason


def narrowed(values: Sequence[ir.Value], dtype: TensorDType, what: str) -> tuple[list[ir.Value], TensorDType]:
    """Returns the operands of `what` rounded to bfloat16, if that is requested, and their element type.

    These are ops with products inside, such as convolutions, whose sums are then in f32.
    """
    request = _request.get()
    if request is None:
        return list(values), dtype
    if dtype is not _F32:
        request.refusal = f"it multiplies {dtype.value}, and precisions apply to f32"
    elif request.precision != "bf16":
        request.refusal = f"{what} in 8-bit integers is not supported"
    else:
        request.is_applied = True
        return [_rounded_to_bfloat16(value) for value in values], _BF16
    return list(values), dtype


@dataclass(frozen=True)
class _Operand:
    """A tensor with a letter for each of its dims, as in `structured.contract`."""

    value: Any
    letters: str


# ---- precisions ------------------------------------------------------------------------------------------------------


def _multiply_bfloat16(a: _Operand, b: _Operand, out: str) -> Any:
    a_value, b_value = _rounded_to_bfloat16(a.value), _rounded_to_bfloat16(b.value)
    return st.contract(a_value, b_value, a.letters, b.letters, out, _F32)


def _multiply_integers(a: _Operand, b: _Operand, out: str) -> Any:
    _check_terms(a, b, out)
    (a_integers, a_scale), (b_integers, b_scale) = (_quantised(operand, out) for operand in (a, b))
    sums = st.contract(a_integers, b_integers, a.letters, b.letters, out, _INT32)
    return _scaled(sums, _INT32, out, [a_scale, b_scale])


def _multiply_integer_weights(a: _Operand, b: _Operand, out: str) -> Any:
    if _is_parameter(b.value):
        weights, scale = _quantised(b, out)
        sums = st.contract(a.value, weights, a.letters, b.letters, out, _F32)
    elif _is_parameter(a.value):
        weights, scale = _quantised(a, out)
        sums = st.contract(weights, b.value, a.letters, b.letters, out, _F32)
    else:
        raise _PrecisionError("neither of its operands is a parameter")
    return _scaled(sums, _F32, out, [scale])


_EMITTERS: dict[Precision, Callable[[_Operand, _Operand, str], Any]] = {
    "bf16": _multiply_bfloat16,
    "int8-dynamic": _multiply_integers,
    "int8-weights": _multiply_integer_weights,
}


def _check_terms(a: _Operand, b: _Operand, out: str) -> None:
    """Raises `_PrecisionError` if sums of products of 8-bit integers may not fit into 32 bits."""
    sizes = dict(zip(a.letters, st.shape_of(a.value), strict=True))
    sizes |= dict(zip(b.letters, st.shape_of(b.value), strict=True))
    summed = [size for letter, size in sizes.items() if letter not in out]
    if not all(isinstance(size, int) for size in summed):
        raise _PrecisionError("the number of products that it adds is dynamic, and 32 bits may overflow")
    if prod(summed) > MAX_TERMS:
        raise _PrecisionError(f"it adds {prod(summed)} products, and more than {MAX_TERMS} may overflow 32 bits")


def _scaled(sums: Any, dtype: TensorDType, out: str, scales: list[_Operand]) -> Any:
    """Emits the product of `sums`, a tensor over the letters `out`, with all `scales`, in f32 and in this order."""
    dims = [[out.index(letter) for letter in operand.letters] for operand in (_Operand(sums, out), *scales)]

    def body(total: Any, *factors: Any) -> list[Any]:
        result = cast(Scalar(total, dtype), _F32)
        for factor in factors[:-1]:  # the last argument is the element of the result
            result = result * Scalar(factor, _F32)
        return [result.value]

    values = [sums, *(scale.value for scale in scales)]
    target = st.empty(st.shape_of(sums), _F32)
    return st.generic(values, dims, [target], [list(range(len(out)))], [st.PARALLEL] * len(out), body)[0]


# ---- rounding --------------------------------------------------------------------------------------------------------


# Attribute of an op that rounds an operand: how. Nodes that round the same operand share the op.
_ROUNDING = "buddy.rounding"
_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")


def _rounded_to_bfloat16(value: Any) -> Any:
    """Returns `value` rounded to bfloat16.

    Transposes and reshapes move from before the rounding to after it, where passes fold them into the product.
    """
    owner = _owner(value)
    if owner is not None and owner.name == "linalg.transpose":
        return st.transpose(_rounded_to_bfloat16(owner.operands[0]), _permutation(owner), _BF16)
    if owner is not None and owner.name in _RESHAPES:
        return st.reshape(_rounded_to_bfloat16(owner.operands[0]), st.shape_of(value), _BF16)
    existing = _existing_rounding(value, "bf16")
    if existing is not None:
        return existing.results[0]
    return _marked(cast_tensor(value, _F32, _BF16), "bf16")


def _quantised(operand: _Operand, out: str) -> tuple[Any, _Operand]:
    """Returns `operand` as 8-bit integers, over the same letters, and a scale over those of its letters in `out`."""
    owner = _owner(operand.value)
    if owner is not None and owner.name == "linalg.transpose":
        permutation, source = _permutation(owner), _before_transpose(operand, owner)
        integers, scale = _quantised(source, out)
        return st.transpose(integers, permutation, _INT8), scale
    value, letters = _shared_view(operand.value), operand.letters
    kept = [i for i, letter in enumerate(letters) if letter in out]
    key = f"int8 over {','.join(str(i) for i in range(len(letters)) if i not in kept)}"
    kept_letters = "".join(letters[i] for i in kept)
    existing = _existing_rounding(value, key)
    if existing is not None:
        return existing.results[0], _Operand(existing.operands[1], kept_letters)
    scale = _scale_of(value, [i for i in range(len(letters)) if i not in kept])
    loops = list(range(len(letters)))

    def body(x: Any, step: Any, _out: Any) -> list[Any]:
        return [_round_to_integer(Scalar(x, _F32), Scalar(step, _F32)).value]

    target = st.empty(st.shape_of(value), _INT8)
    iterators = [st.PARALLEL] * len(letters)
    integers = st.generic([value, scale], [loops, kept], [target], [loops], iterators, body)[0]
    return _marked(integers, key), _Operand(scale, kept_letters)


def _scale_of(value: Any, axes: list[int]) -> Any:
    """Returns the largest magnitude over `axes`, divided by `LIMIT`; NaN if there is one."""
    largest = st.reduce(
        [(value, _F32)], st.shape_of(value), axes, False, 0.0, _F32,
        lambda x, greatest: s.maximum(greatest, s.absolute(x)),
    )  # fmt: skip
    return st.pointwise([(largest, _F32)], st.shape_of(largest), _F32, lambda x: x / float(LIMIT))


def _round_to_integer(x: Scalar, scale: Scalar) -> Scalar:
    """Returns `x / scale` rounded to an 8-bit integer, ties to even; 0 for a quotient of 0/0 or with NaN."""
    steps = s.roundeven(x / scale)
    clamped = s.fmin(s.fmax(steps, -float(LIMIT)), float(LIMIT))
    return cast(s.select(steps.compare("eq", steps), clamped, 0.0), _INT8)


def _before_transpose(operand: _Operand, transpose: Any) -> _Operand:
    letters = [""] * len(operand.letters)
    for dim, source_dim in enumerate(_permutation(transpose)):
        letters[source_dim] = operand.letters[dim]
    return _Operand(transpose.operands[0], "".join(letters))


def _permutation(transpose: Any) -> list[int]:
    return list(ir.DenseI64ArrayAttr(transpose.attributes["permutation"]))


def _owner(value: Any) -> Any | None:
    """Returns the op that defines `value`, or `None` for a function's argument."""
    return value.owner if isinstance(value, ir.OpResult) else None


def _marked(value: Any, key: str) -> Any:
    value.owner.attributes[_ROUNDING] = ir.StringAttr.get(key)
    return value


def _existing_rounding(value: Any, key: str) -> Any | None:
    """Returns an op of the same block that rounds `value` in the way `key`."""
    mark = ir.StringAttr.get(key)
    for use in value.uses:
        op = use.owner.operation
        if _ROUNDING in op.attributes and op.attributes[_ROUNDING] == mark:
            return op
    return None


def _shared_view(value: Any) -> Any:
    """Returns the first of the equal reshapes of a tensor: the views of nodes that read the same tensor."""
    owner = _owner(value)
    if owner is None or owner.name not in _RESHAPES:
        return value
    equal = (use.owner.operation for use in owner.operands[0].uses)
    views = [
        op for op in equal if op.name == owner.name and op.results[0].type == value.type and _same_groups(op, owner)
    ]
    first = views[0]
    for view in views[1:]:
        first = view if view.is_before_in_block(first) else first
    return first.results[0]


def _same_groups(view: Any, other: Any) -> bool:
    return bool(view.attributes["reassociation"] == other.attributes["reassociation"])


_PARAMETER = "buddy.parameter"


def _is_parameter(value: Any) -> bool:
    """True if `value` is a parameter of the model, or a view of one."""
    while (owner := _owner(value)) is not None:
        if owner.name != "linalg.transpose" and owner.name not in _RESHAPES:
            return False
        value = owner.operands[0]
    attributes = argument_attributes(value.owner.owner)
    return value.arg_number < len(attributes) and _PARAMETER in attributes[value.arg_number]
