"""Matrix products of quantised operands: compiled, or left to eager where the packed weights are a CPU's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)
from tests.frontend.test_decompositions import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(2)


def integers(*shape: int, low: int = -128, high: int = 128, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=GENERATOR).to(dtype)


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=GENERATOR)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_product_with_int8_weights_is_that_of_eager(dtype: torch.dtype) -> None:
    x, weight, scales = numbers(5, 64).to(dtype) - 0.5, integers(8, 64), numbers(8).to(dtype)
    call = torch._weight_int8pack_mm
    torch.testing.assert_close(compiled(lambda *given: call(*given), x, weight, scales), call(x, weight, scales))


def test_int8_weights_of_a_width_that_eager_reads_past_are_compiled() -> None:
    """The op of eager reads blocks of 16 bfloat16 beyond the end of a row of 24; it must not be called for its form."""
    x, weight, scales = numbers(4, 24).bfloat16(), integers(8, 24), numbers(8).bfloat16()
    found = compiled(lambda *given: torch._weight_int8pack_mm(*given), x, weight, scales)
    torch.testing.assert_close(found, (x.float() @ weight.float().t() * scales.float()).bfloat16())


def test_a_quantised_linear_layer_by_an_integer_product_is_exact() -> None:
    """The ops that a dynamically quantised layer becomes: parameters by row, rounding, integer product, scales."""

    def call(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        scale = (x.abs().amax(-1, keepdim=True) / 127.5).clamp(min=1e-6)
        steps = torch.clamp(torch.round(x * (1.0 / scale)), -128, 127).to(torch.int8)
        return torch._int_mm(steps, weight.t()).to(torch.float32) * scale * scales

    inputs = numbers(20, 64) - 0.5, integers(32, 64), numbers(32)
    assert_same(compiled(call, *inputs), call(*inputs))


def int4(x: torch.Tensor, weight: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    packed = aten._convert_weight_to_int4pack_for_cpu(weight, 1)
    return aten._weight_int4pack_mm_for_cpu(x.sin(), packed, 32, parameters).exp()


def dynamic_int4(x: torch.Tensor, weight: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    packed = aten._dyn_quant_pack_4bit_weight(weight, parameters, None, 32, 64, 32)
    return aten._dyn_quant_matmul_4bit(x.sin(), packed, 32, 64, 32).exp()


PACKED: dict[Callable[..., Any], tuple[torch.Tensor, ...]] = {
    int4: (
        numbers(4, 64).bfloat16(),
        integers(64, 64, low=0, high=16, dtype=torch.int32),
        numbers(2, 64, 2).bfloat16(),
    ),
    dynamic_int4: (numbers(4, 64), integers(32, 32, low=0, high=256, dtype=torch.uint8), numbers(32, 2) / 100),
}


@pytest.mark.parametrize("call", PACKED, ids=lambda f: f.__name__)
def test_products_with_packed_int4_weights_are_left_to_eager(call: Callable[..., Any]) -> None:
    inputs = PACKED[call]
    torch.testing.assert_close(torch.compile(call, backend="buddy", fullgraph=True)(*inputs), call(*inputs))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"4.*would run in eager"):
        compiled(call, *inputs)
