"""Eight-bit floats: every code, every rounding, and what moves or multiplies them, bit for bit as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)

TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
WIDER = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def compiled(call: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, backend="buddy", fullgraph=True, options={"fallback": "error"})(*inputs)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    numbers = torch.where(expected.isnan(), found.isnan(), found == expected) if expected.itemsize > 1 else None
    if numbers is not None:
        assert numbers.all()
        assert (torch.signbit(found) == torch.signbit(expected)).logical_or(expected.isnan()).all()
    else:
        assert found.contiguous().view(torch.uint8).equal(expected.contiguous().view(torch.uint8))


def numbers_around_all_codes(dtype: torch.dtype) -> torch.Tensor:
    """Every number of `dtype`, those halfway between neighbours, and the float32 on both sides of each."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).float()
    known = codes[codes.isfinite()].unique()
    near = torch.cat([known, (known[1:] + known[:-1]) / 2, known * 1.1, known * 4])
    sides = [near, torch.nextafter(near, torch.tensor(torch.inf)), torch.nextafter(near, torch.tensor(-torch.inf))]
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 3e38, -3e38, 1e-40, -1e-40])
    return torch.cat([*sides, special])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_code_is_the_number_that_it_is_in_eager(dtype: torch.dtype) -> None:
    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [*(x.to(wide) for wide in WIDER), x.to(torch.bool)]

    x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    for found, expected in zip(compiled(call, x), call(x), strict=True):
        assert_same_bits(found.double(), expected.double())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_are_rounded_as_in_eager(dtype: torch.dtype) -> None:
    def call(*given: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(dtype) for x in given]

    x = numbers_around_all_codes(dtype)
    inputs = [x, x.double(), x.half(), x.bfloat16(), torch.arange(-300, 300), x > 0]
    for found, expected in zip(compiled(call, *inputs), call(*inputs), strict=True):
        assert_same_bits(found, expected)


def moved(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        x.t(), x[1:, ::2], x.reshape(3, 8), torch.cat([x, x]), x.flip(0), x[torch.tensor([2, 0])], x.clone(),
        x.view(torch.uint8), x.to(torch.float8_e5m2), torch.full_like(x, 0.3), torch.zeros_like(x),
        x[None].expand(3, 4, 6),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES[:3], ids=str)
def test_what_only_moves_numbers_takes_them_too(dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 24).reshape(4, 6).to(dtype)
    for found, expected in zip(compiled(moved, x), moved(x), strict=True):
        assert_same_bits(found, expected)


def test_weights_of_eight_bits_are_converted_where_they_are_multiplied() -> None:
    x, w = torch.randn(8, 64), torch.randn(32, 64).to(torch.float8_e4m3fn)
    found = compiled(lambda x, w: torch.nn.functional.linear(x, w.to(x.dtype)), x, w)
    # Sums of 64 products in another order.
    torch.testing.assert_close(found, x @ w.float().t(), rtol=1e-5, atol=1e-5)


SCALED: list[dict[str, Any]] = [
    {"out_dtype": torch.float32}, {"out_dtype": torch.float32, "bias": torch.linspace(-1, 1, 16)},
    {"out_dtype": torch.float8_e4m3fn}, {}, {"scale_result": torch.tensor(4.0)},
    {"out_dtype": torch.float8_e5m2, "scale_result": torch.tensor(4.0)},
    {"out_dtype": torch.float32, "scale_result": torch.tensor(4.0)},
]  # fmt: skip


@pytest.mark.parametrize("by_row", [False, True])
def test_scaled_products_are_those_of_eager(by_row: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(16, 32, generator=generator).to(torch.float8_e4m3fn)
    b = torch.randn(16, 32, generator=generator).to(torch.float8_e5m2)
    scales = torch.tensor(2.0), torch.tensor(0.5)
    forms = SCALED
    if by_row:
        scales, forms = (
            (torch.linspace(1, 2, 16)[:, None], torch.linspace(1, 3, 16)[None]),
            [{"out_dtype": torch.bfloat16}],
        )

    def call(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [torch._scaled_mm(a, b.t(), *scales, **form) for form in forms]

    for found, expected in zip(compiled(call, a, b), call(a, b), strict=True):
        assert found.dtype == expected.dtype
        # Sums in another order, then rounded: float8_e5m2 has 2 bits behind the first, bfloat16 has 7.
        bound = {1: 2.0**-2, 2: 2.0**-7, 4: 1e-5}[found.itemsize]
        torch.testing.assert_close(found.float(), expected.float(), rtol=bound, atol=bound)
