"""What a comparison of random programs allows for: other roundings, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.fuzzing import roundings

Program = Callable[[torch.Tensor], Any]


def said(program: Program, other: Program, x: torch.Tensor) -> str:
    """What is found where `other` stands in for compiled code."""
    with torch.no_grad():
        shaken = roundings.runs(program, lambda: copy.deepcopy(x))
        return roundings.differs(other(copy.deepcopy(x)), program(copy.deepcopy(x)), shaken)


def in_another_order(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0).cumsum(0)[-1]


@pytest.mark.parametrize(
    ("program", "other"),
    [
        (lambda x: x.sum(0), in_another_order),
        (lambda x: 1 / x.sum(0), lambda x: 1 / in_another_order(x)),
        (lambda x: (x.sum(0) * 1e3).sin(), lambda x: (in_another_order(x) * 1e3).sin()),
        (lambda x: (x * 3 / 3 - x).sign(), lambda x: (x * (3 / 3) - x).sign()),
    ],
    ids=["sum", "divided by a sum", "cancelled and magnified", "the sign of a rounding error"],
)
def test_another_order_of_sums_is_right(program: Program, other: Program) -> None:
    torch.manual_seed(0)
    assert said(program, other, torch.randn(1000, 7)) == ""


@pytest.mark.parametrize(
    ("program", "other"),
    [
        (lambda x: x.exp(), lambda x: x.exp() * (1 + 1e-4)),
        (lambda x: x.softmax(0), lambda x: x.softmax(1)),
        (lambda x: x > 0, lambda x: x >= -1e-3),
        (lambda x: x.argmax(0), lambda x: x.argmax(0) + (x[0] > 0)),
        (lambda x: x / 0, lambda x: x * 0),
        (lambda x: x.sort(0)[0], lambda x: x.sort(0, descending=True)[0]),
    ],
    ids=["scale", "dim", "comparison", "index", "nan for inf", "order"],
)
def test_another_computation_is_wrong(program: Program, other: Program) -> None:
    torch.manual_seed(0)
    assert said(program, other, torch.randn(1000, 7)).startswith("result 0: ")
