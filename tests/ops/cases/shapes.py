"""Shapes, views, parts and factories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, aten, normal, whole

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

GROUPS: dict[str, Group] = {
    "shapes": Group((normal(2, 3, 4),), SHAPES),
    "shapes of integers": Group((whole(-9, 9, 2, 3, 4),), SHAPES),
    "factories": Group((normal(3),), FACTORIES),
    "parts": Group((normal(4, 4), whole(-4, 4, 5)), PARTS),
}
