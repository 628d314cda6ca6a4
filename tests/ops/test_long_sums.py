"""Sums over long axes keep their digits: many terms are summed in f64, in whatever order compiled code takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

SUMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(0),
    "std of lines": lambda x: x.T.std(1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x.T, (x.size(0),)),
    "instance_norm": lambda x: torch.nn.functional.instance_norm(x.T[None]),
}
X = torch.rand(1 << 20, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_long_sum_is_as_near_to_the_right_one_as_its_type_allows(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    found = torch.compile(lambda x: [f(x) for f in SUMS.values()], backend="buddy")(x)
    for (name, function), ours in zip(SUMS.items(), found, strict=True):
        right = function(x.double())
        torch.testing.assert_close(
            ours.double(), right.to(dtype).double(), rtol=4 * torch.finfo(dtype).eps, atol=1e-6, msg=name
        )
