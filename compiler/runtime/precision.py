"""Computes products in reduced precisions in PyTorch, as the reference for compiled code.

The arithmetic is that of `ops.precision`: operands are rounded in the same way, and sums of integers are exact.
Everything else is in the type of the operands, which is float64 in a reference in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from buddy.compiler.graph.node import Op, PlaceholderOp, ReshapeFamilyOp
from buddy.compiler.graph.types import NodeType
from buddy.compiler.ops.attention_blocks import RowBlocks, block_sizes, split_rows
from buddy.compiler.protocol.recipe import GROUP_SIZES

# The largest integers that 8-bit and 4-bit quantisation uses; the ranges are symmetric.
INT8_LIMIT = 127
INT4_LIMIT = 7


class _Product(NamedTuple):
    """A product of two operands, which are consecutive arguments of an op.

    `first` is the position of the first operand. `a`, `b` and `out` have a letter for each dim of the operands and of
    the result, as in `torch.einsum`.
    """

    first: int
    a: str
    b: str
    out: str


_PRODUCTS = {
    "mm.default": _Product(0, "mk", "kn", "mn"),
    "bmm.default": _Product(0, "bmk", "bkn", "bmn"),
    "mv.default": _Product(0, "mk", "k", "m"),
    "dot.default": _Product(0, "k", "k", ""),
    "addmm.default": _Product(1, "mk", "kn", "mn"),
    "baddbmm.default": _Product(1, "bmk", "bkn", "bmn"),
    "addbmm.default": _Product(1, "bmk", "bkn", "mn"),
    "addmv.default": _Product(1, "mk", "k", "m"),
}


def compute_in_precision(precision: str, op: Op, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
    """Returns the result of `op`, whose product is computed in `precision`.

    Raises `KeyError` if the op has no product, or the precision is unknown.
    """
    if op.target == "convolution.default":
        x, weight, *others = arguments
        return torch.ops.aten.convolution(x.bfloat16().to(x.dtype), weight.bfloat16().to(weight.dtype), *others)
    if op.target in _IS_CAUSAL_POSITIONS:
        return _attention_in_bfloat16(op.target, arguments, keywords)
    product = _PRODUCTS[op.target]
    a, b = arguments[product.first : product.first + 2]
    sums = _ARITHMETIC[precision](a, b, product, op)
    if not product.first:
        return sums
    alpha, beta = keywords.get("alpha", 1), keywords.get("beta", 1)
    scaled = sums if alpha == 1 else sums * alpha
    return scaled if beta == 0 else scaled + (arguments[0] if beta == 1 else arguments[0] * beta)


# ---- attention -------------------------------------------------------------------------------------------------------


# The position of `is_causal` among the arguments of attention ops; where it is 5, that of `attn_mask` is 3.
_IS_CAUSAL_POSITIONS = {
    "_scaled_dot_product_flash_attention_for_cpu.default": 4,
    "scaled_dot_product_attention.default": 5,
}


def _attention_in_bfloat16(target: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
    """Returns the results of attention whose products have operands in bfloat16.

    The result is computed in the blocks of `ops.attention`. Exponentials are relative to the maximum of the blocks so
    far when they are rounded, so the order of the blocks matters.
    """
    q, k, v = arguments[:3]
    causal_position = _IS_CAUSAL_POSITIONS[target]
    causal = arguments[causal_position] if len(arguments) > causal_position else keywords.get("is_causal", False)
    mask = keywords.get("attn_mask", arguments[3] if causal_position == 5 and len(arguments) > 3 else None)
    scale = keywords.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    repeats = q.shape[-3] // k.shape[-3]  # the number of heads of q that read one head of k and v
    k, v = (x.repeat_interleave(repeats, -3) if repeats > 1 else x for x in (k, v))
    wide = q.dtype
    q, k, v = (x.bfloat16().to(wide) for x in (q, k, v))
    (rows, keys), shape = (q.shape[-2], k.shape[-2]), [*q.shape[:-1], v.shape[-1]]
    # The result has the dims of `q` in the same order in memory, like eager's, because the program may view it.
    order = sorted(range(q.dim()), key=lambda dim: -q.stride(dim))
    result = q.new_empty([shape[dim] for dim in order]).permute([order.index(dim) for dim in range(q.dim())])
    scores = (q @ k.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        scores = scores.masked_fill(~torch.ones(rows, keys, dtype=torch.bool).tril(), -torch.inf)
    block_rows, block_keys = block_sizes(rows, bool(causal))
    for blocks in split_rows(rows, keys, block_rows, block_keys, bool(causal)):
        for index in range(blocks.first, blocks.end):
            row = slice(index * block_rows, index * block_rows + blocks.rows)
            parts = [part for part in _key_blocks(blocks, index, block_keys, keys) if part.start < part.stop]
            result[..., row, :] = _softmax_products(scores[..., row, :], v, parts)
    return (result, None) if target.startswith("_") else result


def _key_blocks(blocks: RowBlocks, index: int, size: int, keys: int) -> list[slice]:
    """Returns the keys that block `index` of the rows reads, in the order of compiled code: the tail first."""
    full = index if blocks.full is None else blocks.full
    whole = [slice(block * size, min(block * size + size, keys)) for block in range(full)]
    if blocks.tail is None:
        return whole
    start = (index if blocks.tail.index is None else blocks.tail.index) * size
    return [slice(start, start + blocks.tail.keys), *whole]


def _softmax_products(scores: torch.Tensor, v: torch.Tensor, parts: list[slice]) -> torch.Tensor:
    """Returns softmax(scores) times `v`, for the keys in `parts`; a row of -inf is zeros."""
    maxima = scores.new_full((*scores.shape[:-1], 1), torch.finfo(torch.float32).min)
    sums, values = torch.zeros_like(maxima), scores.new_zeros(*scores.shape[:-1], v.shape[-1])
    for part in parts:
        block = scores[..., part]
        new_maxima = torch.maximum(maxima, block.amax(-1, keepdim=True))
        factors = torch.exp(maxima - new_maxima)
        exponentials = torch.exp(block - new_maxima)
        sums = sums * factors + exponentials.sum(-1, keepdim=True)
        values = values * factors + exponentials.bfloat16().to(v.dtype) @ v[..., part, :]
        maxima = new_maxima
    return values * torch.where(sums == 0, 0.0, 1.0 / sums)


# ---- products --------------------------------------------------------------------------------------------------------


def _einsum(a: torch.Tensor, b: torch.Tensor, product: _Product) -> torch.Tensor:
    return torch.einsum(f"{product.a},{product.b}->{product.out}", a, b)


def _in_bfloat16(a: torch.Tensor, b: torch.Tensor, product: _Product, op: Op) -> torch.Tensor:
    return _einsum(a.bfloat16().to(a.dtype), b.bfloat16().to(b.dtype), product)


def _in_bfloat16_pairs(a: torch.Tensor, b: torch.Tensor, product: _Product, op: Op) -> torch.Tensor:
    """Multiplies operands as sums of two bfloat16 numbers, without the product of both remainders."""
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return _einsum(a_high, b_high, product) + (_einsum(a_high, b_low, product) + _einsum(a_low, b_high, product))


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns two tensors of bfloat16 numbers, in the type of `x`: `x` rounded, and the remainder, rounded."""
    high = x.bfloat16().to(x.dtype)
    return high, (x - high).bfloat16().to(x.dtype)


def quantise(x: torch.Tensor, letters: str, out: str, limit: int = INT8_LIMIT) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `x` divided by scales and rounded to integers from `-limit` to `limit`, and the scales.

    Both are in the type of `x`. `letters` has a letter for each dim of `x`. There is a scale for each index of the dims
    whose letters are in `out`; the other dims have size 1 in the tensor of scales.
    """
    dims = [i for i, letter in enumerate(letters) if letter not in out]
    magnitude = x.abs()
    largest = magnitude.amax(dims, keepdim=True) if x.numel() else magnitude.sum(dims, keepdim=True)
    scale = largest / limit
    steps = torch.round(x / scale)
    return torch.where(steps.isnan(), 0.0, steps.clamp(-limit, limit)), scale


def _in_integers(a: torch.Tensor, b: torch.Tensor, product: _Product, op: Op) -> torch.Tensor:
    """Multiplies both operands as 8-bit integers."""
    (a_steps, a_scale), (b_steps, b_scale) = quantise(a, product.a, product.out), quantise(b, product.b, product.out)
    # Sums of these integers are exact in double precision.
    sums = _einsum(a_steps.double(), b_steps.double(), product).to(a.dtype)
    return sums * _align_scale(a_scale, product.a, product.out) * _align_scale(b_scale, product.b, product.out)


def _in_integer_weights(a: torch.Tensor, b: torch.Tensor, product: _Product, op: Op) -> torch.Tensor:
    """Multiplies with the weight as 8-bit integers: the second operand if it is a parameter, else the first one."""
    if _is_parameter(op.args[product.first + 1]):
        steps, scale = quantise(b, product.b, product.out)
        return _einsum(a, steps, product) * _align_scale(scale, product.b, product.out)
    steps, scale = quantise(a, product.a, product.out)
    return _einsum(steps, b, product) * _align_scale(scale, product.a, product.out)


def _in_grouped_weights(group_size: int) -> Callable[[torch.Tensor, torch.Tensor, _Product, Op], torch.Tensor]:
    """Returns the arithmetic of products with 4-bit weights in groups of `group_size` along K."""

    def compute(a: torch.Tensor, b: torch.Tensor, product: _Product, op: Op) -> torch.Tensor:
        if _is_parameter(op.args[product.first + 1]):
            return _einsum(a, _round_groups(b, product.b, product.out, group_size), product)
        return _einsum(_round_groups(a, product.a, product.out, group_size), b, product)

    return compute


def _round_groups(weights: torch.Tensor, letters: str, out: str, group_size: int) -> torch.Tensor:
    """Returns `weights` rounded to steps of 4 bits, with a scale for each group along the dim that is not in `out`."""
    dim = next(i for i, letter in enumerate(letters) if letter not in out)
    grouped = weights.unflatten(dim, (-1, group_size))
    grouped_letters = f"{letters[:dim]}g{letters[dim:]}"
    steps, scale = quantise(grouped, grouped_letters, f"{out}g", INT4_LIMIT)
    return (steps * scale).flatten(dim, dim + 1)


# The function that multiplies in each precision, called with both operands, the product, and the op.
_ARITHMETIC: Mapping[str, Callable[[torch.Tensor, torch.Tensor, _Product, Op], torch.Tensor]] = {
    "bf16x3": _in_bfloat16_pairs,
    "bf16": _in_bfloat16,
    "int8-dynamic": _in_integers,
    "int8-weights": _in_integer_weights,
    **{name: _in_grouped_weights(size) for name, size in GROUP_SIZES.items()},
}


def _align_scale(scale: torch.Tensor, letters: str, out: str) -> torch.Tensor:
    """Returns a scale, which has the dims `letters`, with the dims `out` of the result: it broadcasts to the result."""
    common = "".join(letter for letter in letters if letter in out)
    sizes = dict(zip(letters, scale.shape, strict=True))
    order = "".join(letter for letter in out if letter in common)
    ordered = torch.einsum(f"{common}->{order}", scale.reshape([sizes[letter] for letter in common]))
    return ordered.reshape([sizes.get(letter, 1) for letter in out])


def _is_parameter(op: Any) -> bool:
    """True if `op` is a parameter of the model, or a view of one."""
    while isinstance(op, ReshapeFamilyOp):
        op = op.args[0]
    return isinstance(op, PlaceholderOp) and op.kind is NodeType.FakeNode
