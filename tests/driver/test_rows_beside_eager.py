"""Softmax, norms, activations and sums at odd sizes and on extreme inputs: no further from the truth than eager is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as f

SIZES = (1, 2, 3, 7, 13, 17, 31, 33, 63, 65, 127, 129)
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: f.softmax(x, -1),
    "log_softmax": lambda x: f.log_softmax(x, -1),
    "layer_norm": lambda x: f.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: f.rms_norm(x, x.shape[-1:], eps=1e-6),
    "gelu": f.gelu,
    "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
    "silu": f.silu,
    "sum": lambda x: x.sum(-1),
    "mean_of_rows": lambda x: x.mean(0),
    "largest": lambda x: x.amax(-1),
}


def compiled(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The op on all inputs, in one program."""

    def every(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [OPS[name](x) for x in tensors]

    torch._dynamo.reset()
    with torch.no_grad():
        return list(torch.compile(every, backend="buddy", options={"fallback": "error"})(*inputs))


def worst(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place of the largest number, where the truth is finite."""
    finite = exact.isfinite()
    scale = exact.abs().where(finite, 0.0).max().clamp_min(torch.finfo(torch.float32).tiny)
    errors = ((result.double() - exact).abs() / scale).where(finite, 0.0)
    return float(errors.max()) / torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", OPS)
def test_errors_at_every_size(name: str) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(rows, size) * 5 for size in SIZES for rows in (1, 5)]
    for x, result in zip(inputs, compiled(name, inputs), strict=True):
        exact = OPS[name](x.double())
        assert result.shape == exact.shape
        # A few roundings more or fewer than eager, in sums of another order.
        assert worst(result, exact) <= 4 * worst(OPS[name](x), exact) + 4, tuple(x.shape)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("size", [5, 33])
def test_special_values_stay_what_eager_makes_of_them(name: str, size: int) -> None:
    rows = torch.randn(9, size, generator=torch.Generator().manual_seed(0))
    rows[0, 1], rows[1, 0], rows[2, -1] = float("nan"), float("inf"), -float("inf")
    rows[3] = -float("inf")
    rows[4] = 1e-41  # a denormal
    rows[5] = 3e38
    rows[6] = -3e38
    rows[7, ::2] = 88.5
    rows[8] = 0.0
    inputs = [row[None] for row in rows]
    for number, (x, result) in enumerate(zip(inputs, compiled(name, inputs), strict=True)):
        # In double precision: eager's GELU makes NaN of infinity in single precision only.
        expected = OPS[name](x.double()).float()
        if name in ("layer_norm", "rms_norm") and number in (5, 6):
            continue  # squares overflow: whether to infinity or NaN depends on the order of the sums
        torch.testing.assert_close(
            result, expected, rtol=2e-5, atol=1e-6, equal_nan=True, msg=f"{name} of row {number}"
        )
