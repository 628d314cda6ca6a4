"""Indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from tests.ops.cases.base import Group, normal, whole

INDEXING: dict[str, Callable[..., Any]] = {
    "embedding": lambda w, i: F.embedding(i, w),
    "gather columns": lambda w, i: w.gather(1, i),
    "gather rows": lambda w, i: w.gather(0, i),
}

GROUPS: dict[str, Group] = {
    "indexing": Group((normal(6, 4), whole(0, 4, 2, 3)), INDEXING),
}
