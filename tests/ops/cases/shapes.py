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
# What a reduction reads backwards, or by windows, no operand of it tells the size of.
REDUCED_MOVES: dict[str, Callable[..., Any]] = {
    "flip, summed along": lambda x: x.flip(0).sum(0),
    "flip, the sum of all": lambda x: x.flip(0, 1).sum(),
    "flip, its maximum's place": lambda x: x.flip(1).argmax(1),
    "windows, summed": lambda x: x.unfold(1, 3, 2).sum(-1),
}
MOVES: dict[str, Callable[..., Any]] = {
    "flip": lambda x: x.flip(0, 2),
    "flip, read by other loops": lambda x: torch.maximum(x[:, 0].flip(0), x[None, :, 1]),
    "windows, transposed": lambda x: torch.maximum(x.unfold(1, 2, 1).transpose(0, 1), x[0, 0, 0]),
    "roll": lambda x: x.roll((1, -5), (0, 2)),
    "roll of all": lambda x: x.roll(7),
    "rot90": lambda x: x.rot90(1, (0, 2)),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "unfold in steps": lambda x: x.unfold(1, 1, 2),
    "diagonal": lambda x: x.diagonal(1, 0, 2),
    "diagonal below": lambda x: x.diagonal(-1, 2, 1),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[0, :, :2].t(), -1, 2, 1),
    "diagonal_scatter of every other": lambda x: x[0, :, ::2].diagonal_scatter(x[1, 0, ::2]),
    "diag_embed": lambda x: x.diag_embed(1),
    "as_strided": lambda x: x.clone().as_strided((3, 4), (2, 3), 5),
    "as_strided_scatter": lambda x: aten.as_strided_scatter(x, x[0], [3, 4], [1, 4], 3),
    "constant pad": lambda x: aten.constant_pad_nd(x, [1, 2, 0, 1], 7),
    "constant pad that cuts off": lambda x: aten.constant_pad_nd(x, [-1, 1, 2, -2], 1),
    "reflect": lambda x: torch.nn.functional.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: torch.nn.functional.pad(x, (2, 1, 3, 0), mode="replicate"),
    "circular": lambda x: torch.nn.functional.pad(x, (2, 1), mode="circular"),
    "pixel_shuffle": lambda x: torch.nn.functional.pixel_shuffle(x.reshape(4, 3, 2), 2),
    "block_diag": lambda x: torch.block_diag(x[0], x[1]),
    "view_copy": lambda x: aten.view_copy(x, [4, 6]),
    "unbind_copy": lambda x: aten.unbind_copy(x, 1)[1],
}
BITS: dict[str, Callable[..., Any]] = {
    "floats as integers": lambda x: x.view(torch.int32),
    "floats as bytes": lambda x: x.view(torch.uint8),
    "floats as halves": lambda x: x.view(torch.float16).view(torch.int16),
    "floats as doubles": lambda x: x.view(torch.float64).view(torch.int64),
    "integers as bools": lambda x: (x > 0).view(torch.int8),
}
FACTORIES: dict[str, Callable[..., Any]] = {
    "full": lambda x: torch.full((2, 3), 1.5) + x[0],
    "full_like": lambda x: torch.full_like(x, -2),
    "linspace between tensors": lambda x: torch.linspace(x[0], x[1], 5),
    "eye": lambda x: torch.eye(3, 5, dtype=torch.int32),
    "linspace": lambda x: torch.linspace(-1, 2, 7),
    "logspace": lambda x: torch.logspace(0, 2, 5),
    "tril_indices": lambda x: torch.tril_indices(3, 4),
    "arange of halves": lambda x: torch.arange(3, 9, dtype=torch.bfloat16),
    "new_ones": lambda x: x.new_ones(2, dtype=torch.bool),
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
    "moves": Group(
        (normal(2, 3, 4),), {**MOVES, **REDUCED_MOVES, "empty": lambda x: torch.empty(2, 3).mul(0).isnan() & False}
    ),
    "moves of integers": Group((whole(-9, 9, 2, 3, 4),), MOVES),
    "moves of bools": Group(
        (normal(2, 3, 4) > 0,), {name: f for name, f in MOVES.items() if name not in ("reflect", "replicate")}
    ),
    "moves of nothing": Group(
        (normal(0, 3, 4),),
        {name: MOVES[name] for name in ("flip", "roll", "unfold", "diagonal below", "constant pad", "diag_embed")},
    ),
    "bits": Group((normal(3, 4),), BITS),
    "parts": Group((normal(4, 4), whole(-4, 4, 5)), PARTS),
}
