"""Whatever compiling raises leaves a graph to eager, with one warning that names the reason."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from buddy.compiler.frontend import DynamoCompiler, backend, compiled_graph, results

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.randn(3, 4)


def told(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What `run` gives, and the warnings of this back end meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run()
    return found, [str(one.message) for one in caught if "eager" in str(one.message)]


def fails(*_: Any, **__: Any) -> Any:
    raise AttributeError("nothing has this\nand a second line")


@pytest.mark.parametrize("where", [(results, "to_buddy"), (backend, "run_aot"), (compiled_graph, "_find_or_compile")])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_a_fault_leaves_the_graph_to_eager(
    where: tuple[Any, str], dynamic: bool, grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*where, fails)
    x = X.clone().requires_grad_(grad)
    y, said = told(lambda: torch.compile(lambda x: x * 2, backend="buddy", dynamic=dynamic)(x))
    torch.testing.assert_close(y, x * 2)
    (warning,) = said
    assert warning.endswith("runs in eager: AttributeError: nothing has this")
    if grad:
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(X, 2))


@pytest.mark.parametrize("dynamic", [False, True])
def test_so_does_one_in_the_backward_graph_alone(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = X.clone().requires_grad_()
    convert = results.to_buddy
    monkeypatch.setattr(
        results, "to_buddy", lambda aten, **more: (fails if aten.kind == "backward" else convert)(aten, **more)
    )
    _, said = told(lambda: torch.compile(torch.sin, backend="buddy", dynamic=dynamic)(x).sum().backward())
    torch.testing.assert_close(x.grad, X.cos())
    (warning,) = said
    assert warning.endswith("runs in eager: AttributeError: nothing has this")


def test_a_fault_is_raised_where_eager_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_graph, "_find_or_compile", fails)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="nothing has this"), torch.no_grad():
        torch.compile(lambda x: x * 2, backend="buddy", options={"fallback": "error"})(X)


@pytest.mark.parametrize("ours", ["buddy", DynamoCompiler()])
def test_jagged_nested_tensors_stay_in_eager(ours: Any) -> None:
    compiled = torch.compile(lambda x: x * 2, backend=ours)
    for rows in ((2, 4), (3, 5)):
        x = torch.nested.nested_tensor([torch.randn(n, 3) for n in rows], layout=torch.jagged)
        y, said = told(lambda x=x: compiled(x))
        torch.testing.assert_close(y.values(), x.values() * 2)
        assert len(said) == (rows == (2, 4))
        assert all("is a jagged nested tensor" in one for one in said)


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_of_mkldnn_stay_in_eager(dynamic: bool) -> None:
    compiled = torch.compile(lambda x: x.to_dense() * 2, backend="buddy", dynamic=dynamic)
    y, said = told(lambda: compiled(X.to_mkldnn()))
    assert torch.equal(y, X * 2)
    (warning,) = said
    assert "has the layout _mkldnn" in warning
    y, said = told(lambda: compiled(X))  # compiled again
    assert torch.equal(y, X * 2)
    assert not said


def test_tensors_of_mkldnn_are_refused_where_eager_is() -> None:
    compiled = torch.compile(lambda x: x.to_dense() * 2, backend="buddy", options={"fallback": "error"})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"layout _mkldnn.*to_dense\(\)"):
        compiled(X.to_mkldnn())


@pytest.mark.parametrize("dynamic", [False, True])
def test_tangents_are_computed_in_eager(dynamic: bool) -> None:
    """Nothing in a graph or a tensor's dispatch keys shows a tangent, and it was dropped."""
    compiled = torch.compile(torch.sin, backend="buddy", dynamic=dynamic)
    _, before = told(lambda: compiled(X))

    def tangent(direction: torch.Tensor) -> torch.Tensor | None:
        with forward_ad.dual_level():
            compiled(X)  # without a tangent
            return forward_ad.unpack_dual(compiled(forward_ad.make_dual(X, direction))).tangent

    first, said = told(lambda: tangent(torch.ones_like(X)))
    second, again = told(lambda: tangent(X))
    torch.testing.assert_close(first, X.cos())
    torch.testing.assert_close(second, X * X.cos())
    _, after = told(lambda: compiled(X))
    (warning,) = said
    assert "forward_ad.dual_level()" in warning
    assert not before + again + after


def test_tangents_are_refused_where_eager_is() -> None:
    """From 2.14 on, TorchDynamo leaves a call with a tangent to eager itself, and captures others inside the level."""
    compiled = torch.compile(torch.sin, backend="buddy", options={"fallback": "error"})
    compiled(X)
    refused = pytest.raises(
        torch._dynamo.exc.BackendCompilerFailed, match=r"does not compute tangents.*torch\.func\.jvp"
    )
    with forward_ad.dual_level(), refused:
        compiled(X)
    torch._dynamo.reset()
    compiled(X)
    with forward_ad.dual_level(), contextlib.ExitStack() as stack:
        if torch.__version__ < (2, 14):
            stack.enter_context(refused)
        tangent = forward_ad.unpack_dual(compiled(forward_ad.make_dual(X, X))).tangent
        torch.testing.assert_close(tangent, X * X.cos())


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_of_zeros_without_memory_are_read(dynamic: bool) -> None:
    """Those that forward-mode differentiation makes; compiled code read the address 0."""
    weight = nn.Parameter(torch.randn(4, 4))
    compiled = torch.compile(lambda x: (x + 1) @ weight, backend="buddy", dynamic=dynamic)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(compiled(torch._efficientzerotensor((3, 4))), torch.ones(3, 4) @ weight)


def test_sparse_gradients_are_made_in_eager() -> None:
    model, places = nn.Embedding(10, 4, sparse=True), torch.tensor([1, 2, 1])
    grads = []
    for run in (model, torch.compile(model, backend="buddy")):
        model.weight.grad = None
        _, said = told(lambda run=run: run(places).sum().backward())
        grads.append(model.weight.grad)
    assert grads[1].layout == torch.sparse_coo
    torch.testing.assert_close(grads[1].to_dense(), grads[0].to_dense())
    (warning,) = said
    assert "has the layout sparse_coo" in warning
