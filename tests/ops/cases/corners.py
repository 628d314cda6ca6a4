"""Empty lists and sizes, mixed element types, numbers that halves round, and powers of special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, whole
from tests.ops.cases.elementwise import SPECIAL

_AT = torch.tensor([0, 1, 1])

OF_FLOATS: dict[str, Callable[..., Any]] = {
    # Rounded to float16 before they are added, 64 times 1.0004 are 64.
    "sum in float16": lambda x, n: torch.cat([x.new_full((64,), 1.0004), x[3:4] - 64]).sum(0, dtype=torch.float16),
    "any over no dims": lambda x, n: torch.any(x, ()),
    "all over no dims": lambda x, n: torch.all(n, ()),
    # Halves cannot count this far.
    "long arange of halves": lambda x, n: torch.arange(-1000.0, 1000.0, 0.5, dtype=torch.float16),
    "long arange of floats": lambda x, n: torch.arange(16777215, 16777225, dtype=torch.float32),
    "histc of special values": lambda x, n: x.histc(4, -3, 3),
}
POWERS: dict[str, Callable[..., Any]] = {
    **{f"power {p}": lambda x, n, p=p: x**p for p in (0.5, -0.5)},
    **{f"power {p} of float16": lambda x, n, p=p: x.half() ** p for p in (0.5, -0.5, 0.7)},
    # The processor's own conversion to bfloat16 takes subnormal numbers, of which the last is one, for 0.
    **{f"power {p} of bfloat16": lambda x, n, p=p: x[:-1].bfloat16() ** p for p in (0.5, -0.5, 0.7)},
    "an exponent that bfloat16 rounds": lambda x, n: (n.flatten() + 9000).bfloat16() ** 0.7,
}
OF_TWO_TYPES: dict[str, Callable[..., Any]] = {
    "slice_scatter": lambda x, n: x.new_zeros(3, 4).slice_scatter(n[:, :2], 1, 0, 2),
    "select_scatter": lambda x, n: x.new_zeros(3, 4).select_scatter(n[:, 0].double(), 1, 2),
    "diagonal_scatter": lambda x, n: x.new_zeros(3, 4).diagonal_scatter(n[:, 0]),
    "as_strided_scatter": lambda x, n: aten.as_strided_scatter(x.new_zeros(3, 4), n[:2, :2], [2, 2], [1, 4]),
    "scatter that multiplies halves": lambda x, n: x.half()[4:7].scatter(0, _AT, 0.1, reduce="multiply"),
    "scatter that adds to halves": lambda x, n: x.half()[3:6].scatter(0, _AT, 1.0003, reduce="add"),
}
OF_NOTHING: dict[str, Callable[..., Any]] = {
    "adaptive max": lambda x, n: F.adaptive_max_pool2d(x.new_ones(1, 2, 4, 4), (0, 2)),
    "where the adaptive maxima are": lambda x, n: F.adaptive_max_pool2d(x.new_ones(1, 2, 4, 4), (0, 2), True)[1],
    "cdist": lambda x, n: torch.cdist(x.new_ones(3, 0), x.new_ones(2, 0), float("inf")),
    "pdist": lambda x, n: F.pdist(x.new_ones(3, 0), float("inf")),
}

GROUPS: dict[str, Group] = {
    "corners": Group((SPECIAL, whole(1, 9, 3, 4)), {**OF_FLOATS, **OF_TWO_TYPES, **OF_NOTHING}),
    "powers of special values": Group((SPECIAL, whole(1, 9, 3, 4)), POWERS),
}
