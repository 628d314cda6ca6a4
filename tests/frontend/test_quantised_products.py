"""Matrix products of quantised operands: compiled, or left to eager where the packed weights are a CPU's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)
from tests.frontend.test_decompositions import assert_same, compiled
from tests.programs import Line

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


class Int4Linear(torch.nn.Module):
    """A layer with 4-bit weights [n, k] in this CPU's order, and a scale and a zero for each group and column."""

    def __init__(self, n: int, k: int, group_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.group_size = group_size
        self.steps = integers(n, k, low=0, high=16, dtype=torch.int32)
        self.register_buffer("packed", aten._convert_weight_to_int4pack_for_cpu(self.steps, 1))
        self.register_buffer("parameters_of_groups", (numbers(k // group_size, n, 2) / 10).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group_size, self.parameters_of_groups)


@pytest.mark.parametrize(
    ("rows", "n", "dtype"), [(1, 64, torch.float32), (3, 128, torch.bfloat16), (9, 64, torch.float32)]
)
def test_frozen_int4_weights_are_unpacked_once(rows: int, n: int, dtype: torch.dtype) -> None:
    layer, x = Int4Linear(n, 128, 32, dtype).eval(), (numbers(rows, 128) - 0.5).to(dtype)
    frozen = torch.compile(layer, backend="buddy", options={"freeze": True, "fallback": "error"})
    with torch.no_grad():
        ours, eager = frozen(x), layer(x)
    torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)
    wide = layer.parameters_of_groups.float()
    scale, zero = (wide[..., i].t().repeat_interleave(32, 1) for i in range(2))
    exact = x.float() @ ((layer.steps - 8) * scale + zero).t()
    torch.testing.assert_close(
        ours, exact.to(dtype), **({} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-2})
    )


@pytest.mark.parametrize("call", PACKED, ids=lambda f: f.__name__)
def test_products_with_packed_int4_weights_are_left_to_eager(call: Callable[..., Any]) -> None:
    inputs = PACKED[call]
    torch.testing.assert_close(torch.compile(call, backend="buddy", fullgraph=True)(*inputs), call(*inputs))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"4.*would run in eager"):
        compiled(call, *inputs)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 7])
def test_weights_that_torchao_quantised_are_read_as_integers(rows: int, bits: int) -> None:
    """A layer's weight is a tensor of a class, whose parts are parameters like a plain weight."""
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    layer, x = torch.nn.Linear(256, 64).eval(), numbers(rows, 256) - 0.5
    if bits == 8:
        torchao.quantize_(layer, torchao.Int8WeightOnlyConfig())
    else:
        prototype = pytest.importorskip("torchao.prototype.quantization.int4", reason="torchao has no int4 for CPUs")
        torchao.quantize_(layer, prototype.PrototypeInt4WeightOnlyConfig(group_size=64))
    line = Line(layer, x)
    with torch.no_grad():
        (ours,) = line.run()
        calls = [text for text in line.text("contractions-to-kernels").splitlines() if "call @" in text]
        assert (bits == 4 and rows > 4) or any("xi8>" in call for call in calls), calls
        torch.testing.assert_close(ours, layer(x), **({} if bits == 8 else {"rtol": 2e-2, "atol": 2e-2}))
