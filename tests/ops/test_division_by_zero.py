"""Integers divided by zero: eager's own error, and the right answer at the next call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

DIVISIONS: dict[str, Callable[..., Any]] = {
    "floor": lambda x, y: (x // y) * 2,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": lambda x, y: torch.fmod(x + 1, y),
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="buddy", **options)


def test_a_zero_in_a_divisor_is_refused_in_eagers_words_and_the_next_call_is_right() -> None:
    program = compiled(
        lambda x, y, z: [f(x, y) for f in DIVISIONS.values()] + [x.float() // z, x // 3],
        dynamic=False,
        options={"fallback": "error"},
    )
    x, y, z = torch.arange(-6, 6).view(3, 4), torch.tensor([3, -2, 1, 4]), torch.tensor([0.0, 1, 2, 3])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            program(x, torch.tensor([3, -2, 0, 4]), z)
        expected = [*(f(x, y) for f in DIVISIONS.values()), x.float() // z, x // 3]
        for found, wanted in zip(program(x, y, z), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", DIVISIONS)
def test_a_zero_that_the_program_says_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(lambda x: DIVISIONS[name](x, 0))(torch.arange(4, dtype=torch.int32))


def test_sizes_that_a_call_tells() -> None:
    program = compiled(lambda x, y: x // y, dynamic=True, options={"fallback": "error"})
    for count in (3, 5):
        assert program(torch.arange(count) * 7, torch.arange(count) + 1).tolist() == [
            7 * i // (i + 1) for i in range(count)
        ]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        program(torch.arange(5), torch.arange(5))
