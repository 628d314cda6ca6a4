"""Which graphs with gradients are called without AOTAutograd's wrappers, and that results and gradients are eager's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend import direct_gradients
from buddy.compiler.runtime.native_calls import native_call_problem, native_function_address

pytestmark = pytest.mark.skipif(
    not native_function_address(), reason=f"calls go through Python: {native_call_problem()}"
)


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="buddy", options=options, dynamic=False)


def _is_direct(result: torch.Tensor) -> bool:
    assert result.grad_fn is not None
    return result.grad_fn._forward_cls.__module__ == direct_gradients.__name__  # type: ignore[attr-defined]


def _tensors(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _step(function: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """Calls the function and the backward of the squares of its differentiable results; returns results, gradients."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    results = _tensors(function(*leaves))
    sum(r.square().sum() for r in results if r.requires_grad).backward()  # type: ignore[union-attr]
    return results, [leaf.grad for leaf in leaves]


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_a_layer_is_called_directly_after_its_first_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    compiled, values = _compile(model), _x(4, 8)
    for number in range(3):
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            values.grad = None
            result = call(values)
            result.square().sum().backward()
            gradients.append([values.grad, *(parameter.grad for parameter in model.parameters())])
        assert _is_direct(result) == (number > 0)
        torch.testing.assert_close(gradients[1], gradients[0])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)


def _constant_too(x: torch.Tensor) -> Any:
    return x.tanh(), x.argmax(1), (x * 2).sin()


@pytest.mark.parametrize(
    ("function", "inputs", "is_direct"),
    [
        (lambda x: x.tanh(), [(3, 4)], True),  # a result is saved
        (_constant_too, [(3, 4)], True),
        (lambda x, y: x @ y + x, [(3, 3), (3, 3)], True),
        (lambda x, y: (x + y, x - y), [(3, 3), (3, 3)], True),  # gradients are inputs, and are shared
        (lambda x: x.t().exp().t(), [(3, 4)], False),  # a result is a view
        (lambda x: (x.view(4, 3), x.exp()), [(3, 4)], False),
        (lambda x: (x + 1, (x + 1).exp()), [(3, 4)], True),
    ],
    ids=["saved result", "indices", "two inputs", "shared gradient", "view", "view of input", "result of a result"],
)
def test_results_and_gradients_are_eagers(function: Callable[..., Any], inputs: Any, is_direct: bool) -> None:
    values, compiled = [_x(*shape) for shape in inputs], _compile(function)
    for number in range(2):
        (results, gradients), expected = _step(compiled, values), _step(function, values)
        torch.testing.assert_close((results, gradients), expected)
        differentiable = [r for r in results if r.requires_grad]
        assert [r.requires_grad for r in results] == [r.requires_grad for r in expected[0]]
        if number and is_direct:
            assert all(map(_is_direct, differentiable))
        if not is_direct:
            assert not any(_is_direct(r) for r in differentiable if hasattr(r.grad_fn, "_forward_cls"))


def test_inputs_without_gradient_and_inputs_that_are_one_tensor() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).exp()

    compiled, x, y = _compile(function), _x(3, 4), torch.randn(3, 4)
    for _ in range(2):
        assert _step(compiled, [x, y])[1][1] is None
        torch.testing.assert_close(_step(compiled, [x, y]), _step(function, [x, y]))
        same = [_x(3, 4)] * 2
        compiled(*same).sum().backward()
        expected = torch.autograd.grad(function(*same).sum(), same[0])[0]
        torch.testing.assert_close(same[0].grad, expected)


def test_a_result_without_gradient_counts_as_zero() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.exp()

    compiled, x = _compile(function), _x(3, 4)
    _step(compiled, [x])
    first, second = compiled(x)
    assert _is_direct(first)
    torch.testing.assert_close(torch.autograd.grad(second.sum(), x)[0], x.exp())
    first, _ = compiled(x)
    torch.testing.assert_close(torch.autograd.grad(first.t().sum(1).sum(), x)[0], x.cos())


@pytest.fixture
def ready() -> Callable[[torch.Tensor], torch.Tensor]:
    """A compiled function that is called directly."""
    compiled = _compile(lambda x: (x.exp() * x).tanh())
    _step(compiled, [_x(3, 4)])
    assert _is_direct(compiled(_x(3, 4)))
    return compiled


def test_a_second_backward_pass_needs_the_graph(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = _x(3, 4)
    result = ready(x).sum()
    result.backward(retain_graph=True)
    once = x.grad.clone()  # type: ignore[union-attr]
    result.backward()
    torch.testing.assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()


def test_a_gradient_of_a_gradient_is_an_error(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = _x(3, 4)
    (gradient,) = torch.autograd.grad(ready(x).sum(), x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_a_write_to_a_saved_tensor_is_an_error(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = _x(3, 4)
    result = ready(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_view_as_input_gets_its_gradient(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    base = _x(4, 3)
    ready(base.t()).sum().backward()
    got, base.grad = base.grad, None
    (base.t().exp() * base.t()).tanh().sum().backward()
    torch.testing.assert_close(got, base.grad)


def test_hooks_on_saved_tensors_are_called(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor)
        return tensor.clone()

    x = _x(3, 4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = ready(x)
    result.sum().backward()
    assert packed
    got, x.grad = x.grad, None
    (x.exp() * x).tanh().sum().backward()
    torch.testing.assert_close(got, x.grad)


def test_saved_tensors_are_released_by_the_backward_pass(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = _x(3, 4)
    result = ready(x)
    saved = result.grad_fn.saved_tensors  # type: ignore[union-attr]
    storages = [tensor.untyped_storage()._weak_ref() for tensor in saved if tensor is not x]
    del saved
    result.sum().backward()
    del result
    gc.disable()  # counts of references release them, not the collector
    try:
        assert storages
        assert all(torch.UntypedStorage._expired(storage) for storage in storages)
    finally:
        gc.enable()
        for storage in storages:
            torch.UntypedStorage._free_weak_ref(storage)


def test_an_index_that_eager_rejects_raises_eagers_error() -> None:
    table = nn.Embedding(5, 3)
    compiled = _compile(table)
    good = torch.tensor([0, 4])
    for _ in range(2):
        result = compiled(good)
        result.sum().backward()
    assert _is_direct(result)
    with pytest.raises(IndexError, match="out of range"):
        compiled(torch.tensor([0, 5]))
    torch.testing.assert_close(compiled(good), table(good))


def test_graphs_that_are_checked_stay_with_aot_autograd() -> None:
    compiled, x = _compile(lambda x: x.tanh(), verify=True), _x(3, 4)
    for _ in range(2):
        result = compiled(x)
        result.sum().backward()
    assert not _is_direct(result)


def test_compiled_autograd_gets_the_same_gradients(ready: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = _x(3, 4)
    result = ready(x).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        result.backward()
    got, x.grad = x.grad, None
    (x.exp() * x).tanh().sum().backward()
    torch.testing.assert_close(got, x.grad)
