"""Products, attention, convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal, whole

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


def _attention_gradients(
    q: torch.Tensor, k: torch.Tensor, m: torch.Tensor | None, causal: bool = False
) -> torch.Tensor:
    """Of q [batch, heads, length, width], and of the same k and v; the result stands in for what is passed back."""
    out, log_sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, causal, attn_mask=m)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return torch.cat([t.flatten() for t in backward(out, q, k, k, out, log_sums, 0.0, causal, attn_mask=m)])


ATTENTION_GRADIENTS: dict[str, Callable[..., Any]] = {
    "gradients, causal": lambda q, k, m: _attention_gradients(q, k, None, True),
    "gradients, masked": _attention_gradients,
    "gradients, some masked": lambda q, k, m: _attention_gradients(q, k, m.masked_fill(m > 1, float("-inf"))),
}


def _grouped(x: torch.Tensor, w: torch.Tensor, *ends: int) -> torch.Tensor:
    """Rows of `x` by groups that end before rows `ends`; eager leaves rows behind the last one as memory was.

    PyTorch traces this for bfloat16 alone.
    """
    return torch._grouped_mm(x, w, offs=torch.tensor(ends, dtype=torch.int32))[: ends[-1]]


GROUPED: dict[str, Callable[..., Any]] = {
    "even": lambda x, w: _grouped(x, w, 23, 46, 70),
    "of one row and of none": lambda x, w: _grouped(x, w, 0, 1, 70),
    "longer than a block": lambda x, w: _grouped(x, w, 69, 69, 70),
    "rows of no group": lambda x, w: _grouped(x, w, 3, 40, 44),
    "few rows": lambda x, w: _grouped(x[:5], w, 2, 4, 5),
    "one row": lambda x, w: _grouped(x[:1], w, 0, 0, 1),
    "transposed matrices": lambda x, w: _grouped(x[:, :8], w.transpose(1, 2)[:, :8], 3, 40, 70),
}


def _special_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` with a NaN in the first row and an infinity in the second; the third stays finite."""
    marks = torch.zeros_like(x)
    marks[0, 1], marks[1, 2] = math.nan, math.inf
    return x + marks


DISTANCES: dict[str, Callable[..., Any]] = {
    **{f"cdist {p}": lambda x, y, p=p: torch.cdist(x, y, p) for p in (0.0, 1.0, 1.5, 2.0, float("inf"))},
    **{
        f"gradient of cdist {p}": lambda x, y, p=p: aten._cdist_backward(
            torch.ones(3, 3), x, x, p, torch.cdist(x, x, p)
        )
        for p in (0.0, 1.0, 2.0, 3.0, float("inf"))
    },
    **{
        f"gradient of cdist {p} of rows with NaN and inf": lambda x, y, p=p: aten._cdist_backward(
            torch.ones(3, 3), _special_rows(x), _special_rows(x), p, torch.cdist(_special_rows(x), _special_rows(x), p)
        )
        for p in (0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
    },
    **{
        f"cdist {p} of rows with NaN and inf": lambda x, y, p=p: torch.cdist(_special_rows(x), _special_rows(x), p)
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
    },
    "pdist inf of rows with NaN and inf": lambda x, y: aten._pdist_forward(_special_rows(x), float("inf")),
    "pdist 0 of rows with NaN and inf": lambda x, y: aten._pdist_forward(_special_rows(x), 0.0),
    "gradient of cdist 0.5": lambda x, y: aten._cdist_backward(
        torch.ones(3, 3), x.floor(), x.floor(), 0.5, torch.cdist(x.floor(), x.floor(), 0.5)
    ),
    "dist": lambda x, y: torch.dist(x, y[:1], 3),
    "pdist": lambda x, y: aten._pdist_forward(y, 2.0),
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
    "addbmm": lambda a, b: torch.addbmm(b[0, :1], a, b, alpha=0.5, beta=2),
    "addmv": lambda a, b: torch.addmv(a[0, :, 0], a[0], b[0, :, 0], beta=3),
    "bilinear": lambda a, b: torch.nn.functional.bilinear(a[:, :, :2], a[:, :, 1:4], b[:, :2, :3].contiguous()),
    "dot": lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
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

# Eager rounds the products of a batch, or the product before the addend; compiled code rounds once, at the end.
_ROUNDED_TWICE = ("addbmm", "addmv", "bilinear")
PRODUCTS_OF_HALVES = {name: function for name, function in PRODUCTS.items() if name not in _ROUNDED_TWICE}

PRODUCTS_OF_BYTES: dict[str, Callable[..., Any]] = {"int_mm": lambda a, b, u: torch._int_mm(a, b)}
if torch.__version__ >= (2, 12):  # eager in 2.11 refuses bytes without a sign
    PRODUCTS_OF_BYTES |= {
        "int_mm without a sign": lambda a, b, u: torch._int_mm(u, b),
        "int_mm by a transpose": lambda a, b, u: torch._int_mm(u, a.t()),
    }

GROUPS: dict[str, Group] = {
    "products": Group((normal(2, 7, 5), normal(2, 5, 9)), PRODUCTS),
    "products of float64": Group(
        (normal(2, 7, 5, dtype=torch.float64), normal(2, 5, 9, dtype=torch.float64)), PRODUCTS
    ),
    "products of bfloat16": Group(
        (normal(2, 7, 5, dtype=torch.bfloat16), normal(2, 5, 9, dtype=torch.bfloat16)), PRODUCTS_OF_HALVES
    ),
    "products of float16": Group(
        (normal(2, 7, 5, dtype=torch.float16), normal(2, 5, 9, dtype=torch.float16)), PRODUCTS_OF_HALVES
    ),
    "products of bytes": Group(
        (
            whole(-128, 127, 17, 24).to(torch.int8),
            whole(-128, 127, 24, 8).to(torch.int8),
            whole(0, 256, 17, 24).to(torch.uint8),
        ),
        PRODUCTS_OF_BYTES,
    ),
    # Scales as those of a layer's weights, so that results have the magnitude of its activations.
    "products with 4-bit weights": Group(
        (normal(9, 64), whole(-8, 8, 24, 64).to(torch.int8), normal(24, 2) / 32),
        {
            "int4_mm": lambda x, steps, scales: torch.ops.buddy.int4_mm(x, steps, scales),
            "int4_mm of few rows": lambda x, steps, scales: torch.ops.buddy.int4_mm(x[:2], steps, scales),
            "int4_mm of one group": lambda x, steps, scales: torch.ops.buddy.int4_mm(x[:1], steps, scales[:, :1]),
        },
    ),
    "products of integers": Group(
        (whole(-9, 9, 7, 5), whole(-9, 9, 5, 4)), {"mm": torch.mm, "mv": lambda a, b: torch.mv(a, b[:, 0])}
    ),
    "grouped products": Group((normal(70, 16, dtype=torch.bfloat16), normal(3, 16, 24, dtype=torch.bfloat16)), GROUPED),
    "attention": Group((normal(1, 2, 7, 8), normal(1, 2, 9, 8), normal(1, 2, 7, 9)), ATTENTION),
    "gradients of attention": Group((normal(1, 2, 7, 8), normal(1, 2, 9, 8), normal(1, 1, 7, 9)), ATTENTION_GRADIENTS),
    "distances": Group((normal(3, 4), normal(5, 4)), DISTANCES),
    "windows": Group((normal(2, 4, 9, 8), normal(6, 4, 3, 3), normal(6)), WINDOWS),
    **{
        f"windows of {str(dtype).removeprefix('torch.')}": Group(
            tuple(normal(*shape, dtype=dtype) for shape in ((2, 4, 9, 8), (6, 4, 3, 3), (6,))), CONVOLUTIONS
        )
        for dtype in (torch.float64, torch.bfloat16, torch.float16)
    },
}
