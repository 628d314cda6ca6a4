"""Sorting, and what is read off sorted lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, normal, whole
from tests.ops.cases.reductions import MIXED

ORDERS: dict[str, Callable[..., Any]] = {
    "sort": lambda x: x.sort(-1)[0],
    "its places": lambda x: x.sort(-1)[1],
    "sort downwards": lambda x: x.sort(1, descending=True)[0],
    "the places of that": lambda x: x.sort(dim=1, descending=True, stable=True)[1],
    "argsort": lambda x: x.argsort(dim=0, stable=True),
    "largest": lambda x: x.topk(3)[0],
    "least": lambda x: x.topk(2, 1, largest=False)[0],
}
MIDDLES: dict[str, Callable[..., Any]] = {
    "kthvalue": lambda x: x.kthvalue(2)[0],
    "median": torch.median,
    "median over a dim": lambda x: x.median(1, keepdim=True)[0],
    "nanmedian": lambda x: x.nanmedian(-1)[0],
}
# Of floats it is eager's: it orders by `<` alone, so that with NaN among the keys their order is whatever comes.
MODE = {"mode": lambda x: x.mode(-1)[0], "where mode is": lambda x: x.mode(-1)[1]}
# Those of equal keys are where eager's own algorithms leave them, which differ from 17 elements on.
SEARCHES: dict[str, Callable[..., Any]] = {
    "searchsorted": lambda x: torch.searchsorted(x.sort(-1)[0], x),
    "from the right": lambda x: torch.searchsorted(x.sort(-1)[0], x + 0.5, right=True, out_int32=True),
    "by a sorter": lambda x: torch.searchsorted(x, x, sorter=x.argsort(-1)),
    "a number": lambda x: torch.searchsorted(x[0, 0].sort()[0], 0.5),
    "bucketize": lambda x: torch.bucketize(x, x[0, 0].sort()[0], right=True),
}
HISTOGRAMS: dict[str, Callable[..., Any]] = {
    "histc": lambda x: x.histc(5, -1, 1),
    "histc of all": lambda x: x.histc(4),
}
PLACES: dict[str, Callable[..., Any]] = {
    "where the largest are": lambda x: x.topk(3, 1)[1],
    "where kthvalue is": lambda x: x.kthvalue(2, 1)[1],
    "where few of many are": lambda x: x.topk(x.shape[-1] // 64 + 1, largest=False)[1],
    "where the median is": lambda x: x.median(-1)[1],
    "where nanmedian is": lambda x: x.nanmedian(-1)[1],
    "where half of them are": lambda x: x.topk(x.shape[-1] // 2, -1, sorted=False)[1],
    "where the least half is": lambda x: x.topk(x.shape[-1] // 2, -1, largest=False)[1],
    "where sort leaves them": lambda x: x.sort(-1, descending=True)[1],
}
LONG = whole(-9, 9, 2, 200).float()
LONG[0, ::5] = float("nan")

GROUPS: dict[str, Group] = {
    "sorting": Group((normal(2, 3, 7),), {**ORDERS, **MIDDLES, **PLACES, **SEARCHES, **HISTOGRAMS}),
    "sorting of int64": Group(
        (whole(-3, 4, 2, 3, 7),), {**ORDERS, **MIDDLES, **MODE, "bucketize": SEARCHES["bucketize"]}
    ),
    "sorting of bfloat16": Group((normal(2, 3, 7).bfloat16(),), {**ORDERS, **MIDDLES}),
    "sorting of uint8": Group((whole(0, 255, 2, 3, 7).byte(),), {**ORDERS, **MIDDLES, **MODE}),
    "sorting of bools": Group((normal(2, 3, 7) > 0,), {n: f for n, f in ORDERS.items() if "sort" in n}),
    "sorting of mixed values": Group((MIXED,), {**ORDERS, **MIDDLES}),
    "sorting of long lines": Group(
        (whole(-9, 9, 2, 300),),
        {"argsort": lambda x: x.argsort(stable=True), **PLACES, "where mode is": MODE["where mode is"]},
    ),
    # Eager sorts one row of so many integers by radix sort, which is stable, but in ascending order only.
    "sorting of one long row": Group(
        (torch.arange(40_000) * 7919 % 19 % 7,),
        {"upwards": lambda x: x.sort()[1], "downwards": PLACES["where sort leaves them"]},
    ),
    "sorting of long lines with NaN": Group((LONG,), PLACES),
    "sorting of a scalar": Group((normal(),), {"sort": ORDERS["sort"], "median": torch.median}),
    "mode of a scalar": Group((whole(0, 9),), MODE),
    "sorting of nothing": Group(
        (normal(2, 0),),
        {
            "sort": ORDERS["sort"],
            "places": ORDERS["its places"],
            "largest of no lines": lambda x: x.mT.topk(2, 1)[0],
            "kthvalue of no lines": lambda x: x.mT.kthvalue(1, 1)[0],
        },
    ),
}
