"""Reductions, scans and normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal, whole
from tests.ops.cases.elementwise import SPECIAL

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

# Equal numbers, zeros of both signs, infinities and NaN, in lines of both kinds.
MIXED = torch.stack([normal(3, 6), whole(-2, 3, 3, 6).float(), normal(3, 6)])
MIXED[2, :, 1], MIXED[2, 0, 3:5], MIXED[2, 1, ::2] = float("inf"), float("nan"), -0.0

POSITIONS: dict[str, Callable[..., Any]] = {
    "argmax": torch.argmax,
    "argmax over a dim": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "max over a dim": lambda x: x.max(-1)[0],
    "and where it is": lambda x: x.max(-1)[1],
    "min over a dim": lambda x: x.min(1, keepdim=True)[0],
    "and where that is": lambda x: x.min(1, keepdim=True)[1],
    "greatest": torch.max,
    "least": torch.min,
}
SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "where cummax is": lambda x: x.cummax(-1)[1],
    "cummin": lambda x: x.cummin(0)[0],
    "where cummin is": lambda x: x.cummin(0)[1],
}
FOLDS: dict[str, Callable[..., Any]] = {
    "hash": lambda x: torch.hash_tensor(x).view(torch.int64),
    "hash over a dim": lambda x: torch.hash_tensor(x, 1, keepdim=True).view(torch.int64),
    "hash of halves": lambda x: torch.hash_tensor(x.half(), (0, 2)).view(torch.int64),
    "hash of integers": lambda x: torch.hash_tensor((x.nan_to_num() * 9).clamp(-99, 99).int(), 1).view(torch.int64),
    "prod": torch.prod,
    "prod over a dim": lambda x: x.prod(1, keepdim=True),
    "any": torch.any,
    "any over dims": lambda x: (x > 1).any((0, 2)),
    "all over a dim": lambda x: x.all(-1),
}
NORMS: dict[str, Callable[..., Any]] = {
    f"norm {order}": lambda x, order=order: torch.linalg.vector_norm(x, order, (0, 2))
    for order in (0, 1, 2, 3, float("inf"), -float("inf"))
}
LOGARITHMS = {"logcumsumexp": lambda x: x.logcumsumexp(1), "logsumexp": lambda x: x.logsumexp((1, 2))}
WHOLE_NUMBERS = {**POSITIONS, **SCANS, **FOLDS}
EVERY = {**WHOLE_NUMBERS, **NORMS, **LOGARITHMS}

GROUPS: dict[str, Group] = {
    "folds, scans and positions": Group((normal(4, 3, 5),), EVERY),
    "folds, scans and positions of float64": Group((normal(2, 3, 5).double(),), EVERY),
    "folds, scans and positions of int64": Group((whole(-3, 4, 4, 3, 5),), WHOLE_NUMBERS),
    "folds, scans and positions of uint8": Group((whole(0, 9, 4, 3, 5).byte(),), WHOLE_NUMBERS),
    "folds, scans and positions of bfloat16": Group((normal(4, 3, 5).bfloat16(),), {**WHOLE_NUMBERS, **NORMS}),
    "folds, scans and positions of mixed values": Group(
        (MIXED,), {**POSITIONS, **SCANS, **FOLDS, **LOGARITHMS, "largest norm": NORMS["norm inf"]}
    ),
    # Neighbours in one loop over rows, of which some read the beginning of what others read whole.
    "folds of parts of rows": Group(
        (normal(3, 7, 5), normal(6, 16)),
        {
            "sum of a part": lambda x, y: x[:, :2].sum(1),
            "sum": lambda x, y: x.sum(1),
            "largest of a part": lambda x, y: x[:, :3].amax(1),
            "part of a softmax": lambda x, y: ((y - y.amax(1, True)).exp() / y.exp().sum(1, True))[:, :8],
        },
    ),
    "a part of a softmax": Group(
        (normal(6, 16),), {"softmax": lambda x: (e := (x - x.amax(1, True)).exp())[:, :8] / e.sum(1, True)}
    ),
    "folds of bools": Group((MIXED > 0,), {**FOLDS, **{n: f for n, f in SCANS.items() if "max" in n or "min" in n}}),
    "folds, scans and positions of a scalar": Group(
        (normal(),),
        {
            "argmax": torch.argmax,
            "max": lambda x: x.max(0)[1],
            "prod": torch.prod,
            "any": torch.any,
            "cumprod": lambda x: x.cumprod(0),
            "cummax": lambda x: x.cummax(0)[1],
            "norm": torch.linalg.vector_norm,
        },
    ),
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
}
