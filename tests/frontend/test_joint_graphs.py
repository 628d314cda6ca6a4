"""Tests the rewrites of joint graphs, before they are split into a forward and a backward graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from buddy.compiler.frontend import aten, joint_graphs


class TiedLayers(nn.Module):
    """A language model of one embedding, whose weight is also the projection's, so that two gradients are added."""

    def __init__(self, dtype: torch.dtype, more_embeddings: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 16, padding_idx=3, dtype=dtype)
        self.more_embeddings = more_embeddings

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens).sin()
        if self.more_embeddings:
            x = x * self.table(tokens.flip(0))
        return F.cross_entropy((x @ self.table.weight.T).flatten(0, 1), tokens.flatten())


def backward_targets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which each later partition adds the ops of the backward graph."""
    targets = list[str]()
    partition = joint_graphs.partition

    def record(*args: object, **options: object) -> object:
        parts = partition(*args, **options)  # type: ignore[arg-type]
        targets.extend(str(node.target) for node in parts[1].graph.nodes)
        return parts

    monkeypatch.setattr(aten.joint_graphs, "partition", record)
    return targets


@pytest.mark.parametrize("more_embeddings", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_embeddings_gradient_is_added_to_the_projections(
    dtype: torch.dtype, more_embeddings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = backward_targets(monkeypatch)
    tokens = torch.tensor([[3, 7, 7, 49], [0, 7, 3, 1]])
    eager, model = (TiedLayers(dtype, more_embeddings) for _ in range(2))
    eager(tokens).backward()
    torch.compile(model, backend="buddy")(tokens).backward()
    # Sums of up to nine terms in another order, each rounded to the dtype.
    torch.testing.assert_close(
        model.table.weight.grad, eager.table.weight.grad, rtol=9 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps
    )
    scatters = targets.count("aten.index_put.default")
    assert scatters == 1 + more_embeddings
    # In 16 bits, sums in another order would be rounded otherwise than in eager.
    assert targets.count("aten.full.default") == (0 if dtype is not torch.bfloat16 else scatters)
