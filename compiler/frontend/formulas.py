"""Decompositions of ops for which torch has none, or only one of another overload, or one that differs from eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._pytree import tree_map

aten = torch.ops.aten
F = torch.nn.functional

# Values of the argument `reduction` of losses; 0 means none.
_MEAN, _SUM = 1, 2
# Eager adds this number to the norms by which it divides, so that none is 0.
_EMBEDDING_EPSILON = 1e-7

# Ops with a decomposition in torch that is not in torch's table for core ATen.
FROM_TORCH = [
    aten.view_copy, aten.permute_copy, aten.narrow_copy, aten.unbind_copy, aten.as_strided_copy,
    aten.native_group_norm, aten._native_batch_norm_legit.no_stats, aten.tril_indices, aten.triu_indices,
    aten.batch_norm_backward,
]  # fmt: skip


def cdist(x: torch.Tensor, y: torch.Tensor, p: float, mode: int | None) -> torch.Tensor:
    """Returns the distances between the rows of `x` [..., n, width] and of `y` [..., m, width], as [..., n, m].

    The result is computed from differences for every `mode`: matrix products, which eager uses for many rows, are less
    accurate.
    """
    differences = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == math.inf:  # unlike a norm, eager's kernel ignores coordinates that are NaN
        differences = torch.where(differences.isnan(), 0, differences)
    return _row_norms(differences, p)


def pdist(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    """Returns the distances between each row of `x` [n, width] and the rows after it, as [n * (n - 1) / 2]."""
    rows, columns = torch.triu_indices(x.size(0), x.size(0), 1, device=x.device).unbind()
    return _row_norms(x.index_select(0, rows) - x.index_select(0, columns), p)


def _row_norms(differences: torch.Tensor, p: float) -> torch.Tensor:
    """Returns the p-norm of each row of `differences`, 0 for empty rows.

    For p = 0 it is the number of nonzero elements, or NaN if one of them is NaN.
    """
    if not differences.size(-1):
        return differences.sum(-1)
    if p == 0:
        return differences.abs().ceil().clamp(max=1).sum(-1)
    return torch.linalg.vector_norm(differences, p, -1)


def cdist_backward(
    gradient: torch.Tensor, x: torch.Tensor, y: torch.Tensor, p: float, distances: torch.Tensor
) -> torch.Tensor:
    """Returns the gradient of `x`; a pair at distance 0 contributes nothing."""
    differences, distance = x.unsqueeze(-2) - y.unsqueeze(-3), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x)
    sign = torch.where(differences.isnan(), differences, differences.sign())
    if p == 1:
        derivative = sign
    elif p == math.inf:
        # 1 for the coordinates that are as far apart as the rows, else 0; NaN for NaN and for infinite distances.
        derivative = sign * (1 - (differences.abs() - distance).abs().ceil().clamp(max=1))
    else:
        power = differences if p == 2 else differences.sign() * differences.abs() ** (p - 1)
        # An equal coordinate would contribute 0 * inf for p < 1. For p > 1 it contributes NaN if the distance is NaN.
        ignored = (distance == 0) | (differences == 0) if p < 1 else distance == 0
        derivative = torch.where(ignored, 0, power / distance ** (p - 1))
    return (derivative * gradient.unsqueeze(-1)).sum(-2)


def pdist_backward(gradient: torch.Tensor, x: torch.Tensor, p: float, distances: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of `x`; `gradient` belongs to `distances`, the results of `pdist`."""
    rows, columns = torch.triu_indices(x.size(0), x.size(0), 1, device=x.device).unbind()

    def symmetric_matrix(values: torch.Tensor) -> torch.Tensor:
        upper = values.new_zeros([x.size(0), x.size(0)]).index_put([rows, columns], values)
        return upper + upper.t()

    return cdist_backward(symmetric_matrix(gradient), x, x, p, symmetric_matrix(distances))


def masked_scatter_backward(gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Returns the gradient of the values that `masked_scatter` reads in order; unused values have the gradient 0."""
    flat = torch.cat([gradient.reshape(-1), gradient.new_zeros([1])])
    flat_mask = mask.expand_as(gradient).reshape(-1)
    positions = aten.nonzero_static.default(flat_mask, size=math.prod(sizes), fill_value=gradient.numel())
    return flat.index_select(0, positions.squeeze(1)).reshape(sizes)


def materialized_zeros(size: Sequence[int], **options: object) -> torch.Tensor:
    """Returns zeros in memory for the op `_efficientzerotensor` of autograd, whose result has no memory in eager."""
    return torch.zeros(size, dtype=options.get("dtype"))


def dist(x: torch.Tensor, y: torch.Tensor, p: float = 2) -> torch.Tensor:
    """Returns the p-norm of the difference of `x` and `y`."""
    return torch.linalg.vector_norm(x - y, p)


def embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Returns `weight` [rows, width] with the rows at `indices` scaled to at most `max_norm`."""
    rows = indices.flatten()
    is_read = torch.zeros_like(weight[:, 0], dtype=torch.bool)
    is_read = is_read.index_put((rows,), torch.ones_like(rows, dtype=torch.bool))
    norms = torch.linalg.vector_norm(weight, norm_type, -1)
    scale = torch.where(is_read & (norms > max_norm), max_norm / (norms + _EMBEDDING_EPSILON), 1)
    return weight * scale.unsqueeze(-1)


def attention_backward(
    gradient: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    log_sums: torch.Tensor, dropout_p: float, is_causal: bool, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradients of q, k and v [batch, heads, length, width].

    `out` and `log_sums` [batch, heads, length] are the results of the forward pass. Recomputes the attention weights
    from `log_sums` (FlashAttention-2, Dao 2023, section 3.1, in one block). A fully masked row has the weights 0. If q
    has a multiple of the heads of k and v, several heads of q read one head of k and v.
    """
    if dropout_p:
        return NotImplemented
    softmax_scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    dtype, compute_type, repeats = q.dtype, torch.promote_types(q.dtype, torch.float32), q.size(1) // k.size(1)
    q, k, v, gradient, out = (t.to(compute_type) for t in (q, k, v, gradient, out))
    k, v = (t.repeat_interleave(repeats, 1) if repeats > 1 else t for t in (k, v))
    scores = _scores(q, k, is_causal, attn_mask, softmax_scale)
    weights = (scores - log_sums.to(compute_type).unsqueeze(-1)).exp()
    weights = weights.masked_fill(scores == -math.inf, 0)
    weights_gradient = gradient @ v.transpose(-2, -1)
    scores_gradient = weights * (weights_gradient - (gradient * out).sum(-1, keepdim=True)) * softmax_scale
    q_gradient = scores_gradient @ k
    k_gradient, v_gradient = scores_gradient.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ gradient
    gradients = (q_gradient, *(_sum_over_repeats(t, repeats) for t in (k_gradient, v_gradient)))
    # Eager's results are stored as [batch, length, heads, width].
    return tuple(t.to(dtype).transpose(1, 2).contiguous().transpose(1, 2) for t in gradients)


def _scores(
    q: torch.Tensor, k: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, softmax_scale: float
) -> torch.Tensor:
    """Returns the input of attention's softmax, [batch, heads, length of q, length of k]."""
    scores = q @ k.transpose(-2, -1) * softmax_scale
    if mask is not None:
        minus_infinity = scores.new_full((), -math.inf)
        scores = torch.where(mask, scores, minus_infinity) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        is_visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~is_visible, -math.inf)
    return scores


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns attention's output and the logarithms of the softmax sums [batch, heads, length], as eager does.

    The output comes from torch's decomposition, whose second result, the attention weights, is not used.
    """
    rule = torch._decomp.decomposition_table[aten._scaled_dot_product_flash_attention_for_cpu.default]
    out, _ = rule(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    repeats, compute_type = q.size(1) // k.size(1), torch.promote_types(q.dtype, torch.float32)
    keys = (k.repeat_interleave(repeats, 1) if repeats > 1 else k).to(compute_type)
    softmax_scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    scores = _scores(q.to(compute_type), keys, is_causal, attn_mask, softmax_scale)
    return out, torch.logsumexp(scores, -1)


def attention_of_symbolic_width(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns the results of `attention` for a head size unknown at compile time; the op class handles other calls."""
    if not isinstance(q.size(-1), torch.SymInt):
        return NotImplemented
    # A symbol cannot be the scale of torch's decomposition: it would become a constant. So q is scaled.
    compute_type = torch.promote_types(q.dtype, torch.float32)
    scaled = q.to(compute_type) * (1 / torch.sym_sqrt(q.size(-1)) if scale is None else scale)
    keys, values = k.to(compute_type), v.to(compute_type)
    mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.to(compute_type)
    out, logarithms = attention(scaled, keys, values, dropout_p, is_causal, attn_mask=mask, scale=1.0)
    return _store_like(out.to(q.dtype), q), logarithms


def _store_like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns `value` with the strides of `torch.empty_like(like)`; both have the same shape."""
    strides = torch.empty_like(like).stride()
    order = sorted(range(value.dim()), key=strides.__getitem__, reverse=True)
    return value.permute(order).contiguous().permute([order.index(dim) for dim in range(value.dim())])


def _sum_over_repeats(gradient: torch.Tensor, repeats: int) -> torch.Tensor:
    """Returns the sum over the heads that read one head of k or v."""
    return gradient.unflatten(1, (-1, repeats)).sum(2) if repeats > 1 else gradient


def multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of scores [classes] or [rows, classes], and the mask of the target classes.

    A list of targets ends at -1; torch's decomposition reads the rest of the list as class 0.
    """
    scores, labels = (value.reshape(-1, value.size(-1) if value.dim() else 1) for value in (x, target))
    classes, class_numbers = scores.size(1), torch.arange(scores.size(1), device=x.device)
    end = torch.where(labels == -1, class_numbers, classes).amin(-1, keepdim=True)
    is_listed = class_numbers < end
    target_scores = scores.gather(1, torch.where(is_listed, labels, 0))
    is_target = (class_numbers == torch.where(is_listed, labels, -1).unsqueeze(-1)).any(1)
    has_margin = is_listed.unsqueeze(-1) & ~is_target.unsqueeze(1)
    margins = 1 - target_scores.unsqueeze(-1) + scores.unsqueeze(1)
    # Eager's kernel ignores margins that are NaN.
    losses = torch.where(has_margin & (margins > 0), margins, 0).sum((1, 2)) / classes
    if reduction == _MEAN:
        losses = losses.mean()
    elif reduction == _SUM or x.dim() < 2:
        losses = losses.sum()
    return losses, is_target.to(x.dtype).reshape(target.shape)


def compute_in_float32(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a decomposition that computes half precision in float32 and rounds once, like eager.

    Torch's `rule` alone rounds half precision after each step.
    """

    def decompose(x: torch.Tensor, *rest: object, **kwargs: object) -> torch.Tensor:
        halves = (torch.float16, torch.bfloat16)
        tensors = [value for value in (x, *rest) if isinstance(value, torch.Tensor)]
        if any(value.dtype not in halves or value.dtype != x.dtype for value in tensors):
            return rule(x, *rest, **kwargs)
        operands = [value.float() if isinstance(value, torch.Tensor) else value for value in rest]
        return rule(x.float(), *operands, **kwargs).to(x.dtype)

    return decompose


def for_half_precision(
    half_rule: Callable[..., torch.Tensor], rule: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Returns a decomposition that calls `half_rule` for half precision, and torch's `rule` otherwise.

    Torch's decompositions compute in float32 and round once, whereas eager rounds after each step for these ops.
    `half_rule` gets numbers as tensors of the half-precision type, so that each step is rounded.
    """

    def decompose(*operands: object) -> torch.Tensor:
        dtypes = {value.dtype for value in operands if isinstance(value, torch.Tensor)}
        if len(dtypes) > 1 or not dtypes <= {torch.float16, torch.bfloat16}:
            return rule(*operands)
        (dtype,) = dtypes
        return half_rule(
            *(v if v is None or isinstance(v, torch.Tensor) else torch.full((), v, dtype=dtype) for v in operands)
        )

    return decompose


def logit(x: torch.Tensor, eps: torch.Tensor | None = None) -> torch.Tensor:
    """Returns log(x / (1 - x)), with x clamped to [`eps`, 1 - `eps`]."""
    if eps is not None:
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x))
    return torch.log(x / (1 - x))


def times_logarithm(logarithm: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a decomposition of `x * logarithm(y)`, which is 0 where `x` is 0, but NaN where `y` is NaN."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.isnan(y), math.nan, torch.where(x == 0, 0, x * logarithm(y)))

    return product


def assert_nonzero(condition: torch.Tensor) -> None:
    """Asserts with eager's message: torch removes calls of the overload without a message as dead code."""
    aten._assert_async.msg(condition, "Expected Tensor with single nonzero value, but got zero")


def check_unit_interval(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns torch's `rule` for a loss, with eager's check that input and target are in [0, 1] and not NaN."""

    def decompose(x: torch.Tensor, target: torch.Tensor, *rest: object, **kwargs: object) -> torch.Tensor:
        for operand, values in (("input", x), ("target", target)):
            is_inside = ((values >= 0) & (values <= 1)).all()
            aten._assert_async.msg(is_inside, f"all elements of {operand} should be between 0 and 1")
        return rule(x, target, *rest, **kwargs)

    return decompose


def threshold_backward(gradient: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    """Returns the gradient of `x` in the promoted type of both operands, like eager.

    Torch's decomposition returns it in the type of `gradient`.
    """
    masked = torch.where(x <= threshold, 0, gradient)
    return masked.to(torch.result_type(gradient, x))


def hardtanh_backward(gradient: torch.Tensor, x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Returns the gradient of `x`; for NaN it is 0, as in eager's vector kernel; torch's decomposition differs."""
    compared = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.where((compared > low) & (compared < high), gradient, 0)


def hardswish_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of `x`; for NaN it is NaN, as in eager's vector kernel; torch's decomposition differs."""
    compute_type = torch.promote_types(x.dtype, torch.float32)
    wide, compared = gradient.to(compute_type), x.to(compute_type)
    inner = torch.where(compared >= 3, wide, wide * (compared / 3 + 0.5))
    return torch.where(compared <= -3, 0, inner).to(gradient.dtype)


def smooth_l1_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """Returns the gradient of `x`; for NaN it is NaN, as in eager; torch's decomposition returns 0."""
    compute_type = torch.promote_types(x.dtype, torch.float32)
    difference = x.to(compute_type) - target.to(compute_type)
    scaled = gradient.to(compute_type) * (1 / max(1, x.numel()) if reduction == _MEAN else 1.0)
    is_linear = difference.abs() >= beta
    return torch.where(is_linear, scaled * difference.sign(), scaled * difference / beta).to(x.dtype)


def multi_margin_loss(
    x: torch.Tensor, target: torch.Tensor, p: float = 1, margin: float = 1, weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Returns the loss of scores [classes] or [rows, classes]; eager's kernel ignores margins that are NaN."""
    scores, labels = torch.atleast_2d(x), torch.atleast_1d(target).unsqueeze(1)
    margins = margin - scores.gather(1, labels) + scores
    is_counted = (margins > 0) & (torch.arange(scores.size(1), device=x.device) != labels)
    margins = torch.where(is_counted, margins, 0)
    losses = margins if p == 1 else margins * margins
    if weight is not None:
        losses = losses * weight[labels]
    losses = losses.sum(1) / scores.size(1)
    if reduction == _MEAN:
        return losses.mean()
    return losses.sum() if reduction == _SUM else losses.reshape(target.shape)


def index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns `x` with `value`, a tensor without dims, at `index`; torch's decomposition does not convert `value`."""
    rule = torch._decomp.decomposition_table[aten.index_fill.int_Tensor]
    return rule(x, dim, index, value.to(x.dtype))


def rrelu_backward(
    gradient: torch.Tensor, x: torch.Tensor, noise: torch.Tensor, lower: float, upper: float, training: bool,
    self_is_result: bool,
) -> torch.Tensor:  # fmt: skip
    """Returns `gradient` times the slopes that were drawn in training, otherwise times their mean, like eager."""
    if training and upper - lower > 1e-6:  # eager's own threshold
        return gradient * noise
    return aten.leaky_relu_backward(gradient, x, (lower + upper) / 2, self_is_result)


def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the elements of the flattened tensor at `index`.

    While tracing, torch's decomposition would read the value of an index without dims.
    """
    return aten.index.Tensor(x.reshape(-1), [index])


def conv_tbc(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int = 0) -> torch.Tensor:
    """Returns a convolution of `x` [time, batch, in] with `weight` [width, in, out], as [time, batch, out]."""
    output = torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return output.permute(2, 0, 1).contiguous()


def index_put_impl(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Implements `index_put`; `unsafe` skips the checks of the indices, which are done here in any case."""
    return aten.index_put.default(x, indices, values, accumulate)


def copy_result(view: Callable[..., object]) -> Callable[..., object]:
    """Returns a function that returns contiguous copies of the tensor or tensors that `view` returns."""

    def copy(x: torch.Tensor, *rest: object, **kwargs: object) -> torch.Tensor:
        return tree_map(partial(torch.clone, memory_format=torch.contiguous_format), view(x, *rest, **kwargs))

    return copy


def keep_format(rule: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns torch's `rule` with the result in the memory format of the operand, contiguous or channels last."""

    def decompose(x: torch.Tensor, *rest: object) -> torch.Tensor:
        return rule(x, *rest).contiguous(memory_format=suggest_memory_format(x))

    return decompose


def for_reals(rule: Callable[..., object]) -> Callable[..., object]:
    """Returns torch's `rule` for real numbers; complex ops stay unchanged, because the rule would raise."""

    def decompose(x: torch.Tensor, *rest: object, **kwargs: object) -> torch.Tensor:
        return NotImplemented if x.is_complex() else rule(x, *rest, **kwargs)

    return decompose


def encoder_layer(
    x: torch.Tensor, width: int, heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, out_weight: torch.Tensor,
    out_bias: torch.Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor, up_weight: torch.Tensor,
    up_bias: torch.Tensor, down_weight: torch.Tensor, down_bias: torch.Tensor, mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Applies one transformer encoder layer to `x` [batch, tokens, width]. A call with a mask stays unchanged."""
    if mask is not None or x.dim() != 3:
        return NotImplemented

    def attention(y: torch.Tensor) -> torch.Tensor:
        qkv = F.linear(y, qkv_weight, qkv_bias).unflatten(-1, (3, heads, width // heads))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)
        return F.linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed_forward(y: torch.Tensor) -> torch.Tensor:
        y = F.linear(y, up_weight, up_bias)
        return F.linear(F.gelu(y) if use_gelu else F.relu(y), down_weight, down_bias)

    first_norm = (norm_weight_1.shape, norm_weight_1, norm_bias_1, eps)
    second_norm = (norm_weight_2.shape, norm_weight_2, norm_bias_2, eps)
    if norm_first:
        x = x + attention(F.layer_norm(x, *first_norm))
        return x + feed_forward(F.layer_norm(x, *second_norm))
    x = F.layer_norm(x + attention(x), *first_norm)
    return F.layer_norm(x + feed_forward(x), *second_norm)


softshrink = compute_in_float32(torch._decomp.decomposition_table[aten.softshrink.default])
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._cdist_forward.default: cdist,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist,
    aten._pdist_backward.default: pdist_backward,
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten._efficientzerotensor.default: materialized_zeros,
    aten.dist.default: dist,
    aten.embedding_renorm.default: embedding_renorm,
    aten.take.default: take,
    aten.conv_tbc.default: conv_tbc,
    aten.detach_copy.default: copy_result(aten.detach.default),
    aten.slice_copy.Tensor: copy_result(aten.slice.Tensor),
    aten.select_copy.int: copy_result(aten.select.int),
    aten.split_copy.Tensor: copy_result(aten.split.Tensor),
    aten._conj_copy.default: copy_result(aten._conj.default),
    aten._neg_view_copy.default: copy_result(aten._neg_view.default),
    aten.view_as_real_copy.default: copy_result(aten.view_as_real.default),
    aten.view_as_complex_copy.default: copy_result(aten.view_as_complex.default),
    aten._reshape_copy.default: copy_result(aten.reshape.default),
    aten._reshape_alias_copy.default: copy_result(aten._reshape_alias.default),
    aten._index_put_impl.default: index_put_impl,
    aten.rrelu_with_noise_backward.default: rrelu_backward,
    aten._assert_async.default: assert_nonzero,
    aten.threshold_backward.default: threshold_backward,
    aten.hardtanh_backward.default: hardtanh_backward,
    aten.hardswish_backward.default: hardswish_backward,
    aten.smooth_l1_loss_backward.default: smooth_l1_backward,
    aten.multi_margin_loss.default: multi_margin_loss,
    aten.index_fill.int_Tensor: index_fill,
    aten.binary_cross_entropy.default: check_unit_interval(
        torch._decomp.decomposition_table[aten.binary_cross_entropy.default]
    ),
    aten.addcmul.default: for_reals(torch._decomp.decomposition_table[aten.addcmul.default]),
    aten.addcdiv.default: for_reals(compute_in_float32(torch._decomp.decomposition_table[aten.addcdiv.default])),
    aten.softshrink.default: softshrink,
    aten.logit.default: for_half_precision(logit, torch._decomp.decomposition_table[aten.logit.default]),
    **{
        overload: for_half_precision(times_logarithm(logarithm), torch._decomp.decomposition_table[overload])
        for logarithm, overloads in (
            (torch.log, (aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)),
            (
                torch.log1p,
                (aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar),
            ),
        )
        for overload in overloads
    },
    aten.multilabel_margin_loss_forward.default: multilabel_margin_loss,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
    aten.nan_to_num.default: for_reals(torch._decomp.decomposition_table[aten.nan_to_num.default]),
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten.max_unpool2d.default: keep_format(torch._decomp.decomposition_table[aten.max_unpool2d.default]),
}

# For `eager_dispatch.dispatch_like_eager`.
DISPATCHER_RULES: dict[Any, Sequence[Callable[..., Any]]] = {
    aten.multi_margin_loss.default: [multi_margin_loss],
    aten.multilabel_margin_loss_forward.default: [multilabel_margin_loss],
    aten.softshrink.default: [softshrink],
}
# For ops with an op class, which handles all calls for which these return `NotImplemented`.
CONDITIONAL_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention_of_symbolic_width,
}
