"""Ops that are compiled by decomposition, against eager: bit for bit where they only round, move or choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)

aten, prims, F = torch.ops.aten, torch.ops.prims, torch.nn.functional
STRICT = {"fallback": "error"}
SPECIAL = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 2.5e9, 1e18, -1e18, 0.0, -0.0]


def compiled(call: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(call, backend="buddy", fullgraph=True, options=STRICT)(*inputs)


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, Sequence):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def steps(dtype: torch.dtype, count: int = 64) -> torch.Tensor:
    """Numbers on, between and beyond the steps of 0.1 from -12.8 to 12.7, and those that are no such numbers."""
    generator = torch.Generator().manual_seed(5)
    random = torch.randn(count - 24 - len(SPECIAL), generator=generator) * 8
    halves = torch.arange(-12, 12) * 0.05
    return torch.cat([random, halves, torch.tensor(SPECIAL)]).to(dtype)


def fake_quantised(x: torch.Tensor) -> list[torch.Tensor]:
    """One result for each form of the op, on 8 channels of 8."""
    scale, zero, bits = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32), (-128, 127)
    scales, zeros = torch.tensor([0.03, 0.1, 0.13, 0.3, 0.37, 0.5, 0.61, 0.7]), torch.arange(-4, 4, dtype=torch.int32)
    square = x.reshape(8, 8)
    return [
        torch.fake_quantize_per_tensor_affine(x, 0.1, 3, *bits),
        torch.fake_quantize_per_tensor_affine(x, 0.013, 7, 0, 255),
        torch.fake_quantize_per_tensor_affine(x, scale, zero, *bits),
        torch.fake_quantize_per_channel_affine(square, scales, zeros, 0, *bits),
        torch.fake_quantize_per_channel_affine(square, scales, zeros, 1, *bits),
        *aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, *bits),
        *aten.fake_quantize_per_channel_affine_cachemask(square, scales, zeros, 1, *bits),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_fake_quantisation_rounds_as_eager_does(dtype: torch.dtype) -> None:
    x = steps(dtype)
    assert_same(compiled(fake_quantised, x), fake_quantised(x))


@pytest.mark.parametrize("on", [0, 1])
def test_fake_quantisation_can_be_switched_off_by_a_tensor(on: int) -> None:
    def call(x: torch.Tensor, enabled: torch.Tensor) -> Any:
        scale, zero = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
        op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        return op(x, scale, zero, enabled, -128, 127)

    inputs = steps(torch.float32), torch.tensor([on])
    assert_same(compiled(call, *inputs), call(*inputs))


def test_the_gradient_of_fake_quantisation_is_that_of_what_was_not_clamped() -> None:
    def gradient(call: Callable[..., Any]) -> torch.Tensor:
        x = steps(torch.float32).requires_grad_()
        call(x).backward(torch.arange(64.0))
        assert x.grad is not None
        return x.grad

    quantise = partial(torch.fake_quantize_per_tensor_affine, scale=0.1, zero_point=3, quant_min=-128, quant_max=127)
    assert_same(gradient(partial(compiled, lambda x: quantise(x))), gradient(quantise))


def views_by_prims(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        prims.collapse_view(x, 0, 1), prims.split_dim(x, 2, 2), prims.squeeze(x[None], [0]), prims.view_of(x),
        prims.broadcast_in_dim(x, [2, 3, 5, 4, 6], [1, 3, 4]), prims.transpose(x, [2, 0, 1]),
        prims.view_of_dtype(x, torch.int32),
    ]  # fmt: skip


def values_by_prims(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        prims.collapse(x, 1, 2), prims.where(x > 0, x, prims.neg(x)), prims.rev(x, [0, 2]),
        prims.floor(prims.abs(x)), prims.maximum(x, prims.trunc(x)), prims.reshape(x, [6, 12]),
        prims.iota(5, start=2, step=3, dtype=torch.int64, device=x.device, requires_grad=False),
        prims.copy_strided(x, [1, 3, 12]), prims.eq(x, x),
        prims.full_like(x, 2.5, dtype=x.dtype, device=x.device, requires_grad=False),
    ]  # fmt: skip


@pytest.mark.parametrize("call", [views_by_prims, values_by_prims])
def test_ops_of_prims_are_those_of_aten(call: Callable[..., Any]) -> None:
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
    assert_same(compiled(call, x), call(x))


def test_sqrt_by_prims_is_correctly_rounded() -> None:
    """Eager's is not on every CPU: MKL's may be off by the last bit, so it is no reference here."""
    x = torch.rand(3, 4, 6, generator=torch.Generator().manual_seed(1))
    assert_same(compiled(lambda x: [prims.sqrt(x)], x), [x.double().sqrt().float()])


def test_views_by_prims_share_memory_as_in_eager() -> None:
    def call(x: torch.Tensor) -> Any:
        y = x + 1
        return y, prims.split_dim(y, 1, 2)

    y, view = compiled(call, torch.zeros(2, 4))
    y.add_(5)
    assert (view == 6).all()


def test_index_put_by_the_op_behind_it() -> None:
    def call(x: torch.Tensor, i: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        flags = [(accumulate, unsafe) for accumulate in (False, True) for unsafe in (False, True)]
        return [aten._index_put_impl_(x + n, [None, i], values, *given) for n, given in enumerate(flags)]

    inputs = torch.zeros(3, 5), torch.tensor([4, 0, 1, 2]), torch.arange(12.0).reshape(3, 4)
    assert_same(compiled(call, *inputs), call(*inputs))


MASK, WIDE = torch.tensor([True, False, True, True]), torch.tensor([[True, False], [False, True], [True, False]])
BESIDE_MASKS: list[tuple[list[int], list[torch.Tensor | None], list[int]]] = [
    ([4, 6], [MASK, torch.tensor([1, 2, 5])], [3]),
    ([4, 6], [MASK, torch.tensor([1, 2, 5])], []),
    ([4, 6, 2], [MASK, torch.tensor([1, 2, 5])], [3, 2]),
    ([6, 4, 2], [torch.tensor([1, 2, 5]), MASK], [3, 1]),
    ([4, 6, 2], [MASK, None, torch.tensor([1, 0, 1])], [3, 6]),
    ([3, 2, 7], [WIDE, torch.tensor([6, 0, 3])], [3]),
    ([4, 6], [torch.tensor([False, False, True, False]), torch.tensor([1, 2, 5])], [3]),
    ([4, 6], [MASK, torch.tensor(3)], []),
    ([4, 6], [MASK, torch.tensor([3])], [3]),
    ([4, 4], [MASK, MASK], [3]),
    ([4, 4], [MASK.to(torch.uint8), MASK], []),
]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_a_mask_beside_other_subscripts_writes_where_both_point(accumulate: bool) -> None:
    """All cases in one program; masks are its inputs, so that nothing is known of how many ones they have."""
    inputs = [i for _, indices, _ in BESIDE_MASKS for i in indices if i is not None]
    generator = torch.Generator().manual_seed(3)
    values = [torch.rand(shape, generator=generator) for *_, shape in BESIDE_MASKS]

    def call(*given: torch.Tensor) -> list[torch.Tensor]:
        left = iter(given)
        return [
            aten.index_put(torch.zeros(shape), [None if i is None else next(left) for i in indices], v, accumulate)
            for (shape, indices, _), v in zip(BESIDE_MASKS, values, strict=True)
        ]

    assert_same(compiled(call, *inputs), call(*inputs))


def test_a_mask_with_another_count_than_its_neighbours_is_refused_as_in_eager() -> None:
    def call(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return aten.index_put(x, [mask, torch.tensor([1, 2])], torch.tensor(1.0))

    for run in (call, partial(compiled, call)):
        with pytest.raises(IndexError, match="could not be broadcast"):
            run(torch.zeros(4, 6), MASK)


STRIDED: list[tuple[Callable[..., Any], str]] = [
    (lambda x: torch.as_strided(x[1:], (2, 3), (6, 2), 1), "a slice, from the beginning of its memory"),
    (lambda x: torch.as_strided(x[1:], (2, 3), (6, 2)), "a slice, from its own beginning"),
    (lambda x: torch.as_strided(x.t(), (2, 3), (6, 2)), "a transposed tensor"),
    (lambda x: torch.as_strided((x * 2)[:, 1:].t()[1:], (2, 2), (1, 3)), "views of an intermediate"),
    (lambda x: torch.as_strided(torch.relu(x).t().contiguous(), (3, 3), (4, 1), 2), "a copy in another order"),
    (lambda x: torch.as_strided_scatter(x[1:], x.new_ones(2, 2), (2, 2), (1, 6), 7), "written behind a slice"),
    (lambda x: torch.as_strided_scatter(x.t(), x.new_ones(2, 2), (2, 2), (1, 6), 7), "written, transposed"),
    (lambda x: torch.as_strided(x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last), (5, 2), (3, 1), 1),
     "channels last"),
]  # fmt: skip


def read_through_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What lies before, between and behind the elements of a view, also of complex numbers."""
    c = torch.complex(x, x + 1).flatten()
    parts = (x + 3).flatten().split(4)
    return (
        (x * 2).flatten()[::2].as_strided((2,), (1,)).exp(),
        (x + 1).flatten()[1:].as_strided((2,), (1,), 0) + x[0, :2],
        x.cumsum(0)[:1].as_strided((12,), (1,)),
        parts[1].as_strided((9,), (1,), 2),
        (c * 2)[::2].as_strided((2,), (1,)),
        (c * 2)[1::2].as_strided((2,), (1,), 0) + 1,
        torch.as_strided_scatter((c + 1)[:6][::2], c[:2], (2,), (1,)),
    )


def test_as_strided_reads_what_lies_around_views_of_all_kinds() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    for found, expected in zip(compiled(read_through_views, x), read_through_views(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_as_strided_reads_the_memory_behind_views() -> None:
    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [read(x) for read, _ in STRIDED]

    x = torch.arange(24.0).reshape(4, 6)
    for (_, name), found, expected in zip(STRIDED, compiled(call, x), call(x), strict=True):
        assert found.stride() == expected.stride(), name
        assert found.equal(expected), name


def test_as_strided_of_an_input_counts_from_the_beginning_of_its_storage() -> None:
    """PyTorch does not compile anew for an input at another offset."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x[1:], (2, 2), (1, 3), 1).exp()

    run, storage = torch.compile(call, backend="buddy"), torch.arange(24.0) / 9
    for x in (storage[:12].clone().view(4, 3), storage[12:].view(4, 3), storage[:12].view(4, 3)):
        torch.testing.assert_close(run(x), call(x))


def copies_of_views(x: torch.Tensor) -> list[torch.Tensor]:
    c = torch.complex(x, x + 1)
    return [
        aten.detach_copy(x), aten.slice_copy(x, 1, 1, 6, 2), aten.slice_copy(x), aten.select_copy(x, 1, -2),
        *aten.split_copy(x, 3, 1), aten._conj_copy(c), aten._neg_view_copy(x), aten.view_as_real_copy(c),
        aten.view_as_complex_copy(x.reshape(4, 3, 2)), aten._reshape_copy(x, [3, 8]),
        aten.view_as_real_copy(c.t()), aten.detach_copy(x.t()),
    ]  # fmt: skip


def test_copies_of_views_are_contiguous_as_in_eager() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    assert_same(compiled(copies_of_views, x), copies_of_views(x))


@pytest.mark.parametrize(("width", "pad"), [(3, 0), (3, 1), (1, 0)])
def test_conv_tbc_is_a_convolution_with_time_first(width: int, pad: int) -> None:
    x, weight, bias = torch.randn(7, 2, 6), torch.randn(width, 6, 4), torch.randn(4)
    found = compiled(lambda x, w, b: torch.conv_tbc(x, w, b, pad), x, weight, bias)
    assert found.stride() == torch.conv_tbc(x, weight, bias, pad).stride()
    # Products of 18 terms are summed in another order.
    torch.testing.assert_close(found, torch.conv_tbc(x, weight, bias, pad), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda x, m: torch.masked_scatter(x * 2, m, x.sin()), id="masked_scatter"),
        pytest.param(lambda x, m: torch.masked_scatter(x, m[:, :1], x.sin()[1:]), id="masked_scatter of a column"),
        pytest.param(lambda x, m: torch.sgn(x) + x, id="sgn"),
        pytest.param(lambda x, m: torch.nn.functional.pdist(x), id="pdist"),
        pytest.param(
            lambda x, m: torch.nn.functional.pdist(torch.cat([x, x[:1]]), 1.5), id="pdist, with a distance of 0"
        ),
    ],
)
def test_gradients_without_eager(call: Callable[..., Any]) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))

    def gradient(function: Callable[..., Any]) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        result = function(leaf, x > 0)
        return torch.autograd.grad(result, leaf, torch.arange(float(result.numel())).reshape(result.shape))[0]

    torch.testing.assert_close(gradient(lambda *inputs: compiled(call, *inputs)), gradient(call))


def losses_of_special_numbers(dtype: torch.dtype) -> dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor]]:
    """Functions whose rules in PyTorch treat NaN in another way than eager's kernels, each with its operand."""
    # Sizes that are whole vectors: for the elements that remain after them, eager's own kernels disagree.
    x = torch.cat([torch.tensor([*SPECIAL, 0.5, -0.5, 3.0, -3.0, 1.0, -1.0]), torch.linspace(-7, 7, 48)]).to(dtype)
    rows, classes = x.reshape(16, 4).t().contiguous(), torch.tensor([0, 7, 3, 15])
    weight = torch.linspace(0.5, 2, 16).to(dtype)
    cases = {
        "relu6": (F.relu6, x),
        "hardtanh": (partial(F.hardtanh, min_val=-0.5, max_val=0.5), x),
        "hardswish": (F.hardswish, x),
        "smooth_l1_loss": (lambda t: F.smooth_l1_loss(t, t.flip(0).detach()), x),
        "smooth_l1_loss, large beta": (lambda t: F.smooth_l1_loss(t, 0 * t.detach(), reduction="none", beta=2.0), x),
    }
    if dtype != torch.float32:
        return cases
    return cases | {
        "multi_margin_loss": (lambda t: F.multi_margin_loss(t, classes, reduction="none"), rows),
        "multi_margin_loss, squared": (lambda t: F.multi_margin_loss(t, classes, 2, weight=weight), rows),
        "multilabel_margin_loss": (
            lambda t: F.multilabel_margin_loss(t, classes[:, None].expand(4, 16).contiguous(), reduction="none"), rows,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_and_gradients_of_special_numbers(dtype: torch.dtype) -> None:
    cases = losses_of_special_numbers(dtype)

    def run(compile_: Callable[..., Any]) -> list[torch.Tensor]:
        leaves = [operand.clone().requires_grad_() for _, operand in cases.values()]
        results = compile_(lambda *inputs: [f(x) for (f, _), x in zip(cases.values(), inputs, strict=True)])(*leaves)
        gradients = torch.autograd.grad(results, leaves, [torch.ones_like(result) for result in results])
        return [*(result.detach() for result in results), *gradients]

    torch._dynamo.reset()
    found, expected = run(partial(torch.compile, backend="buddy")), run(lambda call: call)
    for label, one, other in zip((*cases, *(f"gradient of {name}" for name in cases)), found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, msg=lambda text, label=label: f"{label}: {text}")
