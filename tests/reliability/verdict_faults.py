"""Small faults to plant in compiled programs: what a wrong lowering, pass or kernel computes instead of an op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.reliability.planting import ALL, Change, Planted
from tests.reliability.verdict_models import DTYPES

NARROW, BOTH = ("float32",), tuple(DTYPES)
LOW = ("bfloat16",)


class Case(NamedTuple):
    """A fault in a model, which has to show in each of `dtypes`."""

    model: str
    fault: Planted
    dtypes: tuple[str, ...] = BOTH


# ---- what is computed instead ----------------------------------------------------------------------------------------


def result(change: Callable[[Tensor], Tensor]) -> Change:
    """`change` of the op's result, the first one where there are several."""

    def changed(call: Any, *arguments: Any, **keywords: Any) -> Any:
        found = call(*arguments, **keywords)
        return (change(found[0]), *found[1:]) if isinstance(found, tuple) else change(found)

    return changed


def argument(place: int, change: Callable[[Any], Any]) -> Change:
    """The op on another argument at `place`."""

    def changed(call: Any, *arguments: Any, **keywords: Any) -> Any:
        given = list(arguments)
        given[place] = change(given[place])
        return call(*given, **keywords)

    return changed


def keyword(name: str, value: Any) -> Change:
    return lambda call, *arguments, **keywords: call(*arguments, **{**keywords, name: value})


def with_part(whole: Tensor, dim: int, part: Tensor, at: int) -> Tensor:
    """`whole` with `part` in the place of what is at `at` along `dim`."""
    at %= whole.shape[dim]
    return torch.cat([whole.narrow(dim, 0, at), part, whole.narrow(dim, at + 1, whole.shape[dim] - at - 1)], dim)


def at(dim: int, index: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`change` of one slice of a tensor."""
    return lambda x: with_part(x, dim, change(x.narrow(dim, index % x.shape[dim], 1)), index)


def exchanged(dim: int) -> Callable[[Tensor], Tensor]:
    """The last two slices along `dim` in each other's place."""

    def change(x: Tensor) -> Tensor:
        size = x.shape[dim]
        return torch.cat([x.narrow(dim, 0, size - 2), x.narrow(dim, size - 1, 1), x.narrow(dim, size - 2, 1)], dim)

    return change


def moved(dim: int) -> Callable[[Tensor], Tensor]:
    """Each slice in the place of the next one; the first one stays."""
    return lambda x: torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, x.shape[dim] - 1)], dim)


def short(dim: int) -> Change:
    """A product whose last row or column lacks the last of the products that it adds up."""

    def changed(call: Any, *arguments: Any, **_keywords: Any) -> Any:
        *_bias, one, other = arguments
        found = call(*arguments)
        lost = one[..., -1:] @ other[..., -1:, :]
        return with_part(found, dim, (found - lost).narrow(dim, found.shape[dim] - 1, 1), -1)

    return changed


def short_window(call: Any, x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """A convolution whose last output channel lacks the last element of the window."""
    last = weight[-1:].clone()
    last = torch.cat([last.flatten(2)[..., :-1], torch.zeros_like(last.flatten(2)[..., -1:])], -1).reshape(last.shape)
    return call(x, torch.cat([weight[:-1], last]), *rest)


def attention(change: Callable[..., tuple[Tensor, Tensor, Tensor, dict[str, Any]]]) -> Change:
    """Attention on what `change(query, key, value, keywords)` makes of its arguments."""

    def changed(call: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **keywords: Any) -> Any:
        q, k, v, keywords = change(q, k, v, dict(keywords))
        return call(q, k, v, *rest, **keywords)

    return changed


def _scaled(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Any:
    return q, k, v, {**given, "scale": 1 / math.sqrt(q.shape[-1] + 1)}


def _scaled_by_two(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Any:
    return q, k, v, {**given, "scale": 1 / math.sqrt(2 * q.shape[-1])}


def _without_last_key(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Any:
    return q, k[:, :, :-1], v[:, :, :-1], given


def _heads_exchanged(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Any:
    return q, torch.cat([k[:, :1], k[:, 2:3], k[:, 1:2], k[:, 3:]], 1), v, given


def _sees_next(call: Any, q: Tensor, k: Tensor, v: Tensor, *_rest: Any, **_keywords: Any) -> Any:
    length = q.shape[-2]
    mask = torch.ones(length, length, dtype=torch.bool).tril(1).to(q.dtype).log().clamp(min=-1e30)
    return call(q, k, v, attn_mask=mask)


def _blind_to_itself(call: Any, q: Tensor, k: Tensor, v: Tensor, *_rest: Any, **_keywords: Any) -> Any:
    length = q.shape[-2]
    seen = torch.ones(length, length, dtype=torch.bool).tril(-1)
    seen = torch.cat([torch.cat([seen[:1, :1].logical_not(), seen[:1, 1:]], 1), seen[1:]])
    return call(q, k, v, attn_mask=seen.to(q.dtype).log().clamp(min=-1e30))


def truncated(x: Tensor) -> Tensor:
    """float32 as bfloat16 without rounding: the upper half of the bits."""
    return (x.float().view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)


def in_bfloat16(call: Any, *arguments: Any, **keywords: Any) -> Any:
    """The op on arguments of 8 bits, its result as wide as it was."""
    return call(*(a.bfloat16().to(a.dtype) if isinstance(a, Tensor) else a for a in arguments), **keywords)


def truncated_products(call: Any, *arguments: Any) -> Tensor:
    """A product of bfloat16 whose result is truncated, not rounded."""
    return truncated(call(*(a.float() for a in arguments)))


def truncated_sums(call: Any, x: Tensor, y: Any, **keywords: Any) -> Tensor:
    """A sum of bfloat16 whose result is truncated, not rounded."""
    if not (isinstance(y, Tensor) and x.dtype == torch.bfloat16):
        return call(x, y, **keywords)
    return truncated(x.float() + y.float())


def accumulated_in_bfloat16(call: Any, x: Tensor, dims: Any, keepdim: bool = False, **_: Any) -> Tensor:
    """A mean whose sum is rounded to 8 bits after each half of its addends."""
    half = x.shape[-1] // 2
    first = x[..., :half].sum(-1, keepdim=keepdim).bfloat16()
    return ((first + x[..., half:].sum(-1, keepdim=keepdim).bfloat16()).bfloat16() / x.shape[-1]).to(x.dtype)


def unbiased(call: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """A layer norm that divides by one element less."""
    found = call(x, shape, None, None, eps)
    normal = found[0] * math.sqrt((x.shape[-1] - 1) / x.shape[-1])
    return (normal * weight + bias).to(x.dtype), *found[1:]


def gelu_of(call: Any, x: Tensor, **_: Any) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def few_bits(bits: int) -> Callable[[Tensor], Tensor]:
    """float32 of which only the upper `bits` of the mantissa are there, as a hardware estimate gives."""
    return lambda x: (x.float().view(torch.int32) & -(1 << (23 - bits))).view(torch.float32).to(x.dtype)


def naive_softmax(call: Any, x: Tensor, dim: int, _half: bool) -> Tensor:
    powers = x.exp()
    return powers / powers.sum(dim, keepdim=True)


def _keys_for_values(call: Any, *arguments: Any) -> tuple[Tensor, ...]:
    q, k, v = call(*arguments)
    return q, k, torch.cat([v[..., :48], k[..., 48:]], -1)


def over(dim: int) -> Change:
    """A mean along `dim` instead."""
    return lambda call, x, _dims, keepdim=False, **_: x.mean(dim, keepdim=keepdim)


def _last_of_equals(call: Any, x: Tensor, *rest: Any) -> Tensor:
    return x.shape[-1] - 1 - call(x.flip(-1), *rest)


def _averaged_over_all(call: Any, x: Tensor, *rest: Any) -> Tensor:
    kernel, stride, padding = rest[:3]
    return call(x, kernel, stride, padding, False, True)


def _averaged_over_valid(call: Any, x: Tensor, *rest: Any) -> Tensor:
    kernel, stride, padding = rest[:3]
    return call(x, kernel, stride, padding, False, False)


def _shifted_windows(call: Any, x: Tensor, *rest: Any) -> Any:
    return call(torch.cat([x[..., 1:], x[..., -1:]], -1), *rest)


def _pooled_with_halves(call: Any, x: Tensor, *rest: Any) -> Any:
    found = call(x, *rest)
    return (with_part(found[0], -1, found[0][..., -1:].clamp(min=0.5), -1), *found[1:])


def _edge_repeated(call: Any, x: Tensor, weight: Tensor, bias: Any, stride: Any, _padding: Any, *rest: Any) -> Tensor:
    wide = torch.cat([x[..., :1], x, x[..., -1:]], -1)
    return call(wide, weight, bias, stride, [1, 0], *rest)


def _blank_border(call: Any, x: Tensor, *rest: Any) -> Tensor:
    return call(with_part(x, -1, torch.zeros_like(x[..., -1:]), -1), *rest)


def _no_dropout_scale(divisor: Any) -> Any:
    return 1.0 if divisor == 0.7 else divisor


def _rounded_up(call: Any, x: Tensor) -> Tensor:
    return (x + 0.5).floor()


def _truncated_division(call: Any, x: Tensor, y: Any, **_: Any) -> Tensor:
    return call(x, y, rounding_mode="trunc")


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def added(amount: float) -> Callable[[Any], Any]:
    return lambda x: x + amount


def at_least(low: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.clamp(min=low)


def zero(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


# ---- where -----------------------------------------------------------------------------------------------------------

_ADDMM, _MM, _CONV, _NORM = "addmm.default", "mm.default", "convolution.default", "native_layer_norm.default"
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"
_BATCH_NORM = "_native_batch_norm_legit_no_training.default"
_MAX_POOL, _AVG_POOL = "max_pool2d_with_indices.default", "avg_pool2d.default"
BERT, GPT2, LLAMA, VIT = "BERT, 2 layers", "GPT-2, 2 layers", "Llama, 2 layers", "ViT, 2 layers"
RESNET, UNET, POOL, SWIN, LSTM = "ResNet", "U-Net", "PoolFormer", "Swin", "nn.LSTM"
DENSE, MIXER, RESOLUTION, TRAINING = "DenseNet", "MLP-Mixer", "Super-resolution", "VGG in training"
QUANTISED, CHOICES, GATHERS = "quantised layers", "choices", "gathers and windows"


def _bert() -> list[Case]:
    dropped = "an output channel dropped"
    return [
        Case(BERT, Planted("channel 3 of the last product is zero", dropped, _ADDMM, result(at(1, 3, zero)), -2)),
        Case(BERT, Planted("channel 3 of the first query is zero", dropped, _ADDMM, result(at(1, 3, zero)), 0), NARROW),
        Case(BERT, Planted("channel 3 of the last value is zero", dropped, _ADDMM, result(at(1, 3, zero)), 8)),
        Case(BERT, Planted("the last row lacks a product", "edge of a tile", _ADDMM, short(0), -2), NARROW),
        Case(BERT, Planted("the last column lacks a product", "edge of a tile", _ADDMM, short(1), 4), NARROW),
        Case(BERT, Planted("channel 5 gets no bias", "bias", _ADDMM, argument(0, at(0, 5, zero)), -2)),
        Case(BERT, Planted("a bias counts twice", "bias", _ADDMM, argument(0, at(0, 5, scaled(2.0))), 5), NARROW),
        Case(BERT, Planted("erf by tanh", "another function", "gelu.default", keyword("approximate", "tanh")), NARROW),
        Case(CHOICES, Planted("erf by a sigmoid", "another function", "gelu.default", gelu_of)),
        Case(BERT, Planted("1e-12 is 1e-5", "epsilon", _NORM, argument(4, lambda _: 1e-5)), NARROW),
        Case(BERT, Planted("1e-12 is 1e-2", "epsilon", _NORM, argument(4, lambda _: 1e-2), 0)),
        Case(BERT, Planted("one element less in a variance", "divisor", _NORM, unbiased, -2), NARROW),
        Case(BERT, Planted("sqrt(d + 1) for sqrt(d)", "scale", _ATTENTION, attention(_scaled)), NARROW),
        Case(BERT, Planted("the last key is not read", "edge of a tile", _ATTENTION, attention(_without_last_key))),
        Case(BERT, Planted("two rows exchanged", "rows exchanged", _ADDMM, result(exchanged(0)), -2)),
        Case(BERT, Planted("rows of the buffer before", "stale buffer", _ADDMM, result(moved(0)), 4)),
        Case(BERT, Planted("the last position is that before", "off by one", "embedding.default",
                         argument(1, lambda p: p.clamp(max=14)), 2)),
        Case(BERT, Planted("products of 8 bits", "precision", _ADDMM, in_bfloat16, 5), NARROW),
        Case(BERT, Planted("the residual is not added", "stale buffer", "add.Tensor", lambda _call, x, _y: x * 1, -1)),
    ]  # fmt: skip


def _gpt2() -> list[Case]:
    return [
        Case(GPT2, Planted("a token sees the next one", "mask off by one", _ATTENTION, _sees_next)),
        Case(GPT2, Planted("a token does not see itself", "mask off by one", _ATTENTION, _blind_to_itself)),
        Case(GPT2, Planted("keys for values in a head", "wrong slice", "split.Tensor",
                         _keys_for_values)),
        Case(GPT2, Planted("0.0447 for 0.044715", "another function", "mul.Tensor",
                         argument(1, lambda _: 0.0447), 5), NARROW),
        Case(GPT2, Planted("0.05 for 0.044715", "another function", "mul.Tensor", argument(1, lambda _: 0.05), 1)),
        Case(GPT2, Planted("1e-5 is 1e-6", "epsilon", _NORM, argument(4, lambda _: 1e-6), 0), NARROW),
        Case(GPT2, Planted("1e-5 is 1e-2", "epsilon", _NORM, argument(4, lambda _: 1e-2), 0)),
        Case(GPT2, Planted("positions from 1 on", "off by one", "embedding.default",
                         argument(1, lambda p: (p + 1).clamp(max=15)))),
        Case(GPT2, Planted("the last column lacks a product", "edge of a tile", _MM, short(1))),
        Case(GPT2, Planted("tanh of 11 bits", "precision", "tanh.default", result(few_bits(11))), NARROW),
        Case(GPT2, Planted("weights of 8 bits", "precision", _MM, in_bfloat16), NARROW),
    ]  # fmt: skip


def _llama() -> list[Case]:
    return [
        Case(LLAMA, Planted("1e-6 is 1e-5", "epsilon", "add.Tensor", argument(1, lambda _: 1e-5), 3), NARROW),
        Case(LLAMA, Planted("1e-6 is 1e-3", "epsilon", "add.Tensor", argument(1, lambda _: 1e-3), 3)),
        Case(LLAMA, Planted("a mean of 63 of 64", "divisor", "mean.dim", result(scaled(64 / 63)), -1)),
        Case(LLAMA, Planted("rsqrt of 11 bits", "precision", "rsqrt.default", result(few_bits(11))), NARROW),
        Case(LLAMA, Planted("a sum in 8 bits", "precision", "mean.dim", accumulated_in_bfloat16, 1), NARROW),
        Case(LLAMA, Planted("the last position turns as that before", "off by one", "cos.default", result(
            lambda x: with_part(x, 1, x[:, -2:-1], -1)))),
        Case(LLAMA, Planted("heads of keys exchanged", "wrong slice", _ATTENTION, attention(_heads_exchanged))),
        Case(LLAMA, Planted("a sign of the rotation", "sign", "neg.default", result(at(3, 0, scaled(-1.0))), 0)),
        Case(LLAMA, Planted("sigmoid(1.02 x)", "another function", "silu.default",
                          lambda _call, x: x * torch.sigmoid(1.02 * x))),
        Case(LLAMA, Planted("sqrt(d + 1) for sqrt(d)", "scale", _ATTENTION, attention(_scaled), 0), NARROW),
        Case(LLAMA, Planted("sqrt(2 d) for sqrt(d)", "scale", _ATTENTION, attention(_scaled_by_two), 0), LOW),
        Case(LLAMA, Planted("channel 7 is zero", "an output channel dropped", _MM, result(at(1, 7, zero)), 11)),
        Case(LLAMA, Planted("all products truncated to 8 bits", "rounding mode", _MM, truncated_products, ALL), LOW),
        Case(LLAMA, Planted("all sums truncated to 8 bits", "rounding mode", "add.Tensor", truncated_sums, ALL), LOW),
    ]  # fmt: skip


def _vision() -> list[Case]:
    window = "padding and pooling"
    return [
        Case(VIT, Planted("the last row lacks a product", "edge of a tile", _ADDMM, short(0), 5)),
        Case(VIT, Planted("rows exchanged", "rows exchanged", _ATTENTION, result(exchanged(-2)))),
        Case(VIT, Planted("the last window lacks an element", "edge of a tile", _CONV, short_window)),
        Case(RESNET, Planted("1e-5 is 1e-3", "epsilon", _BATCH_NORM, argument(6, lambda _: 1e-3)), NARROW),
        Case(RESNET, Planted("1e-5 is 2e-5", "epsilon", _BATCH_NORM, argument(6, lambda _: 2e-5)), NARROW),
        Case(RESNET, Planted("the last channel is not added up", "edge of a tile", _CONV, short_window, 9), NARROW),
        Case(RESNET, Planted("zero is 0.01", "clamp bound", "relu.default", result(at_least(0.01))), NARROW),
        Case(RESNET, Planted("zero is 0.05", "clamp bound", "relu.default", result(at_least(0.05))), LOW),
        Case(RESNET, Planted("means of 15 of 16", "divisor", "mean.dim", result(scaled(16 / 15)))),
        Case(UNET, Planted("windows lack a column", window, _MAX_POOL, _shifted_windows, 0), NARROW),
        Case(UNET, Planted("padded with 0.5", window, _MAX_POOL, _pooled_with_halves, 1)),
        Case(UNET, Planted("parts in another order", "wrong slice", "cat.default", result(exchanged(1)), 1)),
        Case(UNET, Planted("the last channel lacks a corner of its window", "edge of a tile", _CONV, short_window, 6)),
        Case(POOL, Planted("padding is counted", window, _AVG_POOL, _averaged_over_all, 1)),
        Case(POOL, Planted("one element less", "divisor", "var_mean.correction", keyword("correction", 1), -1)),
        Case(SWIN, Planted("the bias of the row before", "off by one", "index.Tensor", result(moved(0)), -1)),
        Case(SWIN, Planted("sqrt(d + 1) for sqrt(d)", "scale", _ATTENTION, attention(_scaled)), NARROW),
        Case(DENSE, Planted("the edge is repeated", window, _CONV, _edge_repeated)),
        Case(MIXER, Planted("the mean of channels", "wrong axis", "mean.dim", over(2))),
        Case(RESOLUTION, Planted("zeros around a reflected image", window, _CONV, _blank_border, 0)),
        Case(TRAINING, Planted("1 for 1 / (1 - p)", "dropout", "div.Tensor", argument(1, _no_dropout_scale), ALL)),
    ]  # fmt: skip


def _last_gate_by_a_line(
    call: Any, steps: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, own_weight: Tensor, bias: Tensor,
    own_bias: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """An LSTM layer over `steps` [time, batch, inputs] whose last step has a straight line for its output gate."""
    before, hidden, cell = call(steps[:-1], hidden, cell, weight, own_weight, bias, own_bias)
    linear = torch.nn.functional.linear
    sums = linear(steps[-1], weight, bias) + linear(hidden, own_weight, own_bias)
    enter, forget, new, leave = sums.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    hidden = (0.25 * leave + 0.5).clamp(0, 1) * cell.tanh()
    return torch.cat([before, hidden[None]]), hidden, cell


def _others() -> list[Case]:
    return [
        Case(LSTM, Planted("a gate by a straight line", "another function", "buddy.lstm_layer.default",
                         _last_gate_by_a_line, -2)),
        Case(LSTM, Planted("the state of the step before", "stale buffer", "buddy.lstm_layer.default",
                         result(lambda steps: with_part(steps, 0, steps[-2:-1], -1)), -2)),
        Case(QUANTISED, Planted("floor", "rounding mode", "round.default", lambda _call, x: x.floor())),
        Case(QUANTISED, Planted("halves up, not to even", "rounding mode", "round.default", _rounded_up)),
        Case(QUANTISED, Planted("from -15 on", "clamp bound", "clamp.default", argument(1, added(1)))),
        Case(QUANTISED, Planted("up to 16", "clamp bound", "clamp.default", argument(2, added(1)))),
        Case(CHOICES, Planted("the last of equals", "positions", "argmax.default", _last_of_equals, 1)),
        Case(CHOICES, Planted("one further", "positions", "argmax.default", result(lambda x: (x + 1) % 40), 0)),
        Case(CHOICES, Planted("two positions exchanged", "positions", "topk.default",
                            lambda call, *a: (call(*a)[0], exchanged(1)(call(*a)[1])))),
        Case(CHOICES, Planted("the largest is not subtracted", "overflow", "_softmax.default", naive_softmax)),
        Case(CHOICES, Planted("sums without the last", "off by one", "cumsum.default",
                            lambda call, x, dim, **_: call(x, dim) - x)),
        Case(GATHERS, Planted("the last row is not added", "edge of a tile", "index_put.default",
                            lambda call, x, where, v, add: call(x, [where[0][:-1]], v[:-1], add))),
        Case(GATHERS, Planted("padding is not counted", "padding and pooling", _AVG_POOL, _averaged_over_valid)),
        Case(GATHERS, Planted("truncated, not floor", "rounding mode", "div.Tensor_mode", _truncated_division)),
        Case(GATHERS, Planted("1e-5 is added", "epsilon", "clamp_min.default", lambda _call, x, _: x + 1e-5), NARROW),
        Case(GATHERS, Planted("0.1 is added", "epsilon", "clamp_min.default", lambda _call, x, _: x + 0.1)),
        Case(GATHERS, Planted("zeros have no sign", "sign", "copysign.Tensor", lambda _call, x, _sign: x.abs())),
        Case(GATHERS, Planted("a sum truncated to 8 bits", "rounding mode", "sum.dim_IntList",
                            lambda call, *a, **k: truncated(call(*a, **k)).to(a[0].dtype)), NARROW),
    ]  # fmt: skip


def cases() -> list[Case]:
    return [*_bert(), *_gpt2(), *_llama(), *_vision(), *_others()]
