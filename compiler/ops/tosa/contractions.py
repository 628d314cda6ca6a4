"""Lowers matrix products, attention, convolutions and pools to TOSA."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir, tosa
from buddy.compiler.ops.convolutions import SlidingWindow, per_dim, pool_window
from buddy.compiler.ops.tosa import registration
from buddy.compiler.ops.tosa.reductions import log_sum_exp, softmax
from buddy.compiler.ops.tosa.registration import tensor_of
from buddy.compiler.ops.tosa.shapes import causal_mask
from buddy.compiler.ops.tosa.tensors import (
    TosaTensor,
    cast,
    is_equal,
    matmul,
    pad,
    reduce,
    require,
    reshape,
    select,
    slice_dim,
    splat,
    tile,
    transpose,
)
from buddy.compiler.ops.utils import (
    LoweringError,
    Registry,
    SymbolTable,
    argument,
    mlir_element_type_get,
    tensor_type,
)  # fmt: skip

ops_registry = Registry()
lowering = partial(registration.lowering, ops_registry)


def _operands(node: Op, symbol_table: SymbolTable, first: int = 0) -> tuple[TosaTensor, TosaTensor]:
    """Returns both operands of a product: arguments `first` and `first + 1` of the node.

    Raises `LoweringError` for types that `tosa.matmul` rejects.
    """
    a, b = (tensor_of(arg, symbol_table) for arg in node.args[first : first + 2])
    require("matmul", a.dtype)
    require("matmul", b.dtype)
    return a, b


def _with_batch_dim(x: TosaTensor) -> TosaTensor:
    """Returns a matrix as a batch of one, and a batch of matrices as it is."""
    return reshape(x, [1, *x.shape]) if len(x.shape) == 2 else x


def _product(node: Op, symbol_table: SymbolTable, first: int = 0) -> TosaTensor:
    """Returns the product of two matrices, or of two batches of matrices, in the accumulator type."""
    a, b = _operands(node, symbol_table, first)
    result = matmul(_with_batch_dim(a), _with_batch_dim(b))
    return reshape(result, result.shape[1:]) if len(a.shape) == 2 else result


@lowering("MatmulOp", "BatchMatmulOp", "IntMatmulOp")
def product(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    return cast(_product(node, symbol_table), node.tensor_meta.dtype)


@lowering("TransposeMatmulFusedOp", "TransposeAddMMFusedOp")
def multiply_by_transpose(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Computes `a bᵀ`, plus the third operand if the node has one."""
    a, b = _operands(node, symbol_table)
    result = matmul(_with_batch_dim(a), transpose(_with_batch_dim(b), [0, 2, 1]))
    result = reshape(result, result.shape[1:])
    if len(node.args) > 2:
        result = result + registration.operand(node.args[2], 2, symbol_table, result.dtype)
    return cast(result, node.tensor_meta.dtype)


@lowering("MatVecOp")
def multiply_matrix_by_vector(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    a, v = _operands(node, symbol_table)
    result = matmul(_with_batch_dim(a), reshape(v, [1, v.shape[0], 1]))
    return cast(reshape(result, [a.shape[0]]), node.tensor_meta.dtype)


@lowering("DotOp")
def dot(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    a, b = _operands(node, symbol_table)
    size = a.shape[0]
    return cast(reshape(matmul(reshape(a, [1, 1, size]), reshape(b, [1, size, 1])), []), node.tensor_meta.dtype)


@lowering("AddMMOp", "BaddbmmOp")
def multiply_and_add(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Computes `beta * addend + alpha * (a @ b)`; rounds once for 16-bit floats."""
    meta = node.tensor_meta
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    result = _product(node, symbol_table, 1)
    result = result if alpha == 1 else result * alpha
    if beta != 0:
        addend = registration.operand(node.args[0], len(meta.shape), symbol_table, result.dtype)
        result = result + (addend if beta == 1 else addend * beta)
    return cast(result, meta.dtype)


@lowering("ScaledDotProductFlashAttentionForCpuOp")
def attention(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Lowers `softmax(scale * q kᵀ + mask) v` for q, k, v of shape [batch, heads, length, width].

    The second result is the log-sum-exp of each row of scores. The arguments are q, k, v, dropout_p, is_causal;
    attn_mask and scale are keywords.
    """
    q, k, v = (tensor_of(arg, symbol_table) for arg in node.args[:3])
    require("matmul", q.dtype)
    if argument(node, 3, "dropout_p", 0.0):
        raise LoweringError("attention with dropout draws random numbers")
    (batch, heads, rows, _), columns = q.shape, k.shape[2]
    k, v = (_repeat_heads(x, heads) for x in (k, v))
    scale = node.kwargs.get("scale")
    keys = transpose(_merge_heads(k), [0, 2, 1])
    scores = reshape(matmul(_merge_heads(q), keys), [batch, heads, rows, columns])
    scores = _apply_masks(node, symbol_table, scores * (q.shape[-1] ** -0.5 if scale is None else scale))
    weights = _merge_heads(_zero_masked_rows(node, softmax(scores, 3), scores))
    outputs = reshape(matmul(cast(weights, v.dtype), _merge_heads(v)), [batch, heads, rows, v.shape[-1]])
    results = [cast(outputs, q.dtype)]
    if node.metas[1] is not None:
        sums = reshape(_zero_masked_rows(node, log_sum_exp(scores, 3), scores), [batch, heads, rows])
        results.append(cast(reshape(sums, node.metas[1].shape), node.metas[1].dtype))
    return results


def _zero_masked_rows(node: Op, x: TosaTensor, scores: TosaTensor) -> TosaTensor:
    """Returns `x` with zeros in fully masked rows, as in eager's kernel; softmax would return NaN."""
    if node.kwargs.get("attn_mask") is None:
        return x
    visible = select(is_equal(scores, float("-inf")), scores.like(0.0), scores.like(1.0))
    return select(is_equal(reduce("reduce_max", visible, [3]), 0.0), x.like(0.0), x)


def _repeat_heads(x: TosaTensor, heads: int) -> TosaTensor:
    """Repeats each head of keys or values for the query heads that share it."""
    batch, groups, length, width = x.shape
    repeated = tile(reshape(x, [batch, groups, 1, length, width]), [1, 1, heads // groups, 1, 1])
    return reshape(repeated, [batch, heads, length, width])


def _merge_heads(x: TosaTensor) -> TosaTensor:
    """Merges batch and heads into one dim."""
    return reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])


def _apply_masks(node: Op, symbol_table: SymbolTable, scores: TosaTensor) -> TosaTensor:
    """Returns the scores plus the mask, with -inf where a bool mask or the causal mask hides a key."""
    mask, hidden = node.kwargs.get("attn_mask"), scores.like(float("-inf"))
    if mask is not None:
        x = registration.operand(mask, len(scores.shape), symbol_table)
        scores = select(x, scores, hidden) if x.dtype is TensorDType.Bool else scores + x
    if argument(node, 4, "is_causal", False):
        scores = select(causal_mask(scores.shape), scores, hidden)
    return scores


ops_registry.absence_reasons |= dict.fromkeys(
    ("FlashAttentionForCpuPrefillOp", "GQAAttentionFusedOp", "MaskedSoftmaxAttentionOp"),
    "no loop-carried values, which blocked attention needs",
)


def _channels_last(x: TosaTensor) -> TosaTensor:
    """Moves dim 1, the channels, to the end."""
    return transpose(x, [0, *range(2, len(x.shape)), 1])


def _channels_second(x: TosaTensor) -> TosaTensor:
    """Moves the last dim, the channels, to dim 1."""
    rank = len(x.shape)
    return transpose(x, [0, rank - 1, *range(1, rank - 1)])


def _fit_to_windows(x: TosaTensor, window: SlidingWindow, outputs: Sequence[int]) -> tuple[TosaTensor, list[int]]:
    """Returns `x`, with channels last, cropped to what the windows read, and the pads before and after each dim."""
    pads = []
    for i, (padded_size, before) in enumerate(zip(window.padded_sizes(outputs), window.padding, strict=True)):
        after = padded_size - before - x.shape[1 + i]
        if after < 0:
            x = slice_dim(x, 1 + i, 0, x.shape[1 + i] + after)
        pads += [before, max(after, 0)]
    return x, pads


def _i64_array(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


# ---- convolution -----------------------------------------------------------------------------------------------------


@lowering("Conv2dOp")
def convolution(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Lowers a convolution of [batch, channels, *space] with a kernel [out, channels / groups, *window].

    The arguments are x, weight, bias, stride, padding, dilation, transposed, output_padding, groups. With one spatial
    dim, adds a unit dim for `tosa.conv2d`.
    """
    meta, groups = node.tensor_meta, node.args[8]
    x, kernel = (tensor_of(arg, symbol_table) for arg in node.args[:2])
    spatial = len(meta.shape) - 2
    if node.args[6]:
        raise LoweringError("the bindings cannot lower a transposed convolution of TOSA")
    if meta.dtype is not TensorDType.Float32:
        raise LoweringError(f"no {meta.dtype.value} convolution with a wider accumulator")
    window = SlidingWindow(kernel.shape[2:], *(per_dim(node.args[i], spatial) for i in (3, 4, 5)))
    outputs = list(meta.shape[2:])
    if spatial == 1:
        x, kernel = reshape(x, [*x.shape[:2], 1, x.shape[2]]), reshape(kernel, [*kernel.shape[:2], 1, kernel.shape[2]])
        window, outputs = window.with_unit_dim(), [1, *outputs]
    bias = _bias(node.args[2], kernel.shape[0], meta.dtype, symbol_table)
    x, pads = _fit_to_windows(_channels_last(x), window, outputs)
    result = _convolve(x, kernel, bias, groups, window, pads, outputs)
    return reshape(_channels_second(result), meta.shape)


def _bias(arg: Op | None, channels: int, dtype: TensorDType, symbol_table: SymbolTable) -> TosaTensor:
    """Returns the bias of each channel; zeros without one."""
    return splat(0, [channels], dtype) if arg is None else tensor_of(arg, symbol_table)


def _convolve(
    x: TosaTensor,
    kernel: TosaTensor,
    bias: TosaTensor,
    groups: int,
    window: SlidingWindow,
    pads: list[int],
    outputs: Sequence[int],
) -> TosaTensor:
    """Emits the convolution of `x`, with channels last; the result has channels last."""
    channels, out = x.shape[-1], kernel.shape[0]
    if groups == 1:
        op = {2: "conv2d", 3: "conv3d"}.get(len(outputs), "")
        kernel = _channels_last(kernel)
    elif groups == channels and len(outputs) == 2:
        op = "depthwise_conv2d"
        per_channel = reshape(kernel, [channels, out // channels, *kernel.shape[2:]])
        kernel = transpose(per_channel, [2, 3, 0, 1])
    else:
        raise LoweringError(f"no convolution in {groups} groups over {len(outputs)} dims")
    if not op:
        raise LoweringError(f"no convolution over {len(outputs)} dims")
    require(op, x.dtype)
    result_type = tensor_type([x.shape[0], *outputs, out], x.dtype)
    zero = splat(0, [1], x.dtype).value
    attributes = {
        "pad": _i64_array(pads), "stride": _i64_array(window.stride), "dilation": _i64_array(window.dilation),
        "acc_type": ir.TypeAttr.get(mlir_element_type_get(TensorDType.Float32)),
    }  # fmt: skip
    operands = (x.value, kernel.value, bias.value, zero, zero)
    return TosaTensor(getattr(tosa, op)(result_type, *operands, **attributes), x.dtype)


# ---- pools -----------------------------------------------------------------------------------------------------------


@lowering("MaxPool2dWithIndicesOp", "MaxPool2dOp")
def max_pool(node: Op, symbol_table: SymbolTable) -> list[TosaTensor]:
    """Returns only the maxima, because TOSA does not return their positions."""
    x, window, meta = tensor_of(node.args[0], symbol_table), pool_window(node), node.tensor_meta
    if any(isinstance(user, GetItemOp) and user.args[1] == 1 for user in node._children):
        raise LoweringError("max_pool2d returns no positions")
    if any(gap != 1 for gap in window.dilation):
        raise LoweringError("no dilated max_pool2d")
    require("max_pool2d", x.dtype)
    x, pads = _fit_to_windows(_as_batch(x), window, meta.shape[-2:])
    result_type = tensor_type([x.shape[0], *meta.shape[-2:], x.shape[-1]], x.dtype)
    maxima = tosa.max_pool2d(result_type, x.value, _i64_array(window.size), _i64_array(window.stride), _i64_array(pads))
    return [reshape(_channels_second(TosaTensor(maxima, x.dtype)), meta.shape)]


def _as_batch(x: TosaTensor) -> TosaTensor:
    """Returns the tensor with channels last and a batch dim."""
    return _channels_last(x if len(x.shape) == 4 else reshape(x, [1, *x.shape]))


@lowering("AvgPool2dOp")
def avg_pool(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Pads before the pool if the padding counts as elements, because `tosa.avg_pool2d` does not count its padding."""
    x, window = tensor_of(node.args[0], symbol_table), pool_window(node)
    divisor = argument(node, 6, "divisor_override")
    if argument(node, 4, "ceil_mode", False):
        raise LoweringError("no avg_pool2d with ceil_mode, whose partial windows differ")
    if divisor is not None and divisor != prod(window.size):
        raise LoweringError("no avg_pool2d with another divisor")
    x = _as_batch(x)
    if argument(node, 5, "count_include_pad", True) and any(window.padding):
        pads = [0, *window.padding, 0]
        x, window = pad(x, pads, pads, 0), window.without_padding()
    return _average_pool(node, x, window)


@lowering("AdaptiveAvgPool2dOp")
def adaptive_avg_pool(node: Op, symbol_table: SymbolTable) -> TosaTensor:
    """Averages over equal windows. Raises `LoweringError` if the output's sizes do not divide the input's."""
    x, outputs = _as_batch(tensor_of(node.args[0], symbol_table)), node.tensor_meta.shape[-2:]
    if any(not n or size % n for size, n in zip(x.shape[1:3], outputs, strict=True)):
        raise LoweringError("windows of different sizes: the output's size does not divide the input's")
    size = (x.shape[1] // outputs[0], x.shape[2] // outputs[1])
    return _average_pool(node, x, SlidingWindow(size, size, (0, 0), (1, 1)))


def _average_pool(node: Op, x: TosaTensor, window: SlidingWindow) -> TosaTensor:
    """Emits the average pool of `x`, with channels last; returns the result of `node`."""
    meta = node.tensor_meta
    require("avg_pool2d", x.dtype)
    x, pads = _fit_to_windows(x, window, meta.shape[-2:])
    result_type = tensor_type([x.shape[0], *meta.shape[-2:], x.shape[-1]], x.dtype)
    zero = splat(0, [1], x.dtype).value
    accumulator_type = ir.TypeAttr.get(mlir_element_type_get(TensorDType.Float32))
    sizes = (_i64_array(window.size), _i64_array(window.stride), _i64_array(pads))
    averages = tosa.avg_pool2d(result_type, x.value, zero, zero, *sizes, accumulator_type)
    return reshape(_channels_second(TosaTensor(averages, x.dtype)), meta.shape)
