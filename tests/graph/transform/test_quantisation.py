"""Products of dequantised integers on the integers: exactly integer arithmetic, and what is left with which reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)
from torch import nn

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.transform import integer_products
from buddy.compiler.protocol.presets import default_recipe
from tests.programs import Line, captured, without

QUANTISED = torch.ops.quantized_decomposed
X_SCALE, X_ZERO, W_SCALE = 0.02, 113, 0.01
GENERATOR = torch.Generator().manual_seed(7)


def integers(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, generator=GENERATOR).to(dtype)


def dequantise(q: torch.Tensor, scale: float = X_SCALE, zero: int = X_ZERO) -> torch.Tensor:
    info = torch.iinfo(q.dtype)
    return QUANTISED.dequantize_per_tensor.default(q, scale, zero, info.min, info.max, q.dtype)


def quantise(x: torch.Tensor, scale: float = X_SCALE, zero: int = X_ZERO) -> torch.Tensor:
    return QUANTISED.quantize_per_tensor.default(x, scale, zero, 0, 255, torch.uint8)


class Layer(nn.Module):
    """A quantised weight with a scale and a zero point for each output channel, or with `zero` for all of them."""

    def __init__(self, weight: torch.Tensor, zeros: torch.Tensor | None = None, zero: int = 0) -> None:
        super().__init__()
        channels, self.zero, self.per_channel = len(weight), zero, zeros is not None
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.rand(channels, generator=GENERATOR) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.full((channels,), zero) if zeros is None else zeros)
        self.register_buffer("bias", torch.randn(channels, generator=GENERATOR))

    def numbers(self) -> torch.Tensor:
        if not self.per_channel:
            return dequantise(self.weight, W_SCALE, self.zero)
        return QUANTISED.dequantize_per_channel.default(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)

    def scale(self) -> torch.Tensor:
        """The product of both scales, in single precision, by output channel."""
        return (self.scales if self.per_channel else torch.full_like(self.scales, W_SCALE)) * X_SCALE


class Linear(Layer):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return F.linear(dequantise(q), self.numbers(), self.bias)

    def reference(self, q: torch.Tensor) -> torch.Tensor:
        sums = (q.int() - X_ZERO) @ (self.weight.int() - self.zeros.int()[:, None]).t()
        return sums.float() * self.scale() + self.bias


class Convolution(Layer):
    options: ClassVar[dict[str, Any]] = {"stride": 2, "padding": 1}

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return F.conv2d(dequantise(q), self.numbers(), self.bias, **self.options)

    def reference(self, q: torch.Tensor) -> torch.Tensor:
        weight = self.weight - self.zeros[:, None, None, None]
        # Sums of these integers are exact in double precision.
        sums = F.conv2d((q.int() - X_ZERO).double(), weight.double(), **self.options)
        return sums.float() * self.scale()[:, None, None] + self.bias[:, None, None]


def assert_exact(layer: Linear | Convolution, q: torch.Tensor) -> None:
    line = Line(layer, q)
    (found,) = line.run()
    assert torch.equal(found, layer.reference(q))
    torch.testing.assert_close(found, layer(q), rtol=1e-5, atol=1e-4)


def zero_points(channels: int) -> dict[str, dict[str, Any]]:
    some = torch.randint(-5, 5, (channels,), generator=GENERATOR)
    return {
        "zeros": {"zeros": torch.zeros(channels, dtype=torch.int64)},
        "several": {"zeros": some},
        "one": {"zero": 7},
    }


@pytest.mark.parametrize("activations", [torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("points", ["zeros", "several", "one"])
def test_a_linear_layer_is_exactly_integer_arithmetic(points: str, activations: torch.dtype) -> None:
    layer = Linear(integers(24, 67), **zero_points(24)[points])
    assert_exact(layer, integers(5, 67, dtype=activations))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("points", ["zeros", "several", "one"])
def test_a_convolution_is_exactly_integer_arithmetic(points: str, groups: int) -> None:
    layer = Convolution(integers(12, 6 // groups, 3, 3), **zero_points(12)[points])
    layer.options = {**Convolution.options, "groups": groups}
    assert_exact(layer, integers(2, 6, 9, 9, dtype=torch.uint8))


def test_one_output_channel_has_a_scale_of_one_element() -> None:
    assert_exact(Convolution(integers(1, 4, 3, 3), torch.zeros(1, dtype=torch.int64)), integers(1, 4, 8, 8))


def rewritten(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Graph, list[str]]:
    graph = captured(function, *inputs).graph
    notes = [note.text for note in integer_products(graph)]
    graph.check()
    return graph, notes


def names(graph: Graph) -> list[str]:
    return [type(op).__name__ for op in graph.operations]


def test_what_lies_between_two_layers_is_computed_on_integers() -> None:
    """Quantising the maxima, the relu, the view and the concatenation of dequantised integers gives integers again."""
    layer = Linear(integers(8, 128), torch.zeros(8, dtype=torch.int64))

    def program(q: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([dequantise(q), dequantise(r)], 1)
        pooled = F.max_pool2d(torch.relu(joined), 2, padding=1)
        return layer(quantise(pooled).flatten(1))

    inputs = integers(3, 4, 6, 6, dtype=torch.uint8), integers(3, 4, 6, 6, dtype=torch.uint8)
    graph, _ = rewritten(program, *inputs)
    assert names(graph).count("CatOp") == 2  # of the tensors, and of the zero points
    assert {"MaxPool2dOp", "ClampOp", "ViewOp", "IntegerProductOp"} <= {*names(graph)}
    assert not {"MulOp", "RoundOp", "SubOp", "ReluOp"} & {*names(graph)}
    (found,) = Line(program, *inputs).run()
    (floats,) = Line(program, *inputs).run(without(default_recipe(), "integer-products"))
    torch.testing.assert_close(found, floats, rtol=1e-5, atol=1e-4)


def test_a_weight_scaled_per_channel_is_read_as_the_parameter_that_it_is() -> None:
    """The decomposition moves the channels to the front, where they are: a product of that is not of a parameter."""
    layer = Convolution(integers(12, 6, 3, 3), torch.zeros(12, dtype=torch.int64))
    graph, _ = rewritten(layer, integers(2, 6, 9, 9, dtype=torch.uint8))
    (product,) = [op for op in graph.operations if type(op).__name__ == "IntegerConvolutionOp"]
    assert product.args[1] in graph.placeholders
    assert "PermuteOp" not in names(graph)


def test_a_pool_of_a_convolution_pools_quantised_numbers() -> None:
    layer = Convolution(integers(8, 3, 3, 3), torch.zeros(8, dtype=torch.int64))

    def program(q: torch.Tensor) -> torch.Tensor:
        return quantise(F.max_pool2d(torch.relu(layer(q)), 3, 2, 1), 0.05, 3)

    q = integers(1, 3, 17, 17, dtype=torch.uint8)
    graph, notes = rewritten(program, q)
    assert names(graph)[-1] == "MaxPool2dOp"
    assert graph.operations[-1].args[0].tensor_meta.dtype.value == "ui8"
    assert any("pools what is quantised already" in note for note in notes)
    (found,) = Line(program, q).run()
    expected = quantise(F.max_pool2d(torch.relu(layer.reference(q)), 3, 2, 1), 0.05, 3)
    assert torch.equal(found, expected)


def test_zero_points_that_change_after_the_capture_are_noticed() -> None:
    """Compiled code asserts that they are still 0, and otherwise leaves the call to eager."""
    layer = Linear(integers(8, 16), torch.zeros(8, dtype=torch.int64))
    q = integers(4, 16, dtype=torch.uint8)
    compiled = torch.compile(layer, backend="buddy", options={"fallback": "error"})
    assert torch.equal(compiled(q), layer.reference(q))
    layer.zeros.fill_(3)
    assert torch.equal(compiled(q), layer(q))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda q, w: F.linear(dequantise(q), w.float()), "is not a dequantised tensor of 8-bit integers"),
        (lambda q, w: F.linear(dequantise(q, zero=1) * 2.0, dequantise(w)), "is not a dequantised tensor"),
        (lambda q, w: F.linear(dequantise(q), (w.float() - torch.ones(8, 1)) * torch.ones(8, 1)), "are floats"),
        (
            lambda q, w: F.linear(dequantise(q), w.float() * torch.ones(16)),
            "are not per column",
        ),
    ],
    ids=["float weights", "a second factor", "float zero points", "scales along the sum"],
)
def test_a_product_that_is_left_has_a_reason(program: Callable[..., Any], reason: str) -> None:
    graph, notes = rewritten(program, integers(4, 16, dtype=torch.uint8), integers(8, 16))
    assert any(note.startswith("left: ") and reason in note for note in notes)
    assert "IntegerProductOp" not in names(graph)


def test_sums_that_may_overflow_are_left() -> None:
    graph, notes = rewritten(
        lambda q, w: F.linear(dequantise(q), dequantise(w)), integers(1, 70000, dtype=torch.uint8), integers(2, 70000)
    )
    assert notes == ["left: it adds 70000 products, whose sum may overflow 32 bits"]
    assert "IntegerProductOp" not in names(graph)


def test_assignments_name_the_integers() -> None:
    layer = Linear(integers(8, 16), torch.zeros(8, dtype=torch.int64))
    compilation = Line(layer, integers(4, 16, dtype=torch.uint8)).compile()
    by_node = {assignment.node: assignment.integers for assignment in compilation.assignments}
    assert by_node["addmm.0"] == "int8"
    assert [integers for integers in by_node.values() if integers] == ["int8"]
    assert not compilation.artifact.precisions
