"""Cheap values are computed again in the backward graph instead of being saved, and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend.capture import capture
from tests.programs import assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

# The tensors are just large enough to be recomputed.
ROWS, WIDTH = 128, 128


class Saved:
    """What a program saves for its backward pass, after a check that results and gradients are eager's."""

    def __init__(self, model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
        assert_same(_step(torch.compile(model, backend="buddy", options={"fallback": "error"}), x), _step(model, x))
        torch._dynamo.reset()
        forward, backward = (graph.info.rows for graph in capture(model, (x,), grad=True))
        self.saved = [node.target for node in forward if node.training == "saved"]
        self.recomputed = [node.target for node in backward if node.training == "recomputed"]


def _step(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    leaf = x.detach().clone().requires_grad_()
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    result = model(leaf)
    return [result, *torch.autograd.grad(result.square().mean(), [leaf, *parameters])]


def _layers(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), activation, nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize("activation", [nn.GELU(), nn.SiLU(), nn.Tanh()], ids=["gelu", "silu", "tanh"])
def test_an_activation_of_a_saved_product_is_not_saved(activation: nn.Module) -> None:
    saved = Saved(_layers(activation), torch.randn(ROWS, WIDTH))
    names = {"GELU": "gelu", "SiLU": "silu", "Tanh": "tanh"}
    name = names[type(activation).__name__]
    # The gradient of tanh needs its result alone, so that the product would have to be saved in its place.
    is_recomputed = name != "tanh"
    assert any(name in op for op in saved.recomputed) == is_recomputed
    assert any(name in op for op in saved.saved) != is_recomputed


def test_normalised_channels_are_computed_from_the_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    saved = Saved(model, torch.randn(4, 3, 34, 34))
    assert any("relu" in op for op in saved.recomputed)
    assert not any("relu" in op for op in saved.saved)


def test_expensive_ops_are_not_repeated() -> None:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    graphs = capture(lambda x: second(torch.lgamma(first(x))), (torch.randn(ROWS, WIDTH),), grad=True)
    assert not [node.target for node in graphs[1].info.rows if node.training == "recomputed"]


def test_small_tensors_are_saved() -> None:
    saved = Saved(_layers(nn.GELU()), torch.randn(4, WIDTH))
    assert any("gelu" in op for op in saved.saved)
    assert not saved.recomputed


def test_a_residual_sum_is_saved_if_the_value_before_is_computed_again() -> None:
    """Otherwise the backward pass would compute the first layer before it needs it, and keep it."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + nn.functional.gelu(layer(x))
            return x

    saved = Saved(Residual(), torch.randn(ROWS, WIDTH))
    assert sum("gelu" in op for op in saved.recomputed) == 1
    assert sum("add.Tensor" in op for op in saved.saved) == 1


def test_random_numbers_are_not_drawn_again() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    graphs = capture(model, (torch.randn(ROWS, WIDTH),), grad=True)
    recomputed = [node.target for node in graphs[1].info.rows if node.training == "recomputed"]
    assert not any("rand" in op or "dropout" in op for op in recomputed)


def test_a_result_of_the_program_is_not_computed_again() -> None:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def both(x: torch.Tensor) -> Any:
        hidden = nn.functional.gelu(first(x))
        return hidden, second(hidden)

    graphs = capture(both, (torch.randn(ROWS, WIDTH),), grad=True)
    assert not [node.target for node in graphs[1].info.rows if node.training == "recomputed"]


def test_a_bias_may_change_before_the_backward_pass() -> None:
    """Eager does not save the bias of a normalisation, which recomputation reads: the program may write to it."""
    norm = nn.BatchNorm2d(8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), norm, nn.ReLU(), nn.Conv2d(8, 4, 1))
    x, gradients = torch.randn(4, 3, 34, 34), []
    for call in (model, torch.compile(model, backend="buddy", options={"fallback": "error"})):
        model.zero_grad()
        norm.bias.data.fill_(0.25)
        result = call(x)
        with torch.no_grad():
            norm.bias.add_(1)
        result.square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)
