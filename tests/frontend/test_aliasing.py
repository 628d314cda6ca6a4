"""Results of compiled graphs share memory with each other and with inputs exactly as those of eager do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("error:a graph of")]

WEIGHT = torch.nn.Parameter(torch.randn(4))


def written_inside(x: torch.Tensor) -> Sequence[torch.Tensor]:
    y = x * 2
    y[1:].mul_(3)
    return y[:2], y[2:]


def written_behind_a_break(x: torch.Tensor) -> Sequence[torch.Tensor]:
    y = x * 2
    a, b = y[1:], y[:2]
    torch._dynamo.graph_break()
    a.zero_()
    return (b,)


def split_and_sliced(x: torch.Tensor) -> Sequence[torch.Tensor]:
    y = x + 1
    return *y.split(2), y[1:3]


def columns(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return (x * 2).view(2, 2).t().unbind(0)


def of_several_results(x: torch.Tensor) -> Sequence[torch.Tensor]:
    values, places = torch.max(x.view(2, 2), 0)
    return values[:1], values[1:], places[:1], places[1:]


def parts_of_complex(x: torch.Tensor) -> Sequence[torch.Tensor]:
    y = torch.complex(x, x + 1)
    return y.real, y.imag


def of_other_types(x: torch.Tensor) -> Sequence[torch.Tensor]:
    y = x * 2
    return y.view(torch.int32)[:2], y[1:], y.view(torch.int16)[3:]


def twice(x: torch.Tensor) -> Sequence[torch.Tensor]:
    y = x + 1
    return y, y, y[1:]


def of_parameters(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return x + WEIGHT, WEIGHT[1:], WEIGHT.detach()[:3]


PROGRAMS: list[Callable[[torch.Tensor], Sequence[torch.Tensor]]] = [
    written_inside, written_behind_a_break, split_and_sliced, columns, of_several_results, parts_of_complex,
    of_other_types, twice, of_parameters,
    lambda x: ((x + 1)[:3], (x + 1)[1:]),
    lambda x: (lambda y: (y[:3], y[1:]))(x + 1),
    lambda x: ((x + 1)[1:],),
    lambda x: (x[1:], x[:2], x),
    lambda x: (lambda y: (y[0].expand(3), y[:2].expand(2, 2)))(x + 1),
    lambda x: (lambda y: (y.as_strided((2,), (2,), 1), y.unsqueeze(1)))(x + 1),
    lambda x: (torch.complex(x, x).conj(), torch.fft.ifft(x), torch.complex(x, x).view(2, 2).mH),
]  # fmt: skip


def memory(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Which of `tensors` share memory, and where they lie in it."""
    numbers: dict[int, int] = {}
    return [
        (
            numbers.setdefault(t.untyped_storage().data_ptr(), len(numbers)),
            *(t.stride(), t.storage_offset(), t.is_conj(), t.is_neg()),
        )
        for t in tensors
    ]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_lie_in_memory_as_in_eager(program: Callable[..., Any], grad: bool, dynamic: bool) -> None:
    x = torch.randn(4)
    ours, theirs = x.clone().requires_grad_(grad), x.clone().requires_grad_(grad)
    run = torch.compile(program, backend="buddy", dynamic=dynamic)
    results, expected = run(ours), program(theirs)
    assert memory([ours, WEIGHT, *results]) == memory([theirs, WEIGHT, *expected])
    torch.testing.assert_close(list(results), list(expected))


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_written_to_one_result_is_seen_in_the_others(grad: bool) -> None:
    x = torch.randn(4, requires_grad=grad)
    results = []
    for run in (split_and_sliced, torch.compile(split_and_sliced, backend="buddy")):
        found = run(x)
        found[2].add_(100)
        results.append([t.detach() for t in found])
    torch.testing.assert_close(results[1], results[0])
    assert results[1][0][1] > 90


def test_gradients_go_through_what_is_written_outside() -> None:
    """A view that was made without gradients could not be multiplied in place by what has some."""

    def f(x: torch.Tensor) -> Sequence[torch.Tensor]:
        y = x + 1
        return y[:3], y[1:]

    x, grads = torch.randn(4), []
    for run in (f, torch.compile(f, backend="buddy")):
        weight = torch.full((3,), 2.0, requires_grad=True)
        a, b = run(x)
        a.mul_(weight)
        b.sum().backward()
        grads.append(weight.grad)
    torch.testing.assert_close(grads[1], grads[0])


# PyTorch says of these while it traces that they are in another format.
FORMATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "roll": lambda x: x.roll(1, 2),
    "roll of two dims": lambda x: x.roll((1, -2), (0, 3)),
    "roll of all": lambda x: x.roll(3),
    "fftshift": torch.fft.fftshift,
    "channel_shuffle": lambda x: torch.nn.functional.channel_shuffle(x, 2),
    "logsigmoid": torch.nn.functional.logsigmoid,
    "batch_norm": lambda x: torch.nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "batch_norm in training": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.slow
def test_results_are_in_eagers_format() -> None:
    x = torch.randn(2, 4, 3, 5)
    for operand in (x, x.to(memory_format=torch.channels_last), x.mT, x[:1].expand(2, 4, 3, 5), x[:, :, :, ::2]):
        results = torch.compile(lambda x: [f(x) for f in FORMATS.values()], backend="buddy")(operand)
        for (name, function), found in zip(FORMATS.items(), results, strict=True):
            torch.testing.assert_close(found, function(operand), check_stride=True, msg=lambda text, n=name: n + text)
