"""Gradients of single functions, in evaluation and in training: eager's, whichever arguments they take."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.programs import assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

F = nn.functional

# Both sides of zero and of the places where one of them bends, and what saturates.
POINTS = (-100.0, -20.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 3.0, 6.0, 21.0)
ACTIVATIONS = (
    nn.ReLU(), nn.ReLU6(), nn.RReLU(), nn.RReLU(0.2, 0.6), nn.LeakyReLU(0.3), nn.PReLU(), nn.ELU(1.5), nn.CELU(1.7),
    nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.Hardsigmoid(),
    nn.Hardtanh(-0.5, 3.0), nn.Softplus(2, 5), nn.Softsign(), nn.Softshrink(0.5), nn.Hardshrink(0.5), nn.Tanhshrink(),
    nn.Threshold(0.5, -3.0), nn.LogSigmoid(), nn.Dropout(0.4), nn.AlphaDropout(0.4), nn.GLU(0), nn.Softmax(0),
    nn.LogSoftmax(0),
)  # fmt: skip


def with_gradients(function: Callable[..., list[torch.Tensor]], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The results of `function`, and what each input that asks for a gradient gets from sums of them."""
    copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    torch.manual_seed(1)
    results = function(*copies)
    wanted = [x for x in copies if x.requires_grad]
    ones = [torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape) for y in results]
    return [*results, *torch.autograd.grad(results, wanted, ones)]


def assert_gradients(function: Callable[..., list[torch.Tensor]], *inputs: torch.Tensor) -> None:
    compiled = torch.compile(function, backend="buddy", dynamic=False, options={"fallback_random": True})
    assert_same(with_gradients(compiled, inputs), with_gradients(function, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_activations_pass_back_what_eager_does(training: bool) -> None:
    modules = [copy.deepcopy(module).train(training) for module in ACTIVATIONS]
    x = torch.tensor(POINTS).requires_grad_()
    assert_gradients(lambda *xs: [module(y) for module, y in zip(modules, xs, strict=True)], *[x] * len(modules))


def test_weights_of_samples_count_in_a_bag_that_learns() -> None:
    table, weights = torch.tensor([[1.0], [10.0], [100.0]]).requires_grad_(), torch.tensor([[2.0, 3.0]])
    at = torch.tensor([[0, 2]])
    assert_gradients(lambda w, p: [F.embedding_bag(at, w, mode="sum", per_sample_weights=p)], table, weights)
    assert_gradients(
        lambda w, p: [F.embedding_bag(at, w, mode="sum", per_sample_weights=p)], table, weights.requires_grad_()
    )


@pytest.mark.parametrize(
    ("gradient", "x"), [(torch.int64, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.int64)]
)
def test_a_gradient_of_another_type_promotes(gradient: torch.dtype, x: torch.dtype) -> None:
    def back(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.threshold_backward(g, y, 0)

    inputs = torch.tensor([1, 2, 3]).to(gradient), torch.tensor([-1, 2, 0]).to(x)
    assert_same([torch.compile(back, backend="buddy")(*inputs)], [back(*inputs)])


def test_a_list_of_labels_ends_at_minus_one() -> None:
    labels = torch.tensor([[1, 2, -1, 0, 0], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4], [3, -1, 3, 2, 1]])

    def losses(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        kinds = ("none", "mean", "sum")
        return [F.multilabel_margin_loss(x, labels, reduction=kind) for kind in kinds] + [
            F.multilabel_margin_loss(y, labels[0], reduction="none")
        ]

    assert_gradients(losses, torch.randn(4, 5).requires_grad_(), torch.randn(5).requires_grad_())


@pytest.mark.parametrize(
    "unused", [lambda x: F.scaled_dot_product_attention(x, x, x), lambda x: F.rrelu(x, training=True)]
)
def test_a_random_op_that_nothing_reads_does_not_send_the_graph_to_eager(unused: Callable[..., torch.Tensor]) -> None:
    """PyTorch's partitioner rejects an unused op of several results."""

    def negative(x: torch.Tensor) -> list[torch.Tensor]:
        unused(x)
        return [-x]

    x = torch.randn(1, 1, 4, 8, requires_grad=True)
    strict = torch.compile(negative, backend="buddy", options={"fallback": "error"})
    assert_same(with_gradients(strict, (x,)), with_gradients(negative, (x,)))


def test_an_unused_random_op_still_draws_before_later_ones() -> None:
    """With eager's random numbers, a random op whose numbers nobody reads moves the generator on."""

    def noisy(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.dropout(x, 0.5) + F.rrelu(x, training=True).new_ones(8)]

    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(noisy, backend="buddy", options={"fallback_random": True})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a graph of .* runs in eager")  # the random ops do, but not the whole graph
        assert_same(with_gradients(compiled, (x,)), with_gradients(noisy, (x,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_numbers_have_no_deviation_and_no_gradient_of_it(dtype: torch.dtype) -> None:
    """The sum of many equal numbers is rounded, but each of them is exactly their mean."""
    x = torch.full((3, 4099), 0.3, dtype=dtype, requires_grad=True)
    strict = torch.compile(lambda y: [y.std(1), y.std(), y.var(0)], backend="buddy", options={"fallback": "error"})
    *results, gradient = with_gradients(strict, (x,))
    assert all(torch.equal(value, torch.zeros_like(value)) for value in [*results, gradient])
