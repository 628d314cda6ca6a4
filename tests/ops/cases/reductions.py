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

GROUPS: dict[str, Group] = {
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
