"""What a comparison of random programs allows for: other roundings, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.tools.fuzz import roundings

RandomProgram = Callable[[torch.Tensor], Any]


def said(program: RandomProgram, other: RandomProgram, x: torch.Tensor) -> str:
    """What is found where `other` stands in for compiled code."""
    with torch.no_grad():
        shaken = roundings.run_perturbed(program, lambda: copy.deepcopy(x))
        return roundings.describe_difference(other(copy.deepcopy(x)), program(copy.deepcopy(x)), shaken)


def in_another_order(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0).cumsum(0)[-1]


def of_two_equal_numbers(x: torch.Tensor) -> torch.Tensor:
    """Eager leaves a rounding error of each mean."""
    return torch.nn.functional.instance_norm(x.round().mul(3)[None, :, :1].repeat(1, 1, 2))


def transformed(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.rfft(x.masked_fill(x == x.amax(1, keepdim=True), torch.inf)))


def transformed_by_definition(x: torch.Tensor) -> torch.Tensor:
    found = torch.full((1000, 4, 2), torch.nan)
    found[:, 0, 0], found[:, 0, 1] = torch.inf, 0
    return found


def attended(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(*with_nan(x))


def attended_by_definition(x: torch.Tensor) -> torch.Tensor:
    query, key, value = with_nan(x)
    return (query @ key.mT / 7**0.5).softmax(-1) @ value


def with_nan(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    some = x[:30].masked_fill(x[:30] > 1.5, torch.nan)
    return some[None, None], x[None, None, :20], x[None, None, 20:40]


def gradient_of_relu6(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.hardtanh_backward(x.cos(), x.masked_fill(x > 1.5, torch.nan), 0, 6)


def gradient_of_relu6_by_another_kernel(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x.cos(), 0)


@pytest.mark.parametrize(
    ("program", "other"),
    [
        (lambda x: x.sum(0), in_another_order),
        (lambda x: 1 / x.sum(0), lambda x: 1 / in_another_order(x)),
        (lambda x: (x.sum(0) * 1e3).sin(), lambda x: (in_another_order(x) * 1e3).sin()),
        (lambda x: (x * 3 / 3 - x).sign(), lambda x: (x * (3 / 3) - x).sign()),
        (lambda x: of_two_equal_numbers(x) == 0, lambda x: torch.ones(1, 1000, 2, dtype=torch.bool)),
        (transformed, transformed_by_definition),
        (lambda x: (x - x).div(0).bfloat16().signbit(), lambda x: x == x),
        (attended, attended_by_definition),
        (gradient_of_relu6, gradient_of_relu6_by_another_kernel),
    ],
    ids=[
        "sum",
        "divided by a sum",
        "cancelled and magnified",
        "the sign of a rounding error",
        "nothing is left",
        "infinity transformed",
        "the sign of NaN",
        "attention of NaN",
        "gradient of NaN",
    ],
)
def test_another_order_of_sums_is_right(program: RandomProgram, other: RandomProgram) -> None:
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
        (transformed, lambda x: transformed_by_definition(x) * torch.nan),
        (lambda x: x - x.mean(0) == 0, lambda x: x == x),
    ],
    ids=["scale", "dim", "comparison", "index", "nan for inf", "order", "a real number's conjugate", "nothing is left"],
)
def test_another_computation_is_wrong(program: RandomProgram, other: RandomProgram) -> None:
    torch.manual_seed(0)
    assert said(program, other, torch.randn(1000, 7)).startswith("result 0: ")
