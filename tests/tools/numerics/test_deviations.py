"""How far tensors are apart: the quick way says what the careful one says, and what is not finite is told."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.runtime.compare import ErrorMetrics, compare
from buddy.compiler.runtime.error_statistics import can_compare_in_one_pass, compare_in_one_pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_the_verdict_is_that_of_a_programs_outputs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    reference = (torch.randn(40, 30) * 10).to(dtype)
    told = ErrorMetrics()
    for size in (0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0):
        ours = (reference.to(torch.complex128) * (1 + size)).to(dtype) if dtype.is_complex else (
            (reference.double() * (1 + size)).to(dtype)
        )  # fmt: skip
        report = compare("", ours, reference)
        found = told.of(ours, reference)
        assert found.ok == (report.verdict == "ok"), size
        if dtype in (torch.float32, torch.float64):
            assert found.largest == pytest.approx(report.max_abs, rel=1e-3)


@pytest.mark.parametrize("shape", [(64, 65), (3, 1367), (16, 16, 17)])
def test_error_statistics_equal_those_of_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    reference = torch.randn(shape) * 3
    ours = reference + 1e-3 * torch.randn(shape)
    assert can_compare_in_one_pass(ours, reference)
    found, apart = compare_in_one_pass(ours, reference), ours - reference
    assert found.largest == float(apart.abs().max())
    # Single precision adds up a few hundred squares a lane: each adds half a unit in the last place at most.
    assert found.squared_difference == pytest.approx(float(apart.double().square().sum()), rel=1e-4)
    assert found.squared_reference == pytest.approx(float(reference.double().square().sum()), rel=1e-4)
    turned = reference.transpose(0, 1).contiguous().transpose(0, 1)
    assert ErrorMetrics().of(ours, turned) == ErrorMetrics().of(ours, reference)


@pytest.mark.parametrize("place", [0, 2047, 4098])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_long_tensor_with_one_number_that_is_not_finite_is_wrong(place: int, wrong: float) -> None:
    reference = torch.ones(4099)
    ours = reference.clone()
    ours[place] = wrong
    for found in (ErrorMetrics().of(ours, reference), ErrorMetrics().of(reference, ours)):
        assert not found.ok
        assert found.where == f"[{place}]"


def test_what_is_not_finite_on_one_side_alone_is_wrong_and_counted() -> None:
    reference = torch.tensor([1.0, -torch.inf, torch.nan, 2.0])
    same = ErrorMetrics().of(reference.clone(), reference)
    assert same.ok
    assert (same.nans, same.infs) == (1, 1)
    other = ErrorMetrics().of(torch.tensor([torch.nan, -torch.inf, torch.nan, 2.0]), reference)
    assert not other.ok
    assert other.where == "[0]"


def test_integers_are_equal_or_wrong() -> None:
    assert ErrorMetrics().of(torch.tensor([1, 2]), torch.tensor([1, 2])).ok
    wrong = ErrorMetrics().of(torch.tensor([1, 5]), torch.tensor([1, 2]))
    assert not wrong.ok
    assert wrong.largest == 3


def test_a_wider_reference_has_the_tolerance_of_what_is_compared_with_it() -> None:
    exact = torch.tensor([1.0, 3.0], dtype=torch.float64) / 3
    assert ErrorMetrics().of(exact.float(), exact).ok
    assert 0 < ErrorMetrics().of(exact.float(), exact).largest < 1e-7


def test_numbers_that_torch_has_yet_to_negate_are_compared_as_what_they_are() -> None:
    torch.manual_seed(0)
    numbers = torch.randn(5000)
    lazy = torch._neg_view(numbers)
    assert not ErrorMetrics().of(numbers, lazy).ok
    assert not ErrorMetrics().of(lazy, numbers).ok
    assert ErrorMetrics().of(-numbers, lazy).largest == 0


def test_floats_of_8_bits_are_equal_or_wrong() -> None:
    one = torch.tensor([1.0, torch.nan, 2.0]).to(torch.float8_e5m2)
    other = torch.tensor([1.0, torch.nan, 3.0]).to(torch.float8_e5m2)
    assert ErrorMetrics().of(one, one.clone()).ok
    assert not ErrorMetrics().of(one, other).ok
