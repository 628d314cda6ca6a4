"""Ops whose results' sizes depend on data are compiled on both sides of the number read, and for every number."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.frontend.capture import capture

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

CAPTURED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
ZEROS, FULL = torch.zeros(3, 4), torch.arange(1.0, 13.0).reshape(3, 4)
SOME = torch.tensor([[0.0, -1.0, 2.0, float("nan")], [0.0, 0.0, 3.0, -0.0], [5.0, 0.0, 2.0, 1.0]])

Results = tuple[Any, ...]


def positions(x: torch.Tensor) -> Results:
    return torch.nonzero(x), torch.argwhere(x > 1) * 2, *torch.where(x[0] > 0), torch.nonzero(x[:0])


def selections(x: torch.Tensor) -> Results:
    rows = x[:, 2] > 1
    both = x[rows] + x[rows].sin()
    return x[x > 0].exp(), x[rows] @ x.t(), x[:, x[0] > 0], x.masked_select(rows[:, None]), both, both.sum(0)


def selections_of_views(x: torch.Tensor) -> Results:
    rows, columns = x[:, 2] > 1, x[0] > 0
    return x[rows, 1:3], x[rows, 2] + 1, x[1:, columns], x.t()[1:3, rows] * 2, x[rows, None, ::2], x.t()[x.t() > 1]


def of_complex_numbers(x: torch.Tensor) -> Results:
    z = torch.complex(x, x + 1)
    return z.masked_select(x > 0), z[x[:, 2] > 1] * 2, z.conj()[:, x[0] > 0] + 1, torch.nonzero(z)


def writes(x: torch.Tensor) -> Results:
    y = x.clone()
    y[x > 0] = x[x > 0] * 2
    return y, x.index_put((x[:, 2] > 1,), x[0])


def runs(x: torch.Tensor) -> Results:
    whole = x.nan_to_num().to(torch.int64)
    return (
        *torch.unique(whole, dim=0, return_inverse=True, return_counts=True), torch.unique(x.nan_to_num(), dim=1),
        *torch.unique(whole, return_inverse=True, return_counts=True), torch.unique(x),
        *torch.unique_consecutive(whole, return_inverse=True, return_counts=True),
        *torch.unique_consecutive(whole > 2, return_counts=True, dim=1), torch.unique(whole > 2),
    )  # fmt: skip


def counts(x: torch.Tensor) -> Results:
    whole = x.nan_to_num().abs().to(torch.int64).flatten()
    return (
        whole.bincount(), whole.bincount(minlength=9), whole.bincount(x.nan_to_num().flatten()),
        torch.repeat_interleave(whole), x.flatten().repeat_interleave(whole), x.repeat_interleave(whole[:3], 0) * 2,
    )  # fmt: skip


def numbers(x: torch.Tensor) -> Results:
    n, sum_ = int((x > 0).sum().item()), int(x.nan_to_num().sum().item())
    return (
        x[:1] * n,
        torch.arange(n),
        x.new_zeros(n, 2) + n,
        x.flatten()[:n].cos(),
        sum_ + x,
        x[2] * x[2].sum().item(),
        float(x[2].sum()),
    )


def slices(x: torch.Tensor) -> Results:
    """At numbers of either sign, inside or not; views of what a call gives among them."""
    n = int(x.nan_to_num()[0].sum().item())
    return x.flatten()[n:], x.flatten()[:n] * 2, (x + 1).flatten()[n:-n:2], x.narrow(1, n % 3, 2), x.flatten()[-n:9] + 1


PROGRAMS = [positions, selections, selections_of_views, of_complex_numbers, writes, runs, counts, numbers, slices]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_nothing_is_in_eager_and_one_compilation_serves_every_count(function: Callable[..., Any]) -> None:
    with torch._dynamo.config.patch(CAPTURED):
        compiled = torch.compile(function, backend="buddy", fullgraph=True, options={"fallback": "error"})
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for x in (SOME, FULL, ZEROS):
            for ours, eager in zip(compiled(x), function(x), strict=True):
                torch.testing.assert_close(ours, eager, equal_nan=True)
                assert getattr(ours, "dtype", float) == getattr(eager, "dtype", float)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= before + 1


def test_sizes_of_calls_beside_sizes_of_data() -> None:
    def function(x: torch.Tensor) -> Results:
        return x[x > 0] * 2, torch.nonzero(x)[:, 0] + x.shape[0]

    with torch._dynamo.config.patch(CAPTURED):
        options = {"fallback": "error"}
        compiled = torch.compile(function, backend="buddy", fullgraph=True, dynamic=True, options=options)
        for x in (SOME, FULL[:2], torch.cat([SOME, FULL])):
            for ours, eager in zip(compiled(x), function(x), strict=True):
                torch.testing.assert_close(ours, eager)


def test_gradients_through_what_was_chosen() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        return (y[y > 2] ** 2).sum() + y.masked_select(y < 9).exp().sum() + y[y[:, 0] > 5].mean()

    def gradients(function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        leaves = [FULL.clone().requires_grad_(), FULL.sin().requires_grad_()]
        return torch.autograd.grad(function(*leaves), leaves)

    with torch._dynamo.config.patch(CAPTURED):
        ours = gradients(torch.compile(loss, backend="buddy", fullgraph=True, options={"fallback": "error"}))
    torch.testing.assert_close(ours, gradients(loss))


def test_positions_lie_in_memory_as_eagers_do() -> None:
    with torch._dynamo.config.patch(CAPTURED):
        found = torch.compile(torch.nonzero, backend="buddy", fullgraph=True)(SOME)
    assert found.stride() == torch.nonzero(SOME).stride()


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a negative number to count": (torch.bincount, "non-negative integral"),
    "negative repeats": (torch.repeat_interleave, "repeats can not be negative"),
    "repeats of another sum": (lambda i: torch.repeat_interleave(i, output_size=9), "allocated size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_in_its_words(name: str) -> None:
    function, words = REFUSED[name]
    with torch._dynamo.config.patch(CAPTURED):
        compiled = torch.compile(function, backend="buddy", fullgraph=True)
        whole = torch.tensor([4, 2, 3])
        torch.testing.assert_close(compiled(whole), function(whole))
        with pytest.raises(RuntimeError, match=words):
            compiled(torch.tensor([4, -2, 7]) if "sum" not in name else torch.tensor([4, 2, 7]))


def test_the_graphs_of_both_sides_are_there_to_look_at() -> None:
    with torch._dynamo.config.patch(CAPTURED):
        found = capture(lambda x: x[x > 0].exp(), (SOME,))
    assert [graph.info.name for graph in found] == ["<lambda> (part 1)", "<lambda> (part 3)"]
    assert "reads a number out of a tensor" in found[0].info.break_reason
    assert "nonzero_static.default" in [op.target for op in found[1].graph.operations]


def test_slices_of_complex_numbers_to_positions_in_a_tensor_run() -> None:
    """The parts of such a slice have sizes of their own, not known to be the slice's: all ran in eager."""
    z, at = torch.complex(FULL, FULL + 1), torch.tensor([1, 2])
    with torch._dynamo.config.patch(CAPTURED), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = torch.compile(torch.tensor_split, backend="buddy", fullgraph=True)(z, at)
    assert [part.tolist() for part in parts] == [part.tolist() for part in torch.tensor_split(z, at)]
    assert any("compiled in" in str(one.message) for one in caught)
