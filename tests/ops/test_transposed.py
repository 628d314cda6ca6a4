"""Transposed convolutions of bfloat16: eager rounds each of their partial sums on processors without AVX512-BF16."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.protocol.presets import default_recipe
from tests.ops.cases.base import normal
from tests.ops.cases.windows import CONVOLUTIONS
from tests.programs import Line, assert_same

FUNCTIONS = {
    name: each for name, each in CONVOLUTIONS.items() if name.startswith("transposed") and "groups" not in name
}


@pytest.mark.slow
def test_they_are_eagers_of_the_same_numbers_in_double_precision_rounded_once() -> None:
    inputs = normal(2, 4, 7, 6, dtype=torch.bfloat16), normal(4, 2, 3, 2, dtype=torch.bfloat16)

    def convolutions(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, w) for function in FUNCTIONS.values()]

    exact = [each.bfloat16() for each in convolutions(*(each.double() for each in inputs))]
    assert_same(Line(convolutions, *inputs).run(default_recipe()), exact, list(FUNCTIONS))
