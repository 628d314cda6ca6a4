"""The reference of weights in fewer bits is eager with the matrices that a side multiplies by."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.tools.bench import errors
from buddy.compiler.tools.bench.plan import BenchPrecision
from buddy.compiler.tools.bench.subjects import LoadedModel


class Tied(torch.nn.Module):
    """An embedding whose weights are also those of the last layer, which is square if transposed weights are tried."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.up = torch.nn.Embedding(256, 256), torch.nn.Linear(256, 128)
        self.down, self.head = torch.nn.Linear(128, 256), torch.nn.Linear(256, 256, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.table(words)
        output: torch.Tensor = self.head(hidden + self.down(torch.relu(self.up(hidden))))
        return output


@pytest.fixture
def tied() -> LoadedModel:
    return LoadedModel(Tied().eval(), (((torch.arange(6),), {}),))


@pytest.mark.parametrize(("precision", "least", "largest"), [("int8-weights", 3e-3, 1e-2), ("int4-weights", 7e-2, 0.2)])
def test_rounded_matrices_are_those_of_the_option(precision: BenchPrecision, least: float, largest: float) -> None:
    layer = torch.nn.Linear(256, 8)
    (matrix,) = errors.round_weights(torch.nn.Sequential(layer), precision)
    assert least < (matrix - layer.weight).norm() / layer.weight.norm() < largest
    scales = matrix.reshape(8, -1, 128 if precision == "int4-weights" else 256).abs().amax(2, keepdim=True)
    steps = matrix.reshape(8, scales.shape[1], -1) / scales * (7 if precision == "int4-weights" else 127)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)


def test_groups_that_do_not_divide_the_depth_are_not_rounded() -> None:
    layer = torch.nn.Linear(200, 8)
    assert torch.equal(errors.round_weights(torch.nn.Sequential(layer), "int4-weights")[0], layer.weight)


def test_each_layer_has_the_matrix_that_is_nearest_to_its_weights(tied: LoadedModel) -> None:
    """In any order, and transposed; the embedding keeps its own weights, although a layer shares them."""
    model = tied.model
    assert isinstance(model, Tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    up, down, head = errors.round_weights(model, "int4-weights")
    (found,) = errors.results_with_weights(tied, [head.t(), torch.ones(256, 256), down, up.t()])
    with torch.no_grad():
        hidden = model.table(torch.arange(6))
        inner = torch.relu(torch.nn.functional.linear(hidden, up, model.up.bias))
        expected = (hidden + torch.nn.functional.linear(inner, down, model.down.bias)) @ head.t()
    torch.testing.assert_close(found, expected)
    assert (found - model(torch.arange(6))).norm() > 0.02 * found.norm()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_matrices_of_other_weights_are_not_used(tied: LoadedModel) -> None:
    """A side whose matrices are wrong is then compared with float32, from which it differs."""
    (found,) = errors.results_with_weights(tied, [torch.ones(128, 256), torch.ones(256, 256)])
    torch.testing.assert_close(found, tied.results()[0])
