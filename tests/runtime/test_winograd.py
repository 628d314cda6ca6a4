"""Winograd's algorithm in bfloat16, in PyTorch: exact where nothing rounds, and verdicts that allow its roundings."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.measure import compare_results, relative_rms
from buddy.compiler.runtime.random_rounding import convolve_by_winograd
from buddy.compiler.runtime.sensitivity import is_within_spread, measure_spreads
from tests.programs import captured


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("size", [(7, 9), (6, 6)])
def test_a_convolution_of_small_integers_is_exact(padding: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    # Weights that are multiples of four stay integers when they are transformed, which bfloat16 holds up to 256.
    x, weight = torch.randint(-3, 4, (2, 5, *size)).float(), torch.randint(-3, 4, (4, 5, 3, 3)).float() * 4
    expected = torch.nn.functional.conv2d(x.double(), weight.double(), padding=padding)
    assert torch.equal(convolve_by_winograd(x, weight, [padding, padding]), expected)


def test_its_roundings_are_those_of_bfloat16() -> None:
    x, weight = torch.randn(1, 32, 12, 12), torch.randn(16, 32, 3, 3)
    direct = torch.nn.functional.conv2d(x.bfloat16().double(), weight.bfloat16().double(), padding=1)
    # Roundings to 8 bits of both transformed operands have an rms of 2^-9 / sqrt(3) = 1.1e-3 each.
    assert 5e-4 < relative_rms(convolve_by_winograd(x, weight, [1, 1]), direct) < 5e-3


def _network() -> tuple[CapturedGraph, list[torch.Tensor]]:
    """Returns two convolutions in bfloat16, and their weights."""
    torch.manual_seed(0)
    x, first, second = torch.randn(1, 8, 14, 14), torch.randn(16, 8, 3, 3) / 8, torch.randn(16, 16, 3, 3) / 12

    def function(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(torch.nn.functional.conv2d(x, first, padding=1).relu(), second, padding=1)

    program = captured(function, x, first, second)
    names = [op.stable for op in program.graph.body if op.target == "convolution.default"]
    assert len(names) == 2
    return program.in_precisions(dict.fromkeys(names, "bf16")), [x, first, second]


def _by_winograd(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return convolve_by_winograd(convolve_by_winograd(x, first, [1, 1]).float().relu(), second, [1, 1]).float()


def test_the_verdict_on_bfloat16_allows_for_what_the_algorithm_rounds() -> None:
    program, tensors = _network()
    assert program.eager is not None
    expected, result = program.eager(program.tensors), _by_winograd(*tensors)
    # The spread of a direct convolution does not.
    assert not is_within_spread(result, expected[0], measure_spreads(program, expected)[0])
    (report,) = compare_results(program, [result], expected, False)
    assert report.verdict == "ok", report.checks


def test_a_channel_whose_weights_are_wrong_is_found() -> None:
    program, (x, first, second) = _network()
    assert program.eager is not None
    second = second.clone()
    second[3] *= 1.03
    (report,) = compare_results(program, [_by_winograd(x, first, second)], program.eager(program.tensors), False)
    assert report.verdict == "mismatch"
