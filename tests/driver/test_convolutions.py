"""Programs around convolutions, compiled by the default preset, beside eager: the order in memory changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

Call = Callable[[torch.Tensor], object]


class Residual(nn.Module):
    """Convolution, batch norm, activation and shortcut, with a projection of the shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.project = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
        for number, norm in enumerate(self.norms):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2 + number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.norms[2](self.project(x)))


class Squeezed(nn.Module):
    """A depthwise convolution whose channels are weighed by what is in all of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.hardswish(self.depthwise(x))
        weights = functional.hardsigmoid(self.up(torch.relu(self.down(functional.adaptive_avg_pool2d(y, 1)))))
        return y * weights + x


class Dense(nn.Module):
    """Results side by side among the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 7, 3, padding=1), nn.Conv2d(channels + 7, 9, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, torch.relu(self.first(x))], 1)
        return torch.cat([y, self.second(y)], 1)


def patches(x: torch.Tensor) -> torch.Tensor:
    """An embedding of patches, as in vision transformers: tokens whose last dim are the channels."""
    return functional.conv2d(x, weights(24, x.shape[1], 4, 4), stride=4).flatten(2).transpose(1, 2)


def shuffled(x: torch.Tensor) -> torch.Tensor:
    y = functional.conv2d(x, weights(12, x.shape[1], 3, 3), padding=1)
    return functional.pixel_shuffle(y, 2)


def channels_turned(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    y = functional.conv2d(x, weights(c, 1, 3, 3), padding=1, groups=c)
    return y.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w) + x


def heights_turned(x: torch.Tensor) -> torch.Tensor:
    y = functional.conv2d(x, weights(5, x.shape[1], 3, 3), padding=1)
    return y.transpose(2, 3) + x.sum(1, keepdim=True).transpose(2, 3)


def cut_and_flat(x: torch.Tensor) -> torch.Tensor:
    y = functional.max_pool2d(functional.conv2d(x, weights(6, x.shape[1], 5, 5), stride=2), 2)
    return y[:, 1:5, :-1, 1:].flatten(1) @ torch.ones(4 * (y.shape[2] - 1) * (y.shape[3] - 1), 3)


def two_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = functional.conv2d(x, weights(8, x.shape[1], 3, 3))
    return y, torch.relu(y), functional.softmax(y, 1).amax((2, 3))


def positions(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = functional.conv2d(x, weights(8, x.shape[1], 3, 3))
    return functional.max_pool2d(y, 3, 2, 1, return_indices=True)


def weights(*shape: int) -> torch.Tensor:
    """Fixed numbers around the inverse root of the products per sum."""
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float32)).view(shape) * (shape[0] / count) ** 0.5


SHAPES = [(1, 18, 16, 16), (2, 6, 13, 17)]
PROGRAMS: dict[str, Callable[[int], Call]] = {
    "residual": lambda c: Residual(c, 17, 2).eval(),
    "residuals": lambda c: nn.Sequential(Residual(c, 16, 1), Residual(16, 33, 2)).eval(),
    "squeezed": lambda c: Squeezed(c).eval(),
    "dense": lambda c: Dense(c).eval(),
    "patches": lambda c: patches,
    "shuffled": lambda c: shuffled,
    "channels turned": lambda c: channels_turned,
    "heights turned": lambda c: heights_turned,
    "cut and flat": lambda c: cut_and_flat,
    "two results": lambda c: two_results,
    "positions": lambda c: positions,
    "pooled": lambda c: nn.Sequential(nn.Conv2d(c, 19, 3, padding=1), nn.AvgPool2d(3, 2, 1), nn.Hardswish()),
    "grouped": lambda c: nn.Sequential(nn.Conv2d(c, 9, 1), nn.Conv2d(9, 15, 3, groups=3, padding=2, dilation=2)),
    "padded": lambda c: lambda x: functional.conv2d(x, torch.ones(7, c, 3, 3), padding=1) / (9 * c + 1),
    "multiplied": lambda c: nn.Sequential(nn.Conv2d(c, 2 * c, 3, groups=c, padding=1), nn.Sigmoid()),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)
    torch._dynamo.reset()


def check(program: Call, x: torch.Tensor, **options: str) -> None:
    compiled = torch.compile(program, backend="buddy", options={"fallback": "error", **options})
    # Sums of some hundred products around one, in another order: a few of their roundings.
    torch.testing.assert_close(compiled(x), program(x), rtol=1e-4, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, shape: tuple[int, ...]) -> None:
    check(PROGRAMS[name](shape[1]), torch.randn(shape))


EMPTY = {
    "no images": ("residual", (0, 6, 8, 8)),
    "no channels": ("padded", (2, 0, 8, 8)),
    "nothing left": ("cut and flat", (3, 12, 9, 8)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_without_elements(name: str) -> None:
    program, shape = EMPTY[name]
    check(PROGRAMS[program](shape[1]), torch.randn(shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_special_values_stay_in_their_windows(value: float) -> None:
    x = torch.randn(1, 18, 16, 16)
    x[0, 3, 7, 9] = value
    check(nn.Sequential(nn.Conv2d(18, 17, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.ReLU()), x)


def test_other_numbers_of_dims() -> None:
    check(nn.Sequential(nn.Conv1d(5, 17, 3, 2, 1), nn.GELU(), nn.Conv1d(17, 7, 3, padding=1)), torch.randn(2, 5, 33))
    check(nn.Sequential(nn.Conv3d(3, 17, 3, padding=1), nn.ReLU()), torch.randn(2, 3, 5, 6, 7))


@pytest.mark.parametrize("name", ["residual", "multiplied"])
def test_bfloat16_is_as_exact_as_eager(name: str) -> None:
    """Both round after each op, and add in f32: the errors of a norm of thousands of elements differ little."""
    program, x = PROGRAMS[name](18), torch.randn(1, 18, 16, 16, dtype=torch.bfloat16)
    assert isinstance(program, nn.Module)
    program.bfloat16()
    exact = copy.deepcopy(program).double()(x.double())
    compiled = torch.compile(program, backend="buddy", options={"fallback": "error", "freeze": True})
    error, of_eager = ((found.double() - exact).norm().item() for found in (compiled(x), program(x)))
    assert error <= 1.1 * of_eager


@pytest.mark.parametrize("name", ["residual", "squeezed", "patches", "pooled"])
def test_tosa_gives_the_same_numbers(name: str) -> None:
    check(PROGRAMS[name](6), torch.randn(2, 6, 13, 17), dialect="tosa")
