"""Gradients are written to saved tensors after their last use, if nothing else uses these."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.runtime.buffers import MIN_POOLED_BYTES, storage_use_count
from buddy.compiler.runtime.measure import MemoryTrace
from buddy.compiler.runtime.native_calls import native_function_address

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.skipif(storage_use_count is None, reason="this version of PyTorch does not count uses of storages"),
]

# Saved tensors have 256 KiB, and the gradients of the first layers 256 KiB each.
WIDTH = 256


class Model(nn.Module):
    """Layers whose inputs are saved; with `counts`, the program writes to a buffer, so that AOTAutograd calls it."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("calls", torch.zeros(1))
        self._counts = counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._counts:
            self.calls += 1
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


class Case:
    """A model, its compiled form after two steps, an input, and the gradients of eager."""

    def __init__(self, counts: bool) -> None:
        torch.manual_seed(0)
        self.model, self.x = Model(counts), torch.randn(WIDTH, WIDTH)
        self.compiled: Any = torch.compile(self.model, backend="buddy", options={"fallback": "error"})
        self.model(self.x).square().sum().backward()
        self.expected = [gradient.clone() for gradient in gradients(self.model)]
        for _ in range(2):
            self.step()

    def step(self, **options: Any) -> torch.Tensor:
        """Runs a step; returns the result of the forward pass."""
        self.model.zero_grad()
        result: torch.Tensor = self.compiled(self.x)
        result.square().sum().backward(**options)
        self.check()
        return result

    def check(self) -> None:
        torch.testing.assert_close(gradients(self.model), self.expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[False, pytest.param(True)], ids=["direct", "by AOTAutograd"])
def case(request: pytest.FixtureRequest) -> Case:
    if not request.param and not native_function_address():
        pytest.skip("calls go through Python")
    return Case(request.param)


def saved_addresses(result: torch.Tensor) -> set[int]:
    assert result.grad_fn is not None
    return {tensor.data_ptr() for tensor in result.grad_fn.saved_tensors}  # type: ignore[attr-defined]


def written_to_saved(case: Case, **options: Any) -> int:
    """Runs a step; returns the number of gradients that are in the memory of saved tensors."""
    case.model.zero_grad()
    result = case.compiled(case.x)
    saved = saved_addresses(result)
    result.square().sum().backward(**options)
    case.check()
    return sum(gradient.data_ptr() in saved for gradient in gradients(case.model))


def test_gradients_take_the_memory_of_saved_tensors(case: Case) -> None:
    # The gradient of the last layer comes before any saved tensor is dead, and the result is the last saved one.
    assert written_to_saved(case) >= 2
    assert written_to_saved(case) >= 2


def test_a_retained_graph_gives_the_same_gradients_again(case: Case) -> None:
    case.model.zero_grad()
    result = case.compiled(case.x).square().sum()
    result.backward(retain_graph=True)
    case.check()
    case.model.zero_grad()
    result.backward()
    case.check()
    assert written_to_saved(case, retain_graph=True) == 0


def test_a_saved_tensor_that_the_program_holds_keeps_its_values(case: Case) -> None:
    case.model.zero_grad()
    result = case.compiled(case.x)
    held = result.grad_fn.saved_tensors
    copies = [tensor.clone() for tensor in held]
    result.square().sum().backward()
    case.check()
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(held, copies, strict=True))


def test_a_result_that_is_saved_keeps_its_values(case: Case) -> None:
    case.model.zero_grad()
    result = case.compiled(case.x)
    copy = result.detach().clone()
    result.square().sum().backward()
    assert torch.equal(result, copy)


def test_hooks_on_saved_tensors_keep_their_values(case: Case) -> None:
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        result = case.compiled(case.x)
    copies = [tensor.clone() for tensor in packed]
    case.model.zero_grad()
    result.square().sum().backward()
    case.check()
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(packed, copies, strict=True))


def test_gradients_add_up_over_steps(case: Case) -> None:
    case.model.zero_grad()
    for _ in range(3):
        case.compiled(case.x).square().sum().backward()
    sums = [3 * gradient for gradient in case.expected]
    torch.testing.assert_close(gradients(case.model), sums, rtol=1e-4, atol=1e-4)


def test_two_forward_passes_before_the_backward_passes(case: Case) -> None:
    case.model.zero_grad()
    other = torch.randn(WIDTH, WIDTH)
    losses = [case.compiled(x).square().sum() for x in (case.x, other)]
    for loss in losses:
        loss.backward()
    found = [gradient.clone() for gradient in gradients(case.model)]
    case.model.zero_grad()
    for x in (case.x, other):
        case.model(x).square().sum().backward()
    torch.testing.assert_close(found, gradients(case.model), rtol=1e-4, atol=1e-4)


def held_between_steps(width: int, rows: int) -> int:
    """Returns the bytes that are held after two steps, beside the gradients and what the caller holds."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    compiled: Any = torch.compile(model, backend="buddy", options={"fallback": "error"})
    x = torch.randn(rows, width)
    gc.collect()  # tensors of earlier tests that are freed during the trace would be subtracted
    with MemoryTrace() as trace:
        for _ in range(2):
            model.zero_grad()
            compiled(x).square().sum().backward()
        trace.mark()
    return trace.held_at_mark - sum(gradient.nbytes for gradient in gradients(model))


@pytest.mark.parametrize(("width", "rows", "is_freed"), [(1024, 64, True), (128, 4096, False)])
def test_idle_memory_is_freed_if_gradients_are_much_larger(width: int, rows: int, is_freed: bool) -> None:
    held = held_between_steps(width, rows)
    assert (held < MIN_POOLED_BYTES) is is_freed
