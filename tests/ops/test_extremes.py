"""Extremes with their positions: NaN, infinities, equal elements and padding, as in eager; computed in vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from buddy.compiler.runtime.executable import LoadedProgram
from tests.programs import Line

WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "overlapping": ((2, 3, 9, 11), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "plain": ((2, 17, 8, 8), {"kernel_size": 2}),
    "dilated, with a ceiling": (
        (1, 5, 12, 13),
        {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 1), "dilation": (3, 2), "ceil_mode": True},
    ),
    "lines": ((1, 2, 7, 40), {"kernel_size": (1, 5), "stride": (1, 3), "padding": (0, 2)}),
    "whole planes": ((3, 8, 8), {"kernel_size": 8}),
    "volumes": ((1, 2, 5, 6, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
}


def tensors_of_few_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Yields tensors of few different numbers, so that most windows and rows have several extremes."""
    generator = torch.Generator().manual_seed(0)

    def draw(*numbers: float) -> torch.Tensor:
        at = torch.randint(len(numbers), shape, generator=generator)
        return torch.tensor(numbers, dtype=torch.float64 if dtype.is_floating_point else dtype)[at].to(dtype)

    if not dtype.is_floating_point:
        lowest = torch.iinfo(dtype).min
        yield from (draw(lowest, lowest + 1), draw(lowest))
        return
    infinity = float("inf")
    yield draw(float("nan"), -infinity, infinity, 0.0, -0.0, 1.0, -2.0)
    yield draw(-infinity, -infinity, -infinity, -1.0)
    yield from (draw(-infinity), draw(float("nan")))


def check(function: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    program = None
    for values in tensors_of_few_numbers(dtype, shape):
        program = program or LoadedProgram(Line(function, values).compile().artifact)
        for result, expected in zip(program([values]), function(values), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
@pytest.mark.parametrize("window", WINDOWS)
def test_maxima_and_their_positions_are_eagers(window: str, dtype: torch.dtype) -> None:
    shape, options = WINDOWS[window]
    pool = F.max_pool3d if len(shape) == 5 else F.max_pool2d
    check(lambda x: pool(x, return_indices=True, **options), dtype, shape)


@pytest.mark.parametrize("sizes", [(3, 4), (4, 3)])
def test_adaptive_maxima_and_their_positions_are_eagers(sizes: tuple[int, int]) -> None:
    """Windows of one size, and of several."""
    check(lambda x: F.adaptive_max_pool2d(x, sizes, return_indices=True), torch.float32, (2, 3, 12, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize("shape", [(5, 1), (3, 7), (2, 33), (1, 1000)])
def test_extremes_of_rows_and_their_positions_are_eagers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(lambda x: (*x.max(-1), *x.min(-1), x.argmax(-1, keepdim=True), x.argmin()), dtype, shape)


def test_positions_of_extremes_of_rows_are_computed_in_vectors() -> None:
    line = Line(lambda x: (x.argmax(-1), *x.min(-1)), torch.randn(20, 500))
    line.compile()
    assert "linalg." not in line.text("vectorize-generics")


def test_positions_of_maxima_are_computed_in_vectors() -> None:
    line = Line(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(2, 16, 24, 24))
    line.compile()
    # Columns of the border remain, one element in each line.
    left = [text for text in line.text("vectorize-generics").splitlines() if "linalg." in text]
    assert all("linalg.fill" in text and "x24x1xf32" in text for text in left)
