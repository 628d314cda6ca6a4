"""Random ops left in eager: from the same seed the same numbers as eager, in order, and the same stream behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

F = nn.functional
aten = torch.ops.aten
OWN_STREAM = {"fallback_random": True}
X = torch.linspace(0.05, 0.95, 24).reshape(4, 6)

DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rand": lambda x: torch.rand(3, 4) + x[0, 0],
    "randn": lambda x: torch.randn(5, 7) * x[0, 0],
    "randint": lambda x: torch.randint(3, 17, (6,)) + x[0, 0],
    "randint without a lower end": lambda x: torch.randint(9, (6,)) + x[0, 0],
    "randperm": lambda x: torch.randperm(11) + x[0, 0],
    "rand_like": lambda x: torch.rand_like(x) * 2,
    "randn_like": lambda x: torch.randn_like(x) * 2,
    "randint_like": lambda x: torch.randint_like(x, 2, 9) * 2,
    "bernoulli": lambda x: torch.bernoulli(x) + x,
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.3) + x,
    "bernoulli_ of tensors": lambda x: torch.zeros(4, 6).bernoulli_(x) + x,
    "normal of tensors": lambda x: torch.normal(x, x + 1) + x,
    "normal with a mean": lambda x: torch.normal(x, 2.0) + x,
    "normal with a deviation": lambda x: torch.normal(2.0, x) + x,
    "normal of numbers": lambda x: torch.normal(0.0, 2.0, (5, 3)) + x[0, 0],
    "multinomial": lambda x: torch.multinomial(x, 3) + x[:, :3],
    "multinomial with replacement": lambda x: torch.multinomial(x, 9, replacement=True) + x[0, 0],
    "poisson": lambda x: torch.poisson(x * 5) + x,
    "binomial": lambda x: torch.binomial(torch.full_like(x, 9), x) + x,
    "uniform_": lambda x: torch.empty(4, 6).uniform_(-1, 2) + x,
    "normal_": lambda x: torch.empty(4, 6).normal_(1, 2) + x,
    "exponential_": lambda x: torch.empty(4, 6).exponential_(2) + x,
    "geometric_": lambda x: torch.empty(4, 6).geometric_(0.4) + x,
    "log_normal_": lambda x: torch.empty(4, 6).log_normal_(0, 0.5) + x,
    "cauchy_": lambda x: torch.empty(4, 6).cauchy_() + x,
    "random_": lambda x: torch.empty(4, 6).random_() + x,
    "random_ between": lambda x: torch.empty(4, 6).random_(3, 90) + x,
    "dropout": lambda x: F.dropout(x + 1, 0.4) * 2,
    "dropout of everything": lambda x: F.dropout(x + 1, 1.0) * 2,
    "dropout of nothing": lambda x: F.dropout(x + 1, 0.0) * 2,
    "native_dropout": lambda x: aten.native_dropout(x + 1, 0.4, True),
    "native_dropout in evaluation": lambda x: aten.native_dropout(x + 1, 0.4, False),
    "dropout of features": lambda x: F.dropout2d(x.reshape(2, 3, 2, 2) + 1, 0.4) * 2,
    "alpha dropout": lambda x: F.alpha_dropout(x + 1, 0.4, training=True) * 2,
    "alpha dropout of features": lambda x: F.feature_alpha_dropout(x.reshape(2, 3, 4), 0.4, training=True) * 2,
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True) * 2,
    "rrelu in evaluation": lambda x: F.rrelu(x - 0.5) * 2,
    "gumbel softmax": lambda x: F.gumbel_softmax(x, hard=True) + x,
    "attention with dropout": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3) * 2,
    # The order in which a tensor that is not contiguous is filled is that of its memory.
    "rand_like of a transposed tensor": lambda x: torch.rand_like(x.t()) * 2,
    "randn_like of a transposed tensor": lambda x: torch.randn_like(x.t()) * 2,
    "dropout of a transposed tensor": lambda x: F.dropout((x + 1).t(), 0.4) * 2,
    "dropout of every other column": lambda x: F.dropout(x[:, ::2], 0.4) * 2,
    "bernoulli of a transposed tensor": lambda x: torch.bernoulli(x.t()) + x.t(),
    "normal of a transposed tensor": lambda x: torch.normal(x.t(), 2.0) + x.t(),
    "rrelu of a transposed tensor": lambda x: F.rrelu(x.t() - 0.5, training=True) * 2,
    "a draw that nobody reads": lambda x: (torch.rand(3), torch.rand(2) + x[0, 0])[1],
    "several in a row": lambda x: (
        torch.rand(2, 3) * x[0, 0], F.dropout(x, 0.5), torch.randn(4) + 1, torch.randperm(5), F.dropout(x.sin(), 0.2),
    ),
}  # fmt: skip


def drawn(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """The results from seed 7, and what the generator gives next."""
    torch.manual_seed(7)
    return function(*args), torch.rand(3)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_eagers(name: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a graph of")
        ours = drawn(torch.compile(DRAWS[name], backend="buddy", options=OWN_STREAM), X)
    torch.testing.assert_close(ours, drawn(DRAWS[name], X))


class Noisy(nn.Module):
    """Equal layers, each with two dropouts: functions of their own, called in the order that eager draws in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(*_layer()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def _layer() -> list[nn.Module]:
    return [nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 6), nn.Dropout(0.2)]


def test_gradients_through_dropout_in_repeated_layers() -> None:
    torch.manual_seed(0)
    model = Noisy()

    def gradients(run: Callable[..., Any]) -> list[torch.Tensor]:
        model.zero_grad()
        run(X).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    torch.testing.assert_close(
        drawn(lambda: gradients(torch.compile(model, backend="buddy", options=OWN_STREAM))),
        drawn(lambda: gradients(model)),
        # Gradients are sums of a few dozen products of order 1, added up in another order than eager's.
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip
