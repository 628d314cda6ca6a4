"""The programs that every lowering is tried on: for each group, its inputs and named functions of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

aten = torch.ops.aten


@dataclass(frozen=True)
class Group:
    """`functions` all take `inputs`; they are captured as one program that returns a tensor for each."""

    inputs: tuple[torch.Tensor, ...]
    functions: dict[str, Callable[..., torch.Tensor]]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [function(*inputs) for function in self.functions.values()]


_random = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_random).to(dtype)


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=_random).to(dtype)


SPECIAL = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5, -2.5, 1e38, 1e-40])
HALVES = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997])

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "add a multiple": lambda x, y: torch.add(x, y, alpha=3),
    "add a number": lambda x, y: x + 2,
    "sub": lambda x, y: x - y,
    "sub a multiple": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub": lambda x, y: aten.rsub(x, 3, 2),
    "mul": lambda x, y: x * y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda x, y: torch.clamp(x, 1, 4),
    "clamp_min": lambda x, y: aten.clamp_min(x, 2),
    "clamp_max": lambda x, y: aten.clamp_max(x, 2),
    "square": lambda x, y: aten.square(x),
    "cube": lambda x, y: x**3,
}
SIGNED: dict[str, Callable[..., Any]] = {"neg": lambda x, y: -x, "abs": lambda x, y: x.abs()}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "gt a number": lambda x, y: x > 2,
    "where": lambda x, y: torch.where(x > y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(x > y, 7),
}
BITS: dict[str, Callable[..., Any]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x, y: ~x,
}
DIVISION: dict[str, Callable[..., Any]] = {
    "div": lambda x, y: x / y,
    "div by 8": lambda x, y: x / 8,
    "div by 3": lambda x, y: x / 3,
    "reciprocal": lambda x, y: 1 / y,
    "power -2": lambda x, y: y**-2,
    "root": lambda x, y: y.abs() ** 0.5,
    "power 1.7": lambda x, y: y.abs() ** 1.7,
    "power of tensors": lambda x, y: y.abs() ** x,
    "exponents": lambda x, y: 2.0**x,
}
ROUNDING: dict[str, Callable[..., Any]] = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
}
TRANSCENDENTAL: dict[str, Callable[..., Any]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
}
OF_POSITIVES: dict[str, Callable[..., Any]] = {
    "log": lambda x: torch.log(x.abs()),
    "log2": lambda x: torch.log2(x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
}
ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
FLOATS = {**TRANSCENDENTAL, **OF_POSITIVES, **ACTIVATIONS, **ROUNDING}
PAIRS = {**ARITHMETIC, **SIGNED, **COMPARISONS}
# Eager rounds a half-type multiple before it adds it; compiled code rounds once, at the end.
PAIRS_OF_HALVES = {name: function for name, function in PAIRS.items() if "multiple" not in name}
# PyTorch's vector erf makes NaN of gelu(inf), which is inf.
DEFINED_EVERYWHERE = {name: function for name, function in FLOATS.items() if name != "gelu"}


SHAPES: dict[str, Callable[..., Any]] = {
    "view": lambda x: x.view(6, 4),
    "flat": lambda x: x.reshape(-1),
    "regrouped": lambda x: x.view(4, 1, 6),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze a dim": lambda x: x.view(2, 1, 3, 4).squeeze(1),
    "squeeze dims": lambda x: x.view(1, 2, 1, 3, 4).squeeze((0, 2)),
    "squeeze all": lambda x: x.view(1, 2, 1, 12).squeeze(),
    "t": lambda x: x[0].t(),
    "transpose": lambda x: x.transpose(-1, 0),
    "permute": lambda x: x.permute(2, 0, -2),
    "expand": lambda x: x[:, :1].expand(2, 5, 4),
    "expand to more dims": lambda x: x.expand(3, 2, 3, 4),
    "slice": lambda x: x[:, 1:],
    "slice to the end": lambda x: x[..., -3:-1],
    "slice in steps": lambda x: x[..., ::2],
    "select": lambda x: x[:, 1],
    "select the last": lambda x: x[..., -1],
    "clone": lambda x: x.transpose(0, 1).contiguous(),
    "detach": lambda x: x.detach() + 1,
    "cat": lambda x: torch.cat([x, x[:, :2], x], 1),
    "cat of two types": lambda x: torch.cat([x, x.int()], -1),
    "cat with an empty one": lambda x: torch.cat([x, x[:, :, :0]], -1),
    "stack": lambda x: torch.stack([x, x]),
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "sum over a dim": lambda x: x.sum(1),
    "sum over dims": lambda x: x.sum((0, -1), keepdim=True),
    "amax": torch.amax,
    "amax over a dim": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((0, 2), keepdim=True),
}
AVERAGES: dict[str, Callable[..., Any]] = {
    "mean": torch.mean,
    "mean over dims": lambda x: x.mean((1, 2), keepdim=True),
    "var": lambda x: x.var(1),
    "var, uncorrected": lambda x: x.var((0, 2), correction=0, keepdim=True),
    "mean beside var": lambda x: torch.var_mean(x, -1)[1],
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax over rows": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer_norm over two dims": lambda x: F.layer_norm(x, x.shape[1:], eps=0.1),
}
CASTS: dict[str, Callable[..., Any]] = {
    str(dtype).removeprefix("torch."): lambda x, dtype=dtype: x.to(dtype)
    for dtype in (torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.bfloat16, torch.float16)
}
ATTENTION: dict[str, Callable[..., Any]] = {
    "attention": lambda q, k, m: F.scaled_dot_product_attention(q, k, k),
    "causal": lambda q, k, m: F.scaled_dot_product_attention(q, k, k, is_causal=True),
    "masked": lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
    "masked by bools": lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m > -1),
    "scaled": lambda q, k, m: F.scaled_dot_product_attention(q, k, k, scale=0.3),
    "masked whole": lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m.amin(-1, True) > -1.5),
    "shared heads": lambda q, k, m: F.scaled_dot_product_attention(q, k[:, :1], k[:, :1], enable_gqa=True),
    "log of sums": lambda q, k, m: aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)[1],
    "log of masked sums": lambda q, k, m: aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, k, attn_mask=torch.zeros(7, 1).masked_fill(torch.arange(7)[:, None] == 3, float("-inf")).expand(7, 9)
    )[1],
}
PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": lambda a, b: a[0] @ b[0],
    "bmm": torch.bmm,
    "bmm of transposes": lambda a, b: torch.bmm(b.transpose(1, 2), a.transpose(1, 2)),
    "mm of a slice": lambda a, b: a[0, :, 1:4] @ b[0, 2:5, ::2],
    "addmm": lambda a, b: torch.addmm(b[1, 0], a[0], b[0]),
    "addmm, scaled": lambda a, b: torch.addmm(b[1, 0], a[0], b[0], alpha=0.5, beta=2),
    "addmm without the addend": lambda a, b: torch.addmm(b[1, 0] * float("nan"), a[0], b[0], beta=0),
    "baddbmm": lambda a, b: torch.baddbmm(b[:, :1], a, b, alpha=2),
    "mv": lambda a, b: torch.mv(a[0], b[0, :, 0]),
    "dot": lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
}
INDEXING: dict[str, Callable[..., Any]] = {
    "embedding": lambda w, i: F.embedding(i, w),
    "gather columns": lambda w, i: w.gather(1, i),
    "gather rows": lambda w, i: w.gather(0, i),
}
FACTORIES: dict[str, Callable[..., Any]] = {
    "full": lambda x: torch.full((2, 3), 1.5) + x[0],
    "full_like": lambda x: torch.full_like(x, -2),
    "zeros": lambda x: torch.zeros(3, dtype=torch.int64),
    "scalar_tensor": lambda x: aten.scalar_tensor(2.5) + x,
    "arange": lambda x: torch.arange(5),
    "arange from 2 in threes": lambda x: torch.arange(2, 12, 3),
    "arange of floats": lambda x: torch.arange(1.0, 3.0, 0.5),
    "empty arange": lambda x: torch.arange(0),
    "where of numbers": lambda x: torch.where(x > 0, 1.0, 2.0),
}
WINDOWS: dict[str, Callable[..., Any]] = {
    "conv2d": lambda x, w, b: F.conv2d(x, w, b),
    "conv2d, strided and padded": lambda x, w, b: F.conv2d(x, w, stride=2, padding=(1, 2)),
    "conv2d, dilated": lambda x, w, b: F.conv2d(x, w, b, dilation=2),
    "conv2d by channel": lambda x, w, b: F.conv2d(x, w[:4, :1], groups=4),
    "conv2d of a transpose": lambda x, w, b: F.conv2d(x.transpose(2, 3), w.transpose(2, 3)),
    "max_pool2d": lambda x, w, b: F.max_pool2d(x, 3, stride=2, padding=1),
    "avg_pool2d": lambda x, w, b: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x, w, b: F.adaptive_avg_pool2d(x, (3, 4)),
    "batch_norm": lambda x, w, b: F.batch_norm(x, b[:4], b[:4].abs(), b[:4], b[:4]),
}
CONVOLUTIONS = {name: function for name, function in WINDOWS.items() if name.startswith("conv")}
PARTS: dict[str, Callable[..., Any]] = {
    "index by a tensor": lambda x, i: x[i],
    "index by two": lambda x, i: x[i, i],
    "tril": lambda x, i: x.tril(),
    "triu": lambda x, i: x.triu(1),
    "split": lambda x, i: x.split(2, 1)[1],
    "chunk": lambda x, i: x.chunk(2)[1],
    "unbind": lambda x, i: x.unbind(1)[2],
    "slice_scatter": lambda x, i: aten.slice_scatter(x, x[:2], 0, 1, 3),
    "select_scatter": lambda x, i: aten.select_scatter(x, x[0], 1, 2),
    "copy": lambda x, i: aten.copy(x, x[:1]),
    "cumsum": lambda x, i: x.cumsum(1),
    "repeat": lambda x, i: x.repeat(2, 1, 3),
}

GROUPS: dict[str, Group] = {
    "arithmetic": Group((whole(-5, 9, 3, 4).float(), whole(1, 9, 3, 4).float()), PAIRS),
    "broadcast": Group((normal(3, 1, 5), normal(4, 1)), PAIRS),
    "rank 0": Group((normal(), normal()), {**PAIRS, **DIVISION}),
    "a scalar tensor among others": Group((normal(3, 4), torch.tensor(2.0)), PAIRS),
    "two float types": Group((normal(3, 4), normal(4, dtype=torch.float64)), {**PAIRS, **DIVISION}),
    "an integer and a float": Group((whole(-5, 9, 4), normal(4)), PAIRS),
    "int64": Group((whole(-(2**40), 2**40, 3, 4), whole(1, 9, 3, 4)), {**PAIRS, **BITS}),
    "int32": Group((whole(-99, 99, 9).int(), whole(1, 9, 9).int()), {**PAIRS, **BITS}),
    "uint8": Group((whole(0, 256, 40).byte(), whole(0, 256, 40).byte()), {**ARITHMETIC, **COMPARISONS, **BITS}),
    "bfloat16": Group((normal(9).bfloat16(), normal(9).bfloat16()), {**PAIRS_OF_HALVES, **DIVISION}),
    "float16": Group((normal(9).half(), normal(9).half()), {**PAIRS_OF_HALVES, **DIVISION}),
    "division": Group((normal(3, 4), normal(3, 4)), DIVISION),
    "division of integers": Group((whole(-9, 9, 6), whole(1, 9, 6)), {"div": DIVISION["div"]}),
    "empty": Group((normal(0, 4), normal(4)), {**PAIRS, **DIVISION}),
    "bools": Group(
        (normal(30) > 0, normal(30) > 0),
        {
            **BITS,
            "logical_and": torch.logical_and,
            "logical_or": torch.logical_or,
            "logical_xor": torch.logical_xor,
            "logical_not": lambda x, y: torch.logical_not(x),
            "sum": lambda x, y: x + y,
            "product": lambda x, y: x * y,
            "eq": lambda x, y: x == y,
            "where": lambda x, y: torch.where(x, y, ~y),
        },
    ),
    "functions": Group((normal(3, 33) * 3,), FLOATS),
    "functions of float64": Group((normal(33, dtype=torch.float64) * 3,), FLOATS),
    "functions of bfloat16": Group((normal(33).bfloat16(),), FLOATS),
    "functions of float16": Group((normal(33).half(),), FLOATS),
    "functions of a scalar": Group((normal(),), FLOATS),
    "rounding halves": Group((HALVES,), ROUNDING),
    "special values": Group((SPECIAL,), {**DEFINED_EVERYWHERE, "isnan": torch.isnan, "reciprocal": lambda x: 1 / x}),
    "pairs of special values": Group((SPECIAL, SPECIAL.flip(0)), {**PAIRS, "div": DIVISION["div"]}),
    "casts of floats": Group((normal(3, 9) * 5,), CASTS),
    "casts of integers": Group((whole(-300, 300, 9),), {**CASTS, "float32": lambda x: x.float()}),
    "casts of bools": Group((normal(9) > 0,), {**CASTS, "float32": lambda x: x.float()}),
    "casts of bytes": Group((whole(0, 256, 9).byte(),), {**CASTS, "float32": lambda x: x.float()}),
    "shapes": Group((normal(2, 3, 4),), SHAPES),
    "shapes of integers": Group((whole(-9, 9, 2, 3, 4),), SHAPES),
    "reductions": Group((normal(5, 3, 17),), {**REDUCTIONS, **AVERAGES}),
    "reductions of float64": Group((normal(5, 3, 17, dtype=torch.float64),), {**REDUCTIONS, **AVERAGES}),
    "reductions of bfloat16": Group((normal(5, 3, 17).bfloat16(),), {**REDUCTIONS, **AVERAGES}),
    "reductions of int32": Group((whole(-9, 9, 5, 3, 17).int(),), REDUCTIONS),
    "reductions of int64": Group((whole(-9, 9, 5, 3, 17),), REDUCTIONS),
    "reductions of bools": Group((normal(5, 3, 17) > 0,), {"sum": torch.sum, "sum over a dim": lambda x: x.sum(1)}),
    "reductions of special values": Group(
        (SPECIAL[:-2].reshape(1, 1, 7),), {"amax": torch.amax, "amin": torch.amin, "sum": torch.sum, "mean": torch.mean}
    ),
    "reductions of a scalar": Group(
        (normal(),),
        {
            "sum": torch.sum,
            "mean": torch.mean,
            "amax": torch.amax,
            "softmax": lambda x: torch.softmax(x, 0),
            "log_softmax": lambda x: F.log_softmax(x, 0),
        },
    ),
    "reductions of nothing": Group((normal(0, 3),), {"sum": torch.sum, "sum over a dim": lambda x: x.sum(0)}),
    "softmax of large values": Group(
        (normal(4, 9) * 1e4,), {"softmax": lambda x: torch.softmax(x, -1), "log": lambda x: F.log_softmax(x, -1)}
    ),
    "a weighted norm": Group(
        (normal(3, 4, 17), normal(17), normal(17)),
        {
            "layer_norm": lambda x, w, b: F.layer_norm(x, (17,), w, b),
            "weight alone": lambda x, w, b: F.layer_norm(x, (17,), w),
            "its mean": lambda x, w, b: aten.native_layer_norm(x, [17], w, b, 1e-5)[1],
            "its reciprocal deviation": lambda x, w, b: aten.native_layer_norm(x, [17], w, b, 1e-5)[2],
        },
    ),
    "products": Group((normal(2, 7, 5), normal(2, 5, 9)), PRODUCTS),
    "products of float64": Group(
        (normal(2, 7, 5, dtype=torch.float64), normal(2, 5, 9, dtype=torch.float64)), PRODUCTS
    ),
    "products of bfloat16": Group(
        (normal(2, 7, 5, dtype=torch.bfloat16), normal(2, 5, 9, dtype=torch.bfloat16)), PRODUCTS
    ),
    "products of float16": Group(
        (normal(2, 7, 5, dtype=torch.float16), normal(2, 5, 9, dtype=torch.float16)), PRODUCTS
    ),
    "products of bytes": Group(
        (whole(-128, 127, 17, 24).to(torch.int8), whole(-128, 127, 24, 8).to(torch.int8)), {"int_mm": torch._int_mm}
    ),
    "products of integers": Group(
        (whole(-9, 9, 7, 5), whole(-9, 9, 5, 4)), {"mm": torch.mm, "mv": lambda a, b: torch.mv(a, b[:, 0])}
    ),
    "attention": Group((normal(1, 2, 7, 8), normal(1, 2, 9, 8), normal(1, 2, 7, 9)), ATTENTION),
    "indexing": Group((normal(6, 4), whole(0, 4, 2, 3)), INDEXING),
    "factories": Group((normal(3),), FACTORIES),
    "windows": Group((normal(2, 4, 9, 8), normal(6, 4, 3, 3), normal(6)), WINDOWS),
    "parts": Group((normal(4, 4), whole(-4, 4, 5)), PARTS),
    **{
        f"windows of {str(dtype).removeprefix('torch.')}": Group(
            tuple(normal(*shape, dtype=dtype) for shape in ((2, 4, 9, 8), (6, 4, 3, 3), (6,))), CONVOLUTIONS
        )
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    },
}

# These hold every op class of the registries, and are tried in every flavour under every preset.
CORE = (
    "arithmetic", "division", "bools", "functions", "casts of floats", "shapes", "reductions", "a weighted norm",
    "products", "products of bytes", "attention", "indexing", "factories", "windows", "parts", "special values",
)  # fmt: skip

# Of the others, those with a type or a shape that TOSA's own lowerings meet.
TYPES_OF_TOSA = (
    "broadcast", "rank 0", "a scalar tensor among others", "int32", "bfloat16", "float16", "empty",
    "pairs of special values", "shapes of integers", "reductions of int32", "reductions of special values", "int64",
    "uint8", "functions of bfloat16", "functions of float16", "casts of integers", "casts of bools", "casts of bytes",
    "reductions of int64", "reductions of bools", "reductions of bfloat16",
)  # fmt: skip
