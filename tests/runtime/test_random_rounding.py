"""Another correct run of a program: errors as large as those of plain sums, and none where nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.runtime.graph_interpreter import symbol_values
from buddy.compiler.runtime.random_rounding import RandomRoundingInterpreter, round_at_random
from tests.programs import captured

LENGTH = 4096


def run(function: Callable[..., Any], *args: torch.Tensor, seed: int = 0) -> torch.Tensor:
    program = captured(function, *args)
    symbols = symbol_values(program.graph, program.tensors)
    with torch.no_grad():
        (found,) = RandomRoundingInterpreter(program.graph, program.tensors, symbols, seed).finish()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_number_becomes_one_of_its_neighbours_and_is_right_on_average(dtype: torch.dtype) -> None:
    value = torch.full((20_000,), 1 + 0.25 * torch.finfo(dtype).eps, dtype=torch.float64)
    rounded = round_at_random(value, dtype, torch.Generator().manual_seed(0)).double()
    assert set(rounded.tolist()) == {1.0, 1 + torch.finfo(dtype).eps}
    assert float((rounded - 1).mean()) == pytest.approx(0.25 * torch.finfo(dtype).eps, rel=0.1)


def test_what_the_type_can_hold_stays() -> None:
    value = torch.tensor([0.0, -0.0, 1.0, -3.5, 2**-100, 1e30, torch.inf, -torch.inf]).bfloat16()
    rounded = round_at_random(value.double(), torch.bfloat16, torch.Generator().manual_seed(0))
    assert torch.equal(rounded.view(torch.int16), value.view(torch.int16))
    x = torch.randn(8, 8)
    assert torch.equal(
        run(lambda x: x.relu().mT.flatten().sort()[0].round(), x), x.relu().mT.flatten().sort()[0].round()
    )


def test_the_same_seed_gives_the_same_run_and_torchs_generator_is_left_alone() -> None:
    x = torch.randn(16, 16)
    before = torch.get_rng_state()
    one, again, other = (run(torch.sin, x, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


PROGRAMS = {
    "mm": (lambda x, y: x @ y, lambda x, y: x[:, :, None] * y[None]),
    "mean": (lambda x, y: x.mean(1), lambda x, y: x[:, :, None] / LENGTH),
    "sum": (lambda x, y: (x * y[:, :1].mT).sum(1), lambda x, y: x[:, :, None] * y[None, :, :1]),
}


@pytest.mark.parametrize("signs", ["both", "one"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_errors_of_sums_are_those_of_plain_sums_in_float32(name: str, signs: str) -> None:
    function, addends = PROGRAMS[name]
    x, y = torch.randn(16, LENGTH), torch.randn(LENGTH, 16)
    x, y = (x, y) if signs == "both" else (x.abs(), y.abs())
    each = addends(x, y)
    plain = torch.zeros_like(each[:, 0])
    for index in range(LENGTH):
        plain += each[:, index]
    exact = function(x.double(), y.double()).reshape(16, -1)
    theirs = float((plain - exact).square().mean().sqrt())
    ours = float((run(function, x, y).reshape(16, -1) - exact).square().mean().sqrt())
    assert theirs / 3 < ours < 3 * theirs
