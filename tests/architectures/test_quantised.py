"""Quantised models against eager. The whole ones are `python -m tests.architectures.quantised`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("torchao")
pytest.importorskip("transformers")

from tests.architectures.quantised import CLOSE, EXACT, METHODS, MODELS, Measured, measure, quantised
from tests.models import Block

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.slow]


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_block_is_that_of_eager(method: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(32), nn.Linear(32, 8)).eval(), torch.randn(4, 32)
    with torch.no_grad():
        module = METHODS[method](model, (x,))
    measured = measure(module, (x,), further=True)
    assert measured.is_right
    assert measured.float_ops_in_eager <= EXACT


@pytest.mark.full("whole architectures in miniature")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_quantised_architecture_is_that_of_eager(model: str, method: str) -> None:
    assert measure(*quantised(model, method, tiny=True)).is_right


def test_a_difference_that_eager_does_not_have_is_called_wrong() -> None:
    assert Measured(CLOSE / 2).is_right
    assert Measured(0.02, 0.0, 0.02).is_right
    assert not Measured(0.02, 0.0, 0.001).is_right
    assert not Measured(0.02, 0.01, 0.02).is_right
