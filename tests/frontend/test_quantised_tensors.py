"""Quantised tensors: compiled as integers between `quantize_per_tensor` and `dequantize`, else left to eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)
from tests.frontend.test_decompositions import assert_same, compiled, steps

pytestmark = [
    pytest.mark.skipif(torch.__version__ < (2, 12), reason="Dynamo of PyTorch 2.11 leaves quantised tensors to eager"),
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
]
X = steps(torch.float32).reshape(8, 8)


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    """Halfway between two steps and beside it, where a rounding between product and sum shows."""
    found = []
    for scale, dtype, zero in ((0.1, torch.quint8, 3), (0.3, torch.qint8, 7), (0.37, torch.qint32, -5)):
        middle = (torch.arange(-90, 90) + 0.5) * scale + 0 * x[0, 0].nan_to_num()
        beside = [torch.nextafter(middle, middle + sign) for sign in (-1, 0, 1)]
        found += [torch.quantize_per_tensor(y, scale, zero, dtype).dequantize() for y in beside]
    return found


def types(x: torch.Tensor) -> list[torch.Tensor]:
    kinds = [(torch.quint8, 3), (torch.qint8, -5), (torch.qint32, -5), (torch.qint8, 0), (torch.quint8, 255)]
    return [torch.quantize_per_tensor(x, 0.1, zero, dtype).dequantize() for dtype, zero in kinds]


def scales(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        torch.quantize_per_tensor(x, scale, 1, torch.qint8).dequantize()
        for scale in (0.013, -0.1, 0.0, 1e-40, 1e38, float("inf"), float("nan"))
    ]


def moved(x: torch.Tensor) -> list[torch.Tensor]:
    q = torch.quantize_per_tensor(x * 2, 0.1, 3, torch.quint8)
    forms = [q.reshape(4, 16).t(), q[2:5, 1], q[:, None].expand(8, 2, 8).clone(), q.permute(1, 0).contiguous()]
    return [form.dequantize() for form in (*forms, torch.relu(q))]


def read_twice(x: torch.Tensor) -> torch.Tensor:
    q = torch.quantize_per_tensor(x.sin(), 0.02, 3, torch.quint8)
    return (q.dequantize() + torch.relu(q).dequantize()).exp()


def plain(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.dequantize(), x.half().dequantize(), x.double().dequantize()]


@pytest.mark.slow
@pytest.mark.parametrize("call", [types, scales, halves, moved, plain], ids=lambda f: f.__name__)
def test_an_intermediate_value_is_compiled_as_integers(call: Callable[..., Any]) -> None:
    assert_same(compiled(call, X), call(X))


def test_a_quantised_value_is_read_by_several() -> None:
    torch.testing.assert_close(compiled(read_twice, X), read_twice(X), equal_nan=True)


def by_tensors(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, scale, zero, torch.quint8).dequantize()


def test_scale_and_zero_point_in_tensors() -> None:
    call = torch.compile(by_tensors, backend="buddy", fullgraph=True, options={"fallback": "error"})
    for scale, zero in ((0.1, 3), (0.37, 0)):
        given = X, torch.tensor(scale), torch.tensor(zero)
        assert_same(call(*given), by_tensors(*given))
    for scale, zero in ((0.1, 256), (0.1, -1)):
        for run in (by_tensors, call):
            with pytest.raises(RuntimeError, match="zero_point"):
                run(X, torch.tensor(scale), torch.tensor(zero))


# ---- left to eager ---------------------------------------------------------------------------------------------------


def returned(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x.sin(), 0.1, 3, torch.qint8)


def clamped(x: torch.Tensor) -> torch.Tensor:
    q = torch.quantize_per_tensor(x.sin(), 0.1, 3, torch.quint8)
    return torch.clamp(q, -0.3, 0.5).dequantize()


def repeated(x: torch.Tensor) -> torch.Tensor:
    q = torch.quantize_per_tensor(x.sin(), 0.1, 3, torch.quint8)
    return torch.cat([q, q]).dequantize()


LEFT = {returned: "quantize_per_tensor", clamped: "clamp", repeated: "cat"}


@pytest.mark.parametrize("function", LEFT, ids=lambda f: f.__name__)
def test_what_is_not_an_intermediate_value_is_left_to_eager_with_op_and_line(function: Callable[..., Any]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = torch.compile(function, backend="buddy")(X)
    said = [str(w.message) for w in told if "runs in eager" in str(w.message)]
    assert len(said) == 1
    assert f"({LEFT[function]}) uses a quantised tensor" in said[0]
    assert "test_quantised_tensors.py:" in said[0]
    expected = function(X)
    assert found.is_quantized == expected.is_quantized
    assert torch.equal(found, expected) if found.is_quantized else not (found != expected).any()
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"uses a quantised tensor.*test_quantised_tensors\.py"):
        torch.compile(function, backend="buddy", options={"fallback": "error"})(X)


def asks(x: torch.Tensor) -> torch.Tensor:
    q = torch.quantize_per_tensor(x.sin(), 0.1, 3, torch.qint8)
    return q.int_repr() * q.q_scale() + q.q_zero_point()


def by_channel(x: torch.Tensor) -> torch.Tensor:
    q = torch.quantize_per_channel(x.sin(), torch.arange(1, 9) / 10, torch.arange(8), 0, torch.qint8)
    return q.dequantize() + q.q_per_channel_axis()


def reads_input(q: torch.Tensor) -> torch.Tensor:
    return q.dequantize().exp()


@pytest.mark.filterwarnings("ignore:a graph of .* runs in eager")
@pytest.mark.parametrize("function", [asks, by_channel, reads_input], ids=lambda f: f.__name__)
def test_what_dynamo_cannot_trace_has_the_values_of_eager(function: Callable[..., Any]) -> None:
    x = torch.quantize_per_tensor(X, 0.1, 3, torch.qint8) if function is reads_input else X
    assert_same(torch.compile(function, backend="buddy")(x), function(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"quantized|int_repr"):
        torch.compile(function, backend="buddy", fullgraph=True)(x)
