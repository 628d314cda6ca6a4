"""What a compiled forward graph saves for its backward graph: tensors rather than views of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._functorch import partitioners

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from tests.programs import assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def saved_strides(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes and strides of what is saved, after a check that results and gradients are eager's."""
    found = []
    partition = partitioners.default_partition

    def record(*args: object, **options: object) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward, backward = partition(*args, **options)
        values = [n.meta["val"] for n in backward.graph.nodes if n.op == "placeholder" and "tangents" not in n.name]
        found.extend((tuple(value.shape), value.stride()) for value in values)
        return forward, backward

    monkeypatch.setattr(partitioners, "default_partition", record)
    compiled = torch.compile(function, backend="buddy", dynamic=False, options={"fallback": "error"})
    assert_same(_step(compiled, inputs), _step(function, inputs))
    return found


def _step(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*copies)
    return [result, *torch.autograd.grad(result, copies, torch.linspace(0.5, 2, result.numel()).reshape(result.shape))]


def test_weights_are_saved_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = saved_strides(monkeypatch, lambda x, w: torch.relu(x @ w.T), torch.randn(4, 8), torch.randn(6, 8))
    assert sorted(found) == [((4, 6), (6, 1)), ((4, 8), (8, 1)), ((6, 8), (8, 1))]


def test_parts_that_are_all_read_are_saved_as_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.exp().split(4, -1)
        return first * second

    assert set(saved_strides(monkeypatch, gated, torch.randn(3, 8))) == {((3, 8), (8, 1))}


def test_a_part_of_a_larger_tensor_is_saved_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def squared(x: torch.Tensor) -> torch.Tensor:
        return (x + 1)[:, :2].square()

    ((shape, _),) = saved_strides(monkeypatch, squared, torch.randn(3, 8))
    assert shape == (3, 2)


def test_values_with_other_strides_are_saved_row_major(monkeypatch: pytest.MonkeyPatch) -> None:
    found = saved_strides(monkeypatch, lambda x: x.mT.exp().sin(), torch.randn(2, 3, 4))
    assert found == [((2, 4, 3), (12, 3, 1))]


def test_a_saved_value_that_the_program_returns_keeps_its_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    found = saved_strides(monkeypatch, lambda x: x.mT.exp(), torch.randn(2, 3, 4))
    assert found == [((2, 4, 3), (12, 1, 4))]


def test_backward_graphs_that_read_row_major_tensors_also_run_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def heads(x: torch.Tensor) -> torch.Tensor:
        # The exponential's gradient has the strides of its saved result, and the backward graph views it as [3, 8].
        return x.view(3, 4, 2).transpose(0, 1).exp().sum()

    x = torch.randn(3, 8)
    assert ((4, 3, 2), (6, 2, 1)) in saved_strides(monkeypatch, heads, x)
    graphs = capture(heads, (x.requires_grad_(),), grad=True)
    for graph in graphs:
        program = LoadedProgram(compile_graph(graph.graph, default_recipe()))
        assert_same(program(graph.tensors), graph.eager(graph.tensors))
    assert [graph.info.name for graph in graphs] == ["heads", "heads (backward)"]


class _SavedGradient(torch.autograd.Function):
    """A product with a transposed exponential, which is saved and returned as a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale = x.mT.exp()
        ctx.save_for_backward(scale)
        return (scale * y).sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[None, torch.Tensor]:
        (scale,) = ctx.saved_tensors
        return None, scale.mT.mT


def test_a_saved_value_that_is_a_gradient_keeps_its_strides() -> None:
    inputs = [torch.randn(3, 4), torch.randn(4, 3, requires_grad=True)]
    compiled = torch.compile(_SavedGradient.apply, backend="buddy", dynamic=False, options={"fallback": "error"})
    expected, found = (torch.autograd.grad(f(*inputs), inputs[1]) for f in (_SavedGradient.apply, compiled))
    assert_same(found, expected)
    assert [g.stride() for g in found] == [g.stride() for g in expected] == [(1, 4)]
