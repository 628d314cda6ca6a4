"""How far results of a benchmark may be from eager's: gradients that a rounding switches, and wrong ones."""

from __future__ import annotations

import math

import pytest
import torch

from buddy.compiler.tools.bench.errors import (
    MIN_ALLOWED_ERROR,
    StepDifference,
    gradient_spreads,
    largest_error,
    relative_error,
    step_error,
)


class Step:
    """Forward and backward of a layer with ReLU: its first hidden value is `margin`, all others are 1 from 0."""

    def __init__(self, margin: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(256, 8, generator=generator, requires_grad=True)
        self.x = torch.randn(8, generator=generator)
        hidden = self.weight.detach() @ self.x
        self.shift = torch.where(hidden > 0, 1.0, -1.0)
        self.shift[0] = -(hidden[0] - margin)

    def __call__(self) -> list[torch.Tensor]:
        self.weight.grad = None
        loss = torch.relu(self.weight @ self.x + self.shift).sum()
        loss.backward()
        assert self.weight.grad is not None
        return [loss.detach(), self.weight.grad.clone()]

    def spreads(self) -> list[float]:
        return gradient_spreads(self, [self.weight, self.x], self())


NAMES = ("the loss", "the gradient of weight")


def test_a_gradient_that_a_rounding_switches_has_a_spread_that_allows_it() -> None:
    near, far = Step(margin=1e-8), Step(margin=1e-2)
    assert near.spreads()[1] > 0.02
    assert far.spreads()[1] < MIN_ALLOWED_ERROR / 20
    # What a sum in another order may give: the hidden value changes sides, and with it the gradient of its row.
    found = {}
    for step in (near, far):
        expected = step()
        switched = [expected[0], expected[1].clone()]
        switched[1][0] = step.x - expected[1][0]
        found[step] = step_error(NAMES, switched, expected, step.spreads())
    assert not found[near].problem
    assert found[near].error > 0.02
    assert "the gradient of weight differs from eager's by " in found[far].problem
    assert f"{MIN_ALLOWED_ERROR:.1e} is allowed" in found[far].problem


def test_disturbed_tensors_have_their_values_again() -> None:
    step = Step(margin=1e-2)
    before, x = step.weight.detach().clone(), step.x.clone()
    assert any(step.spreads())
    assert torch.equal(step.weight, before)
    assert torch.equal(step.x, x)
    with pytest.raises(RuntimeError, match="not a step"):
        gradient_spreads(_failing, [step.weight], step())
    assert torch.equal(step.weight, before)


def _failing() -> list[torch.Tensor]:
    raise RuntimeError("not a step")


def test_a_gradient_that_cancels_is_compared_with_all_gradients() -> None:
    """The exact gradient of a constant that softmax subtracts again is 0; both sides compute roundings."""
    loss, weight = torch.tensor(1.0), torch.full((100,), 0.1)
    expected, results = [loss, weight, torch.tensor([1e-8, -2e-8])], [loss, weight, torch.tensor([-2e-8, 1e-8])]
    names = (*NAMES, "the gradient of bias")
    assert not step_error(names, results, expected, [0.0, 0.0, 4e-4]).problem
    results[2] = torch.tensor([1e-3, 0.0])
    assert step_error(names, results, expected, [0.0, 0.0, 4e-4]).name == "the gradient of bias"
    assert step_error(names, results, expected, [0.0, 0.0, 4e-4]).problem


def test_the_worst_result_is_the_one_beyond_its_limit() -> None:
    """An error of 1e-2 where eager has the same is less than one of 1e-3 where eager has none."""
    expected = [torch.ones(1), torch.ones(100), torch.ones(100)]
    results = [torch.ones(1), torch.full((100,), 1.01), torch.full((100,), 1.001)]
    found = step_error((*NAMES, "the gradient of bias"), results, expected, [0.0, 1e-2, 0.0])
    assert found.name == "the gradient of bias"
    assert found.error == pytest.approx(1e-3, rel=1e-3)
    assert found.problem


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nan_in_place_of_a_number_is_infinitely_wrong(wrong: float) -> None:
    expected, results = [torch.ones(4)], [torch.tensor([1.0, 1.0, 1.0, wrong])]
    assert relative_error(results, expected) == largest_error(results, expected) == math.inf
    assert relative_error(results, results) == largest_error(results, results) == 0
    assert step_error(NAMES[:1], results, expected, [0.0]).problem


def test_what_changes_by_itself_is_no_reference() -> None:
    assert "of eager itself changes by 5.0e-01" in StepDifference("the loss", 0.4, 0.5).problem
    assert StepDifference("the loss", 0.0, math.inf).problem
