"""Ops on quantised numbers against eager, bit for bit: `fake_quantize_*` and those of `quantized_decomposed`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end and defines quantized_decomposed)
from tests.frontend.test_decompositions import assert_same, compiled, steps
from tests.support.tiers import sampled

ops = torch.ops.quantized_decomposed
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
WHY = "all pairs of element types"
SCALES = torch.tensor([0.03, 0.1, 0.13, 0.3, 0.37, 0.5, 0.61, 0.7])
ZEROS = torch.arange(-4, 4)


def bounds(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def integers(dtype: torch.dtype) -> torch.Tensor:
    """8 channels of 8 that span the type, its bounds among them."""
    low, high = bounds(dtype)
    return torch.linspace(low, high, 64, dtype=torch.float64).to(torch.int64).clamp(low, high).to(dtype).reshape(8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(INTEGERS, [torch.int8], WHY), ids=str)
@pytest.mark.parametrize("given", sampled(FLOATS, [torch.float32], WHY), ids=str)
def test_quantised_as_in_eager(given: torch.dtype, dtype: torch.dtype) -> None:
    low, high = bounds(dtype)

    def call(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *ends: torch.Tensor) -> list[torch.Tensor]:
        return [
            ops.quantize_per_tensor(x, 0.1, 3, low, high, dtype),
            ops.quantize_per_tensor(x, 0.013, 7, 0, 100, dtype),
            ops.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype),
            ops.quantize_per_tensor.tensor(x, scale.double(), zero.to(torch.int32), low, high, dtype),
            ops.quantize_per_tensor.tensor2(x, scale, zero, *ends, dtype),
            ops.quantize_per_channel(x, SCALES, ZEROS, 0, low, high, dtype),
            ops.quantize_per_channel(x, SCALES.double(), ZEROS, -1, low, high, dtype),
            ops.quantize_per_token(x, SCALES[:, None], ZEROS[:, None], low, high, dtype),
            ops.quantize_per_token(x, SCALES[:, None].double(), ZEROS[:, None], low, high, dtype),
        ]

    inputs = (steps(given).reshape(8, 8), torch.tensor(0.1), torch.tensor(3), torch.tensor(low), torch.tensor(high))
    assert_same(compiled(call, *inputs), call(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(INTEGERS, [torch.uint8], WHY), ids=str)
@pytest.mark.parametrize("wanted", sampled([None, *FLOATS], [None], WHY), ids=str)
def test_dequantised_as_in_eager(wanted: torch.dtype | None, dtype: torch.dtype) -> None:
    low, high = bounds(dtype)
    number = wanted or torch.float32

    def call(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, *ends: torch.Tensor) -> list[torch.Tensor]:
        rows, groups = (
            (SCALES[:, None], ZEROS[:, None]),
            (SCALES.repeat(2).reshape(8, 2), ZEROS.repeat(2).reshape(8, 2)),
        )
        return [
            ops.dequantize_per_tensor(q, 0.1, 3, low, high, dtype, out_dtype=wanted),
            ops.dequantize_per_tensor.tensor(q, scale, zero, low, high, dtype, out_dtype=wanted),
            ops.dequantize_per_tensor.tensor(q, scale.double(), zero.float(), low, high, dtype, out_dtype=wanted),
            ops.dequantize_per_tensor.tensor2(q, scale, zero, *ends, dtype, out_dtype=wanted),
            ops.dequantize_per_channel(q, SCALES, ZEROS, 1, low, high, dtype, out_dtype=wanted),
            ops.dequantize_per_channel(q, SCALES.double(), None, 0, low, high, dtype, out_dtype=wanted),
            ops.dequantize_per_token(q, *rows, low, high, dtype, number),
            ops.dequantize_per_token(q, rows[0].double(), rows[1], low, high, dtype, number),
            ops.dequantize_per_channel_group(q, *groups, low, high, dtype, 4, number),
            ops.dequantize_per_channel_group(q, groups[0], None, low, high, dtype, 4, number),
        ]

    inputs = (integers(dtype), torch.tensor([0.013]), torch.tensor([3]), torch.tensor(low), torch.tensor(high))
    assert_same(compiled(call, *inputs), call(*inputs))


def chosen(x: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for dtype in (torch.int8, torch.uint8):
        found += ops.choose_qparams.tensor(x, *bounds(dtype), 1e-6, dtype)
        found += ops.choose_qparams_symmetric.tensor(x, *bounds(dtype), 1e-6, dtype)
    found += ops.choose_qparams_per_token(x, torch.int8)
    found += ops.choose_qparams_per_token_asymmetric(x, torch.int8)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_parameters_are_chosen_as_in_eager(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for x in (torch.randn(4, 6, generator=generator) * 3, torch.rand(4, 6, generator=generator) + 2, torch.zeros(4, 6)):
        assert_same(compiled(chosen, x.to(dtype)), chosen(x.to(dtype)))


def test_a_dynamically_quantised_value_is_that_of_eager() -> None:
    """Parameters that are computed in the graph and read by the variants that take tensors."""

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        scale, zero = ops.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        q = ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return [q, ops.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)]

    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    assert_same(compiled(call, x), call(x))


def by_group(x: torch.Tensor) -> torch.Tensor:
    scales, zeros = SCALES.repeat(2).reshape(8, 2), ZEROS.repeat(2).reshape(8, 2)
    return ops.quantize_per_channel_group(x, scales, zeros, -8, 7, torch.int8, 4)


def test_groups_of_a_channel_are_quantised_as_in_eager() -> None:
    x = steps(torch.float32).reshape(8, 8).nan_to_num(0.0)
    assert_same(compiled(by_group, x), by_group(x))


def test_groups_with_nan_are_refused_in_the_words_of_eager() -> None:
    with pytest.raises(AssertionError, match="to_quant must not contain NaNs"):
        compiled(by_group, torch.full((8, 8), float("nan")))


def test_an_element_type_is_converted_as_in_eager() -> None:
    call = lambda x: ops.convert_element_type.no_fuse(x, torch.float16)  # noqa: E731
    assert_same(compiled(call, steps(torch.float32)), call(steps(torch.float32)))


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradient(call: Callable[..., Any]) -> torch.Tensor:
    x = steps(torch.float32).reshape(8, 8).requires_grad_()
    call(x).backward(torch.arange(64.0).reshape(8, 8))
    assert x.grad is not None
    return x.grad


FAKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "per channel": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS.to(torch.int32), 1, -128, 127),
    "by tensors": lambda x: torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(0.1), torch.tensor(3, dtype=torch.int32), -128, 127
    ),
    "decomposed": lambda x: ops.fake_quant_per_channel(x, SCALES, ZEROS, 0, -128, 127),
}


@pytest.mark.parametrize("form", FAKE)
def test_fake_quantisation_and_its_gradient_are_those_of_eager(form: str) -> None:
    x = steps(torch.float32).reshape(8, 8)
    assert_same(compiled(FAKE[form], x), FAKE[form](x))
    assert_same(gradient(partial(compiled, FAKE[form])), gradient(FAKE[form]))
