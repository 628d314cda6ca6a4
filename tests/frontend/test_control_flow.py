"""Branches and bodies of `cond`, `while_loop`, `scan` and `map` are compiled; results and gradients are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from buddy.compiler.frontend.capture import capture

WEIGHT = torch.linspace(-1, 1, 36).reshape(6, 6)


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x @ WEIGHT, lambda x: (x * 2).contiguous(), (x,)).exp()


def nested(x: torch.Tensor) -> torch.Tensor:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > -10, lambda x: x + 1, lambda x: x - 1, (x,))

    return torch.cond(x.sum() > 0, lambda x: x * 3, small, (x,))


def halved_until_small(x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i + 1, x / 2

    return while_loop(lambda i, x: x.abs().max() > 0.01, body, (torch.tensor(0), x))


def recurrent(x: torch.Tensor) -> Any:
    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(state @ WEIGHT + x)
        return state, state * 2

    return scan(step, x.new_zeros(6), x)


def by_row(x: torch.Tensor) -> torch.Tensor:
    return map_over(lambda row, weight: torch.softmax(weight @ row, 0), x + 1, WEIGHT)


def conditional_in_a_loop(x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return i + 1, torch.cond(i > 2, lambda x: x + 1, lambda x: x * 2, (x,))

    return while_loop(lambda i, x: i < 5, body, (torch.tensor(0), x))


def branch_beside_complex_numbers(x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.fft(x)
    chosen = torch.cond(x.sum() > 0, lambda c: c * 1j, lambda c: c.conj() + 0, (spectrum,))
    return chosen.imag + spectrum.real


ALL = [branch, branch_beside_complex_numbers, nested, halved_until_small, recurrent, by_row, conditional_in_a_loop]
INPUTS = [torch.linspace(-1, 2, 24).reshape(4, 6), torch.linspace(-2, 1, 24).reshape(6, 4).t(), -torch.ones(4, 6)]


def compiled(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(call, backend="buddy", fullgraph=True, dynamic=False, options={"fallback": "error"} | options)


@pytest.mark.parametrize("call", ALL, ids=lambda call: call.__name__)
def test_results_are_those_of_eager_whatever_is_decided(call: Callable[..., Any]) -> None:
    run = compiled(call, verify=True)
    for x in INPUTS:
        torch.testing.assert_close(run(x), eager(call)(x))


def eager(call: Callable[..., Any]) -> Callable[..., Any]:
    """`map` runs under Dynamo alone."""
    torch._dynamo.reset()
    return torch.compile(call, backend="eager", fullgraph=True, dynamic=False)


DIFFERENTIABLE = [branch, nested, by_row] + [recurrent] * (torch.__version__ >= (2, 12))  # 2.11 says that scan aliases


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.__name__)
def test_gradients_are_those_of_eager(call: Callable[..., Any]) -> None:
    def gradient(run: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        x = x.detach().clone().requires_grad_()
        results = run(x)
        (results if isinstance(results, torch.Tensor) else torch.cat([r.reshape(-1) for r in results])).sum().backward()
        assert x.grad is not None
        return x.grad

    run = compiled(call)
    for x in INPUTS[::2]:
        torch.testing.assert_close(gradient(run, x), gradient(eager(call), x))


@pytest.mark.parametrize("call", [branch, conditional_in_a_loop], ids=lambda call: call.__name__)
def test_nothing_is_said_to_run_in_eager(call: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(call, backend="buddy", fullgraph=True)(INPUTS[0])


def test_a_body_that_cannot_be_compiled_is_refused_or_left_to_eager() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.to(torch.complex32).real.float(), lambda x: x + 1, (x,))

    with pytest.raises(BackendCompilerFailed, match=r"has the element type torch\.complex32"):
        compiled(call)(INPUTS[0])
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="around eager: .* has the element type"):
        found = torch.compile(call, backend="buddy", fullgraph=True)(INPUTS[0])
    torch.testing.assert_close(found, call(INPUTS[0]))


def test_what_a_branch_would_refuse_is_refused_where_it_is_taken() -> None:
    def call(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, i: x[i] + 0, lambda x, i: x[:2] + 1, (x, i))

    run, outside = compiled(call), torch.tensor([0, 9])
    torch.testing.assert_close(run(INPUTS[2], outside), call(INPUTS[2], outside))
    with pytest.raises(IndexError):
        run(INPUTS[0], outside)


def test_bodies_are_graphs_of_their_own_in_a_capture() -> None:
    graphs = capture(branch, (INPUTS[0],))
    names = [graph.info.name for graph in graphs]
    assert "branch (part 2, true_graph_0)" in names
    taken = graphs[names.index("branch (part 2, true_graph_0)")]
    assert "mm.default" in {row.target.removeprefix("aten.") for row in taken.info.rows}
