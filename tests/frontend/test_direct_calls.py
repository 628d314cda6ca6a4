"""Which calls of `torch.compile`d graphs leave AOTAutograd's function out, and that all of them are right."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend.backend import buddy_backend
from buddy.compiler.runtime.native_calls import native_call_problem, native_function_address

pytestmark = pytest.mark.skipif(
    not native_function_address(), reason=f"calls go through Python: {native_call_problem()}"
)


def _compile(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """The compiled function, and what Dynamo calls for each of its graphs."""
    called: list[Callable[..., Any]] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        called.append(buddy_backend(module, inputs, options=options))
        return called[-1]

    torch._dynamo.reset()
    return torch.compile(function, backend=backend, dynamic=False), called


def _is_direct(called: list[Callable[..., Any]]) -> bool:
    (call,) = called
    return isinstance(call, BuiltinFunctionType)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inference_is_called_directly(context: Callable[[], Any]) -> None:
    model, values = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 8)
    compiled, called = _compile(model)
    with context():
        for _ in range(3):
            torch.testing.assert_close(compiled(values), model(values))
    assert _is_direct(called)


def test_weights_that_change_in_place_or_are_replaced_are_read() -> None:
    model, values = nn.Linear(8, 3), torch.randn(4, 8)
    compiled, called = _compile(model)
    with torch.no_grad():
        compiled(values)
        model.weight.mul_(2)
        torch.testing.assert_close(compiled(values), model(values))
        model.weight.data = torch.randn(3, 8)
        torch.testing.assert_close(compiled(values), model(values))
        model.weight.data = torch.randn(8, 3).t()
        torch.testing.assert_close(compiled(values), model(values))
    assert isinstance(called[0], BuiltinFunctionType)


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _shared_memory(tensors: list[torch.Tensor]) -> list[list[bool]]:
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[a == b for a in addresses] for b in addresses]


def _writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        _writes,
        lambda x: (x, x + 1),
        lambda x: x.t(),
        lambda x: (x + 1).t(),
        lambda x: [y := x + 1, y[0]],
        lambda x: (x + 1, x.exp(), x + 1),
        lambda x: torch.rand_like(x) * 0,
    ],
    ids=["input written", "input returned", "view of input", "view", "view of result", "repeated", "random"],
)
def test_results_and_their_memory_are_eagers(function: Callable[..., Any]) -> None:
    """Whatever is called, the values, strides and shared memory of results are those of eager."""
    compiled, _ = _compile(function)
    with torch.no_grad():
        for _ in range(2):
            ours, theirs = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
            got, expected = compiled(ours), function(theirs)
            torch.testing.assert_close((ours, got), (theirs, expected), check_stride=True)
            assert _shared_memory([ours, *_listed(got)]) == _shared_memory([theirs, *_listed(expected)])


def test_graphs_with_gradients_are_called_by_autograd() -> None:
    model, values = nn.Linear(8, 3), torch.randn(4, 8)
    compiled, called = _compile(model)
    compiled(values).sum().backward()
    assert not _is_direct(called)
    gradient, model.weight.grad = model.weight.grad, None
    model(values).sum().backward()
    torch.testing.assert_close(gradient, model.weight.grad)


def test_an_index_that_eager_rejects_raises_eagers_error() -> None:
    table = nn.Embedding(5, 3)
    compiled, called = _compile(table)
    with torch.no_grad():
        good = torch.tensor([0, 4])
        torch.testing.assert_close(compiled(good), table(good))
        for _ in range(2):
            with pytest.raises(IndexError, match="out of range"):
                compiled(torch.tensor([0, 5]))
        torch.testing.assert_close(compiled(good), table(good))
    assert _is_direct(called)


def test_a_grad_mode_that_a_graph_changes_is_set() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        return x + 1

    compiled, _ = _compile(function)
    for _ in range(2):
        with torch.enable_grad():
            compiled(torch.randn(3))
            assert not torch.is_grad_enabled()


def test_a_verified_graph_is_not_called_directly() -> None:
    compiled, called = _compile(nn.Linear(8, 3), verify=True)
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    assert not _is_direct(called)
