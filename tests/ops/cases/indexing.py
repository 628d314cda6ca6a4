"""Reading and writing by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, aten, normal, whole

INDEXING: dict[str, Callable[..., Any]] = {
    "embedding": lambda w, i: F.embedding(i, w),
    "embedding of bounded rows": lambda w, i: F.embedding(i, w.clone(), max_norm=1.5),
    "one_hot": lambda w, i: F.one_hot(i, 5),
    "gather columns": lambda w, i: w.gather(1, i),
    "gather rows": lambda w, i: w.gather(0, i),
    "gather one number": lambda w, i: w[0].gather(0, i[0, 0]),
    "gather from one number": lambda w, i: w[0, 0].gather(0, i[0] * 0),
    "index_select": lambda w, i: w.index_select(1, i[0]),
    "take": lambda w, i: w.take(i),
    "take one number": lambda w, i: w[0].take(i[0, 0]),
    "a row of indices": lambda w, i: w[:, i[0] - 4],
    "two indices": lambda w, i: w[i[:, :1] - 2, i],
}

BAGS: dict[str, Callable[..., Any]] = {
    f"bags, {mode}": lambda w, i, mode=mode: F.embedding_bag(i, w, mode=mode) for mode in ("sum", "mean", "max")
} | {
    "bags of several sizes": lambda w, i: F.embedding_bag(i.flatten(), w, i.new_tensor([0, 2, 2]), padding_idx=1),
    "weighted bags": lambda w, i: F.embedding_bag(i, w, mode="sum", per_sample_weights=w[:2, :3]),
    "nonzero_static": lambda w, i: torch.nonzero_static(i, size=9),
    "repeat_interleave": lambda w, i: w[:3].repeat_interleave(i[0] * 0 + i.new_tensor([2, 0, 3]), 0, output_size=5),
}


def _segments(mode: str, **named: Any) -> Callable[..., Any]:
    return lambda w, i: torch.segment_reduce(w, mode, lengths=i.new_tensor([2, 0, 3, 1]), **named)


SEGMENTS: dict[str, Callable[..., Any]] = {
    **{f"segments, {mode}": _segments(mode) for mode in ("sum", "mean", "max", "min", "prod")},
    "segments from a start": _segments("mean", initial=2.0),
    "segments by offsets": lambda w, i: torch.segment_reduce(w, "max", offsets=i.new_tensor([0, 2, 2, 6]), initial=0),
    "segments of columns": lambda w, i: torch.segment_reduce(
        w[:2], "sum", lengths=i.new_tensor([[1, 3, 0], [2, 0, 2]]), axis=1
    ),
}


def _along(name: str, *further: Any, **named: Any) -> Callable[..., Any]:
    """The method `name` on columns; the values are twice those of the target, from its first rows."""
    return lambda x, i: getattr(x, name)(1, i, *(further or (x[:2] * 2,)), **named)


WRITES: dict[str, Callable[..., Any]] = {
    "scatter": _along("scatter"),
    "scatter a number": _along("scatter", 3),
    "scatter into a constant": lambda x, i: torch.full_like(x, 2).scatter(1, i.reshape(6, 1), 3.7),
    "scatter into rows of zeros": lambda x, i: x.new_zeros(5, 3).scatter(0, i[:1], True),
    "scatter into part of a constant": lambda x, i: torch.zeros_like(x).scatter(1, i[:, :1], -1),
    "scatter_add": _along("scatter_add"),
    **{
        f"scatter_reduce {mode}, {own}": lambda x, i, mode=mode, own=own: x.scatter_reduce(
            0, i, x[1:3] * 2, mode, include_self=own
        )
        for mode in ("sum", "prod", "amax", "amin", "mean")
        for own in (True, False)
    },
    "index_reduce": lambda x, i: x.index_reduce(1, i[0], x[:, :3], "amin", include_self=False),
    "index_reduce mean": lambda x, i: x.index_reduce(0, i.flatten(), x, "mean"),
    "index_put": lambda x, i: x.index_put((i, i - 4), x[:2, 1:]),
    "index_put after a slice": lambda x, i: aten.index_put(x, [None, i[1]], x[:, :1]),
    "index_put that adds": lambda x, i: x.index_put((i[0],), x[:3], accumulate=True),
    "put": lambda x, i: x.put(i - 3, x[:2, :3]),
    "put that adds": lambda x, i: x.put(i, x[:2, :3], accumulate=True),
    "masked": lambda x, i: x.index_put((x > 0,), x[0, 0]),
    "masked, adding": lambda x, i: x.index_put((x[:, 0] < 99,), x * 2, accumulate=True),
    "masked rows": lambda x, i: x.index_put((x[:, 0] > 0,), x[0, 0]),
    "masked columns": lambda x, i: aten.index_put(x, [None, x[0] >= x[0, 1]], x[:, :1]),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 0, x * 2),
}
MULTIPLIED = {"scatter that multiplies": _along("scatter", 3, reduce="multiply")}

# Indices out of range are in tests/ops/test_bounds.py: eager refuses them.
RANDOM_BITS: dict[str, Callable[..., Any]] = {
    "words": lambda seed: torch.stack([torch.ops.buddy.philox32(seed, 3, [3, 5], word) for word in range(4)]),
    "pairs": lambda seed: torch.stack([torch.ops.buddy.philox64(seed, 0, [2, 17], pair) for pair in range(2)]),
    "one": lambda seed: torch.ops.buddy.philox32(seed, 1, []),
    "another seed": lambda seed: torch.ops.buddy.philox64(-seed, 2**31, [40]),
}
GROUPS: dict[str, Group] = {
    "random bits": Group((torch.tensor(0x0123456789ABCDEF),), RANDOM_BITS),
    "indexing": Group((normal(6, 4), whole(0, 4, 2, 3)), {**INDEXING, **BAGS, **SEGMENTS}),
    "indexing by int32": Group((normal(6, 4), whole(0, 4, 2, 3).int()), {"embedding": INDEXING["embedding"]}),
    "writes by index": Group((normal(6, 4), whole(0, 4, 2, 3)), {**WRITES, **MULTIPLIED}),
    "writes of int64 by index": Group((whole(-9, 9, 6, 4), whole(0, 4, 2, 3)), {**WRITES, **MULTIPLIED}),
    "writes of bfloat16 by index": Group((normal(6, 4).bfloat16(), whole(0, 4, 2, 3)), WRITES),
    "writes of bools by index": Group(
        (normal(6, 4) > 0, whole(0, 4, 2, 3)),
        {
            "scatter": lambda x, i: x.scatter(1, i, x[1:3]),
            "index_put": lambda x, i: x.index_put((i,), x[0]),
            "masked_scatter": lambda x, i: x.masked_scatter(x, ~x),
        },
    ),
    "writes into a scalar": Group(
        (normal(), torch.zeros(1, dtype=torch.int64)),
        {
            "scatter": lambda x, i: x.scatter(0, i[0], x * 2),
            "index_reduce": lambda x, i: aten.index_reduce(x, 0, i, x, "mean"),
        },
    ),
}
