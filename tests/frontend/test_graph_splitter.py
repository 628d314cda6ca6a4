"""What compiled code has no word for runs in eager, the graph around it is compiled, and the reason is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.frontend import compiled_graph, results
from buddy.compiler.frontend.capture import capture

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

X = torch.linspace(-1, 2, 12).reshape(3, 4)
EIGHT = torch.float8_e8m0fnu
ALL = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


def eight_bits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x + 1).sin().to(EIGHT).float()
    return y * 2 + x, x.exp()


def selected_from_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In a result whose dims are, as in eager, in the order of the operand's strides."""
    return x.reshape(3, 2, 2).permute(2, 1, 0)[x[0, :2] > -1].sum() * 2, (x.exp() + 1).sin()


def read_by_strides(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).view(torch.int32).t().as_strided((5,), (2,)).to(torch.float32).exp()


def drawn_between(x: torch.Tensor) -> torch.Tensor:
    """Draws that no value orders: one compiled code calls for, one beside a tensor of eight bits, one behind it."""
    first = torch.rand(3, 4) * x
    second = (torch.rand(3, 4) * 2).to(EIGHT).float()
    return first + second.exp() + torch.rand(3, 4)


REASONS: dict[Callable[..., Any], str] = {
    eight_bits: "has the element type torch.float8_e8m0fnu",
    selected_from_columns: "index (aten.index.Tensor) has the size u0, which no input determines",
    read_by_strides: "reads the strides of a tensor that is not contiguous",
    drawn_between: "has the element type torch.float8_e8m0fnu",
}


@pytest.mark.parametrize("function", REASONS, ids=lambda f: f.__name__)
def test_only_what_cannot_be_represented_is_in_eager(function: Callable[..., Any]) -> None:
    known = set(compiled_graph._programs)
    torch.manual_seed(0)
    with torch._dynamo.config.patch(ALL), pytest.warns(UserWarning, match="is compiled in .* around eager") as told:
        ours = torch.compile(function, backend="buddy", fullgraph=True, options={"fallback_random": True})(X)
    torch.manual_seed(0)
    torch.testing.assert_close(ours, function(X))
    assert any(REASONS[function] in str(warning.message) for warning in told)
    assert set(compiled_graph._programs) - known


def test_each_piece_is_converted_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes there are that compiled code has no word for."""

    def alternating(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x.to(EIGHT).float() + 1).sin()
        return x

    converted: list[object] = []
    convert = results.to_buddy
    monkeypatch.setattr(results, "to_buddy", lambda part, **rest: (converted.append(part), convert(part, **rest))[1])
    with pytest.warns(UserWarning, match="is compiled in 6 pieces around eager"):
        ours = torch.compile(alternating, backend="buddy")(X)
    torch.testing.assert_close(ours, alternating(X))
    assert len(converted) == 1 + 6 + 6


def test_the_pieces_are_graphs_of_the_program_and_say_why_they_end() -> None:
    found = capture(eight_bits, (X,))
    assert [graph.info.name for graph in found] == ["eight_bits (part 1)", "eight_bits (part 3)"]
    for graph in found:
        assert REASONS[eight_bits] in graph.info.break_reason
        assert "test_graph_splitter.py" in graph.info.break_line
        assert graph.eager(graph.tensors)[0].dtype == torch.float32


def test_gradients_through_a_piece_in_eager() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (eight_bits(x * w)[0].sin() * w).sum()

    def gradients(function: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        leaves = [X.clone().requires_grad_(), X.add(2).requires_grad_()]
        return torch.autograd.grad(function(*leaves), leaves)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = gradients(torch.compile(loss, backend="buddy"))
    torch.testing.assert_close(ours, gradients(loss))


@torch.library.custom_op("buddy_tests::small", mutates_args=())
def small(x: torch.Tensor) -> torch.Tensor:
    if not (x.float() < 1000).all():
        raise RuntimeError("not all are small")
    return x.clone()


small.register_fake(torch.empty_like)


def test_an_error_in_the_eager_part_is_its_own() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return small((x.abs() + 2000).to(EIGHT)).float().exp()

    with pytest.warns(UserWarning, match="around eager"), pytest.raises(RuntimeError, match="not all are small"):
        torch.compile(fails, backend="buddy")(X)


@torch.library.custom_op("buddy_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x * factor


def test_a_custom_op_without_a_fake_ends_a_graph() -> None:
    found = capture(lambda x: scaled(x.exp(), 2).sin(), (X,))
    assert [[op.target for op in graph.graph.operations] for graph in found] == [["exp.default"], ["sin.default"]]
    assert "test_graph_splitter.py" in found[0].info.break_line
    torch.testing.assert_close(found[1].eager(found[1].tensors)[0], (2 * X.exp()).sin())


SPARSE = torch.eye(3).to_sparse()
# What Dynamo itself leaves in eager: the graphs before and after it are compiled.
BREAKS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "a sparse tensor": (
        lambda x: torch.sparse.mm((x @ x.t()).to_sparse(), x).cos() + 1, (X,), "sparse"),
    "a sparse input": (lambda s, x: torch.sparse.mm(s, x.exp()).cos() + 1, (SPARSE, X), ""),
    "a nested tensor": (
        lambda x: torch.nested.to_padded_tensor(torch.nested.nested_tensor([x + 1, x[:2]]), 0.0).sin() + 1, (X,),
        "does not support running with fake tensors"),
    "a branch on a value": (lambda x: (x * 2 if x.sum() > 0 else x * 3).exp(), (X,), "a branch on a tensor's value"),
    "a size that depends on data": (lambda x: x[x > 0].sum() * 2, (X,), "Dynamic shape operator"),
    "a number read out": (lambda x: x.exp() * x.sum().item() + 1, (X,), "Tensor.item()"),
    "a print": (lambda x: (x.exp(), print(end=""), x.sin())[2], (X,), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_graph_breaks_leave_the_right_answer_and_a_reason(name: str) -> None:
    function, inputs, reason = BREAKS[name]
    torch.testing.assert_close(torch.compile(function, backend="buddy")(*inputs), function(*inputs))
    found = [graph.info.break_reason for graph in capture(function, inputs)]
    assert not reason or any(reason in why for why in found)


def by_number(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reads and writes at a number that a tensor tells."""
    i = at.sum().item()
    return x[i] * 2, torch.select_scatter(x + 1, x[0] * 0 + 7, 0, i), x.select(1, i) + 1


def test_a_number_that_a_tensor_tells_counts_from_the_back_and_stays_inside() -> None:
    """Of positions out of range, for which eager raises, nothing is said but that no other memory is touched."""
    x, guard = torch.full((6, 3, 3), 100.0), torch.arange(9.0).reshape(3, 3)
    x[2] = guard
    with torch._dynamo.config.patch(ALL), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(by_number, backend="buddy", fullgraph=True)
        for i in (1, 0, -1, -3):
            for ours, eager in zip(compiled(x[2], torch.tensor(i)), by_number(x[2], torch.tensor(i)), strict=True):
                torch.testing.assert_close(ours, eager)
        for i in (3, 50, -4, -50):
            row, written, column = compiled(x[2], torch.tensor(i))
            assert row.tolist() in (guard * 2).tolist()
            assert column.tolist() in (guard.T + 1).tolist()
            assert (written == 7).sum() >= 3
            assert (written == guard + 1).sum() >= 6


def test_a_number_among_the_arguments_counts_from_the_back() -> None:
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="buddy", fullgraph=True, dynamic=True)
    for i in (2, -2, -3):
        torch.testing.assert_close(compiled(X, i), X[i] * 2)
