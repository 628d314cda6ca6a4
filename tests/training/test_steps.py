"""Twenty steps of Adam, compiled and in eager: losses and gradients agree, dropout and running statistics included."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from buddy.compiler.frontend import compiled_graph
from tests.support.tiers import sampled

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

F = nn.functional
STEPS = 20

# The two sides are never set to the same weights again, so that what the one does wrong adds up. Sums in another order
# differ by roundings of 6e-8 of their largest addend; Adam divides a gradient by its own size, so a weight moves by up
# to the learning rate, 1e-3, times the relative error of its gradient, and twenty such moves stay below 1e-5 of a loss
# of order 1. Gradients are measured by the largest one of the model: some, as those of attention's key biases, are
# zero in theory and nothing but roundings in practice.
LOSS, GRADIENT = 1e-5, 1e-4


class Training(NamedTuple):
    model: nn.Module
    batch: Callable[[], Any]
    loss: Callable[[Callable[..., Any], Any], torch.Tensor]


def bert() -> Training:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100,
        max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)

    def batch() -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.randint(100, (2, 8)),
            "attention_mask": (torch.arange(8) < torch.tensor([[8], [5]])).long(),
            "labels": torch.randint(2, (2,)),
        }

    return Training(model, batch, lambda run, x: run(**x).loss)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.side = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.side(x))


def resnet() -> Training:
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    model = nn.Sequential(stem, Residual(8, 8, 1), Residual(8, 16, 2), head)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(4, 3, 32, 32), torch.randint(5, (4,))

    return Training(model, batch, lambda run, x: F.cross_entropy(run(x[0]), x[1]))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.table(tokens))[0])


def lstm() -> Training:
    def loss(run: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(run(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return Training(Tagger(), lambda: torch.randint(20, (3, 7)), loss)


def trained(training: Training, run: Callable[..., Any]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss of each step, and all gradients of each step as one tensor."""
    torch.manual_seed(1)
    optimiser = torch.optim.Adam(training.model.parameters(), lr=1e-3)
    losses, gradients = [], []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = training.loss(run, training.batch())
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in training.model.parameters() if p.grad is not None]))
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses), gradients


@pytest.mark.filterwarnings("error:a graph of")
@pytest.mark.slow
@pytest.mark.parametrize(
    "make", sampled([bert, resnet, lstm], [resnet, lstm], "the longest of three models that train")
)
def test_steps_agree_with_eager(make: Callable[[], Training]) -> None:
    ours = make()
    theirs = ours._replace(model=copy.deepcopy(ours.model))
    known = set(compiled_graph._programs)
    # But for the draws of BERT's dropout, no node of these graphs stays in eager.
    options = {"fallback": "eager" if make is bert else "error", "fallback_random": True}
    with torch._dynamo.config.patch(allow_rnn=True):
        losses, gradients = trained(ours, torch.compile(ours.model, backend="buddy", options=options))
    assert len(set(compiled_graph._programs) - known) >= 2
    expected, slopes = trained(theirs, theirs.model)
    torch.testing.assert_close(losses, expected, atol=LOSS, rtol=LOSS)
    for mine, his in zip(gradients, slopes, strict=True):
        torch.testing.assert_close(mine, his, atol=GRADIENT * float(his.abs().max()), rtol=0)
    for mine, his in zip(ours.model.buffers(), theirs.model.buffers(), strict=True):
        torch.testing.assert_close(mine, his, atol=LOSS, rtol=LOSS)
