"""Conditions on data: eager's own error where one does not hold, and the right answer at the next call."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def test_a_class_outside_is_refused_in_eagers_words_and_the_next_call_is_right() -> None:
    torch._dynamo.reset()
    program = torch.compile(lambda x: nn.functional.one_hot(x, 5), backend="buddy", options={"fallback": "error"})
    x = torch.tensor([[0, 4, 2], [3, 3, 1]])
    for wrong, words in ((5, "smaller than num_classes"), (-1, "non-negative")):
        with pytest.raises(RuntimeError, match=f"Class values must be {words}"):
            program(x.clone().fill_(wrong))
        torch.testing.assert_close(program(x), nn.functional.one_hot(x, 5), rtol=0, atol=0)


def test_a_condition_holds_unless_it_is_zero() -> None:
    torch._dynamo.reset()

    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x[:1, None], "a zero to begin with")
        return x * 2

    program = torch.compile(checked, backend="buddy", options={"fallback": "error"})
    for first in (1.5, torch.nan, -torch.inf):
        x = torch.tensor([first, 3.0])
        torch.testing.assert_close(program(x), x * 2, equal_nan=True)
    with pytest.raises(RuntimeError, match="a zero to begin with"):
        program(torch.tensor([0.0, 3.0]))


def test_a_condition_without_a_message_is_kept() -> None:
    torch._dynamo.reset()

    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all())
        return x * 2

    program = torch.compile(checked, backend="buddy", options={"fallback": "error"})
    torch.testing.assert_close(program(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value, but got zero"):
        program(-torch.ones(2))
