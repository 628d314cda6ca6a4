"""Mixtures of experts: transformers' grouped products, through an op of its own, are compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)

pytest.importorskip("transformers", reason="pip install transformers")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("rows", "ends"), [(10, (4, 4, 10)), (70, (1, 40, 69)), (64, (64, 64, 64)), (3, (0, 1, 3)), (33, (0, 0, 0))]
)
def test_groups_of_rows_are_multiplied_by_their_matrices(rows: int, ends: tuple[int, ...]) -> None:
    import transformers.integrations.moe  # noqa: F401  (defines the op)

    def call(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(x, w, ends)

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(rows, 24, generator=generator), torch.randn(3, 24, 40, generator=generator)
    inputs = x, w, torch.tensor(ends, dtype=torch.int32)
    torch._dynamo.reset()
    run = torch.compile(call, backend="buddy", fullgraph=True, options={"fallback": "error"})
    # Sums of 24 products in another order.
    torch.testing.assert_close(run(*inputs), call(*inputs), rtol=1e-5, atol=1e-5)


def test_a_model_of_experts_is_compiled_whole() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = MixtralConfig(
        vocab_size=64, num_hidden_layers=2, num_local_experts=4, use_cache=False, head_dim=8, **sizes
    )
    model, words = MixtralForCausalLM(config).eval(), torch.arange(12)[None]
    torch._dynamo.reset()
    with torch.no_grad():
        run = torch.compile(model, backend="buddy", fullgraph=True, options={"fallback": "error"})
        # Two layers in another order of sums.
        torch.testing.assert_close(run(words).logits, model(words).logits, rtol=1e-4, atol=1e-5)
