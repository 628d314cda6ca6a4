"""What a program does to its inputs and gives back is eager's: values, strides, and which tensors share memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Program = Callable[..., Any]
Inputs = Callable[[], tuple[Any, ...]]


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()
    loss: torch.Tensor | None = None


def square() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4)


def one() -> tuple[Any, ...]:
    return (square(),)


def two() -> tuple[Any, ...]:
    return square(), square() + 0.5


def the_same_twice() -> tuple[Any, ...]:
    x = square()
    return x, x


def overlapping() -> tuple[Any, ...]:
    base = torch.arange(12.0)
    return base[:8], base[4:]


def a_view_and_its_base() -> tuple[Any, ...]:
    base = square()
    return base, base[1]


def disjoint_views() -> tuple[Any, ...]:
    base = torch.arange(12.0)
    return base[:6], base[6:]


def transposed() -> tuple[Any, ...]:
    return (square().t(),)


def every_other() -> tuple[Any, ...]:
    return (square()[:, ::2],)


def expanded() -> tuple[Any, ...]:
    return (torch.arange(3.0)[:, None].expand(3, 4),)


def channels_last() -> tuple[Any, ...]:
    return (torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last),)


def cache() -> tuple[Any, ...]:
    return torch.zeros(2, 6, 3), torch.ones(2, 1, 3), torch.tensor([2])


def add_(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.add_(1)


def write(x: torch.Tensor, *_: Any) -> torch.Tensor:
    x.mul_(2)
    return x.sin()


def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y.mul_(3)
    return x.sum() + y.sum()


def into_a_row(x: torch.Tensor) -> torch.Tensor:
    x[1] = x[0] * 2
    x[:, 1].zero_()
    return x + 1


def update(keys: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    keys.index_copy_(1, at, new)
    return (keys * 2).sum(1)


def views_of(x: torch.Tensor) -> list[torch.Tensor]:
    return [x, x[1], x.t(), x.view(-1), x[:, 1:3], x.unsqueeze(0), x.expand(2, *x.shape), x.detach()]


def views_of_a_result(x: torch.Tensor) -> list[torch.Tensor]:
    y = x + 1
    return [y, y, y[0], y.t(), y.reshape(-1)]


def resized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    return y, x.t().contiguous().t()


def conjugates(z: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    y, negative = z * 2, torch._neg_view(x)
    return [y.conj(), y, y[1:], z.conj(), negative, negative[1:]]


def nested(x: torch.Tensor, y: torch.Tensor) -> Any:
    pair = Pair(x + y, x)
    return {"pair": pair, "list": [x * 2, (y.sin(), None, 3, 2.5, "text", True)], "shape": x.shape, "same": pair.first}


def a_dataclass(x: torch.Tensor) -> Output:
    return Output(x.exp(), (x, x.sin()))


def constants(x: torch.Tensor) -> tuple[Any, ...]:
    return torch.tensor([1.0, 2.0]), torch.ones(2), torch.arange(4), x.shape[0], x.dim(), x.dtype


def scalars(x: torch.Tensor, factor: float, count: int, flag: bool) -> torch.Tensor:
    return x * factor + count if flag else x


def nothing(x: torch.Tensor) -> None:
    x.add_(1)


def in_a_list(tensors: list[torch.Tensor], named: Mapping[str, torch.Tensor]) -> Any:
    tensors[0].add_(named["a"])
    return {**named, "sum": tensors[0] + tensors[1]}


PROGRAMS: dict[str, tuple[Program, Inputs]] = {
    "an input written to": (write, one),
    "an input written to and given back": (add_, one),
    "a transposed input written to": (write, transposed),
    "every other column written to": (add_, every_other),
    "channels last written to": (write, channels_last),
    "two inputs written to": (both, two),
    "the same input twice, written to twice": (both, the_same_twice),
    "overlapping inputs, written to": (both, overlapping),
    "a view and its base, written to": (both, a_view_and_its_base),
    "disjoint views of one tensor, written to": (both, disjoint_views),
    "rows and columns written to": (into_a_row, one),
    "rows of a transposed input written to": (into_a_row, transposed),
    "a cache written to": (update, cache),
    "nothing given back": (nothing, one),
    "an input given back beside views of it": (views_of, one),
    "views of a transposed input": (lambda x: [x, x[1], x.t(), x.unsqueeze(0)], transposed),
    "a result twice, and views of it": (views_of_a_result, one),
    "a result of a transposed input": (lambda x: [x + 1, x.exp(), x.t().neg()], transposed),
    "a result of channels last": (lambda x: [x + 1, x.relu(), x.mean(1), x.permute(0, 2, 3, 1) * 2], channels_last),
    "a result of an expanded input": (lambda x: [x * 2, x[0], x.sum(0)], expanded),
    "views turned in place": (resized, one),
    "conjugates and negatives": (conjugates, lambda: (torch.tensor([1 + 2j, 3 - 4j]), torch.arange(3.0))),
    "nested containers": (nested, two),
    "a dataclass": (a_dataclass, one),
    "constants": (constants, one),
    "scalars": (scalars, lambda: (square(), 1.5, 2, True)),
    "tensors in a list and a dict": (in_a_list, lambda: ([square(), square()], {"a": square(), "b": square()})),
    "an expanded result": (lambda x: [x.sum(0, keepdim=True).expand(3, 4), x[:1].expand(3, 4)], one),
    "an empty input": (lambda x: [x + 1, x.sum(), x.t()], lambda: (torch.empty(0, 3),)),
}


def leaves(value: Any) -> list[Any]:
    """What a nest of containers holds, in order, with the names of what holds it."""
    if isinstance(value, Output):
        return ["Output", *leaves([value.logits, value.hidden, value.loss])]
    if isinstance(value, Mapping):
        return [type(value).__name__, *[leaf for key, item in value.items() for leaf in (key, *leaves(item))]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[leaf for item in value for leaf in leaves(item)]]
    return [value]


def sharing(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """For each tensor the first of all that has its storage, and where in it the tensor begins."""
    found: dict[int, int] = {}
    return [
        (found.setdefault(t.untyped_storage().data_ptr() or -i - 1, i), t.storage_offset() if t.numel() else 0)
        for i, t in enumerate(tensors)
    ]


def assert_alike(function: Program, compiled: Program, inputs: Inputs) -> None:
    ours, theirs = inputs(), inputs()
    found, expected = leaves([ours, compiled(*ours)]), leaves([theirs, function(*theirs)])
    tensors = [[leaf for leaf in side if isinstance(leaf, torch.Tensor)] for side in (found, expected)]
    rest = [[leaf for leaf in side if not isinstance(leaf, torch.Tensor)] for side in (found, expected)]
    assert rest[0] == rest[1]
    for mine, his in zip(*tensors, strict=True):
        torch.testing.assert_close(mine, his)
        assert mine.stride() == his.stride()
    assert sharing(tensors[0]) == sharing(tensors[1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_and_results_are_eagers(name: str) -> None:
    function, inputs = PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a graph of")
        compiled = torch.compile(function, backend="buddy")
        for _ in range(2):
            assert_alike(function, compiled, inputs)


def test_inputs_that_share_memory_in_one_call_need_not_in_the_next() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, y.view(2, 3), y[2:], y.t()]

    compiled = torch.compile(f, backend="buddy")
    assert_alike(f, compiled, disjoint_views)
    assert_alike(f, compiled, lambda: (torch.ones(6), torch.arange(6.0)))
    shifted = torch.arange(20.0)
    assert_alike(f, compiled, lambda: (shifted[12:18], shifted[3:9]))


def test_results_of_other_strides_can_be_written_to() -> None:
    """Autograd refuses to write to a view that a compiled function gave."""
    convolution = nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)
    compiled = torch.compile(convolution, backend="buddy")
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    gradients = []
    for run in (compiled, convolution):
        y = run(x)
        y.relu_()
        assert y.is_contiguous(memory_format=torch.channels_last)
        gradients.append(torch.autograd.grad(y.square().sum(), convolution.weight))
    # Sums of 8 products that round to f32 in another order, beside values of a few units.
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


class Counting(nn.Module):
    """Running statistics, a counter, and a cache that grows in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("kept", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.kept[1] += x.mean(0)
        return self.norm(x) + self.kept.sum()


@pytest.mark.parametrize("grad", [False, True])
def test_buffers_change_as_in_eager(grad: bool) -> None:
    sides = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = Counting()
        run = torch.compile(model, backend="buddy") if compiled else model
        with torch.set_grad_enabled(grad):
            results = [run(square() + i) for i in range(3)]
        sides.append([*results, *model.buffers()])
    torch.testing.assert_close(*sides)
