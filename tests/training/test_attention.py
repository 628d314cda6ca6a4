"""Attention that eager computes in one opaque op is compiled, gradients included, and eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

attend = torch.nn.functional.scaled_dot_product_attention
MASK = torch.zeros(5, 7).masked_fill(torch.arange(7) > torch.arange(5)[:, None] + 2, -torch.inf)


def inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 3, tokens, 4, requires_grad=True) for tokens in (5, 7, 7)]


def everything(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention in all its forms, each with a weight of its own."""
    found = [
        attend(query, key, value),
        attend(query, key, value, scale=0.3),
        attend(query, key, value, attn_mask=MASK),
        attend(query, key, value, attn_mask=MASK > -1),
        attend(key, key, value, is_causal=True)[:, :, :5],
    ]
    return torch.stack([(i + 1) * t.sin() for i, t in enumerate(found)])


def gradients(function: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
    result = function(*given)
    return list(torch.autograd.grad(result, given, torch.linspace(-1, 1, result.numel()).reshape(result.shape)))


def test_gradients_are_eagers() -> None:
    given = inputs()
    ours = gradients(torch.compile(everything, backend="buddy"), given)
    # Sums of some 35 products of order 10, in another order: a few hundred roundings of 6e-8 at most.
    for mine, theirs in zip(ours, gradients(everything, given), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_nothing_of_them_stays_in_eager() -> None:
    found = capture(everything, inputs(), grad=True)
    assert [graph.info.name for graph in found] == ["everything", "everything (backward)"]
    assigned = (Compiler(graph.graph).assignments(default_recipe()) for graph in found)
    assert [a for a in itertools.chain(*assigned) if a.lowering == EAGER] == []


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_the_fused_layer_of_evaluation_is_compiled(options: dict[str, Any]) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, **options).eval()
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        ours = torch.compile(layer, backend="buddy", options={"fallback": "error"})(x)
        torch.testing.assert_close(ours, layer(x), atol=1e-5, rtol=1e-5)  # a layer norm of sums in another order
