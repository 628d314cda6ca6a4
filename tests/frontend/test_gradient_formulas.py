"""Gradients by this project's decompositions: against eager's kernels on many calls, and compiled without eager ops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its name everywhere)

from buddy.compiler.frontend import chunked_losses, fractional_pools, grid_sampling, resampling, segment_gradients

aten = torch.ops.aten
DOUBLE = torch.float64


def assert_same(ours: Any, theirs: Any) -> None:
    """Double precision: only the order of sums differs. Strides must be eager's."""
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("dims", "interpolation"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_the_gradients_of_places_in_images(dims: int, interpolation: int, padding: int, align_corners: bool) -> None:
    torch.manual_seed(0)
    backward = getattr(aten, f"grid_sampler_{dims}d_backward")
    for spread in (0.7, 2.5):
        x = torch.randn(2, 3, *[5, 4, 3][:dims], dtype=DOUBLE)
        grid = torch.randn(2, *[4, 7, 2][:dims], dims, dtype=DOUBLE) * spread
        gradient = torch.randn(2, 3, *grid.shape[1:-1], dtype=DOUBLE)
        way = (interpolation, padding, align_corners)
        ours = grid_sampling.grid_sample_backward(gradient, x, grid, *way, [True, True])
        assert_same(ours, backward(gradient, x, grid, *way, [True, True]))
        assert grid_sampling.grid_sample_backward(gradient, x, grid, *way, [False, True])[0] is None


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("mode", ["max", "min", "prod", "mean", "sum"])
def test_the_gradient_of_segments(mode: str, initial: float | None) -> None:
    draw = random.Random(0)
    torch.manual_seed(0)
    for _ in range(40):
        axis, size, count = draw.randint(0, 1), draw.randint(1, 9), draw.randint(1, 4)
        outer, inner = [3] * axis, [2] * draw.randint(0, 2)
        data = torch.randint(-3, 4, [*outer, size, *inner]).double()  # with zeros and equal numbers
        if draw.random() < 0.3:
            data = torch.where(torch.rand_like(data) < 0.2, math.nan, data)
        cuts = torch.sort(torch.randint(0, size + 1, [*outer, count - 1]))[0]
        offsets = torch.cat([cuts.new_zeros([*outer, 1]), cuts, cuts.new_full([*outer, 1], size)], -1)
        limits = {"offsets": offsets} if draw.random() < 0.5 else {"lengths": offsets.diff(dim=-1)}
        output = torch.segment_reduce(data, mode, axis=axis, initial=initial, **limits)
        options = {"axis": axis, "initial": initial, **limits}
        gradient = torch.randn_like(output)
        ours = segment_gradients.segment_reduce_backward(gradient, output, data, mode, **options)
        assert_same(ours, aten._segment_reduce_backward(gradient, output, data, mode, **options))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_gradients_of_bags(mode: int) -> None:
    draw = random.Random(mode)
    torch.manual_seed(0)
    for _ in range(60):
        rows, width, count, bags = (draw.randint(1, top) for top in (5, 4, 9, 4))
        table, indices = torch.randn(rows, width, dtype=DOUBLE), torch.randint(0, rows, [count])
        if draw.random() < 0.2:
            table = torch.where(torch.rand_like(table) < 0.2, math.nan, table)
        starts = torch.sort(torch.randint(0, count + 1, [bags - 1]))[0]
        with_end, padding = draw.random() < 0.4, draw.choice([-1, -1, 0])
        offsets = torch.cat([starts.new_zeros(1), starts, *[starts.new_full([1], count)] * with_end])
        weights = torch.randn(count, dtype=DOUBLE) if mode == 0 and draw.random() < 0.5 else None
        options = (False, mode, False, weights)
        forward = aten._embedding_bag(table, indices, offsets, *options, with_end, padding)
        ours = segment_gradients.embedding_bag(table, indices, offsets, *options, with_end, padding)
        assert_same(ours[:3], forward[:3])
        if mode == 2:  # of an empty bag, eager's rows are memory that nobody has written
            assert_same(ours[3][forward[2] > 0], forward[3][forward[2] > 0])
        gradient = torch.randn_like(forward[0])
        given = (gradient, indices, offsets, *forward[1:], rows, *options, padding)
        assert_same(segment_gradients.embedding_bag_backward(*given), aten._embedding_bag_backward(*given))
        given = (gradient, table, indices, offsets, forward[1], mode, padding)
        if weights is not None:
            expected = aten._embedding_bag_per_sample_weights_backward(*given)
            assert_same(segment_gradients.sample_weights_backward(*given), expected)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("dims", [2, 3])
def test_pools_whose_windows_are_drawn(dims: int, dtype: torch.dtype) -> None:
    draw = random.Random(0)
    torch.manual_seed(0)
    for _ in range(80):
        kernel, result = ([draw.randint(1, 4) for _ in range(dims)] for _ in "kr")
        sizes = [k + r + draw.randint(0, 3) for k, r in zip(kernel, result, strict=True)]
        batch = draw.choice([[], [0], [2]])
        x = torch.randint(-4, 5, [*batch, 2, *sizes]).to(dtype)  # with equal numbers
        if draw.random() < 0.3:
            x = torch.where(torch.rand_like(x) < 0.2, math.nan, x)
        samples = torch.rand(*(batch or [1]), 2, dims, dtype=dtype)
        expected = getattr(aten, f"fractional_max_pool{dims}d")(x, kernel, result, samples)
        assert_same(fractional_pools.fractional_max_pool(x, kernel, result, samples), expected)
        gradient = torch.randn_like(expected[0])
        given = (gradient, x, kernel, result, expected[1])
        ours = fractional_pools.fractional_max_pool_backward(*given)
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
        torch.testing.assert_close(ours, getattr(aten, f"fractional_max_pool{dims}d_backward")(*given), **tolerance)


@pytest.mark.parametrize("scales", [(None, None), (0.7, 1.5)])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("name", "taps"), [("bilinear", 2), ("bicubic", 4)])
def test_the_gradient_of_antialiased_images(
    name: str, taps: int, align_corners: bool, scales: tuple[float | None, float | None]
) -> None:
    torch.manual_seed(0)
    kernel = resampling.ResamplingFilter(taps, antialias=True)
    for sizes, results in (((9, 7), (4, 5)), ((3, 11), (8, 2)), ((1, 4), (3, 4))):
        for memory_format in (torch.contiguous_format, torch.channels_last):
            gradient = torch.randn(2, 3, *results, dtype=DOUBLE).contiguous(memory_format=memory_format)
            given = (gradient, list(results), [2, 3, *sizes], align_corners)
            expected = getattr(aten, f"_upsample_{name}2d_aa_backward")(*given, *scales)
            assert_same(resampling.resample_gradient(*given, scales, kernel), expected)


def bag(mode: str) -> Callable[..., torch.Tensor]:
    return lambda w, i: F.embedding_bag(i, w, i.new_tensor([0, 2, 2]), mode=mode, padding_idx=1)


def weighted_bag(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(i.reshape(2, -1), w, mode="sum", per_sample_weights=w[:2, :3])


def places(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(w[None, None], w[:4].reshape(1, 2, 4, 2).tanh(), align_corners=False)


def places_in_a_volume(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(
        w.reshape(1, 1, 2, 3, 4), w[:3].reshape(1, 1, 2, 2, 3), padding_mode="border", align_corners=True
    )


def segments(mode: str) -> Callable[..., torch.Tensor]:
    return lambda w, i: torch.segment_reduce(w, mode, lengths=i.new_tensor([2, 0, 3, 1]), initial=1.0)


def drawn_pool(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.fractional_max_pool2d(w[None], 2, output_size=(2, 3), _random_samples=w[:1, :2][None].detach().sigmoid())


def drawn_pool_of_a_volume(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x = w.reshape(1, 2, 3, 4)
    return F.fractional_max_pool3d(
        x, (1, 2, 2), output_size=(1, 1, 2), _random_samples=w[:1, :3][None].detach().sigmoid()
    )


def complex_edges(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(F.pad(torch.complex(w, w * 2 + 1)[None], (2, 1), mode="replicate")).pow(2)


def smaller(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.interpolate(w[None, None], (3, 2), mode="bilinear", antialias=True)


PROGRAMS = {
    **{f"bags, {mode}": bag(mode) for mode in ("sum", "mean", "max")},
    **{f"segments, {mode}": segments(mode) for mode in ("sum", "mean", "max", "min", "prod")},
    "weighted bags": weighted_bag,
    "places in an image": places,
    "places in a volume": places_in_a_volume,
    "drawn pool": drawn_pool,
    "drawn pool of a volume": drawn_pool_of_a_volume,
    "antialiased": smaller,
    "complex edges": complex_edges,
}


def gradients(program: Callable[..., torch.Tensor], weight: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
    leaf = weight.clone().requires_grad_()
    result = program(leaf, *rest)
    (result * torch.arange(1.0, result.numel() + 1, dtype=result.dtype).reshape(result.shape)).sum().backward()
    assert leaf.grad is not None
    return [result.detach(), leaf.grad]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_gradients_are_compiled_without_eager(program: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    given = (torch.randn(6, 4, dtype=DOUBLE), torch.tensor([0, 1, 4, 1, 5, 0]))
    fast = torch.compile(program, backend="buddy", fullgraph=True, options={"fallback": "error"})
    torch.testing.assert_close(gradients(fast, *given), gradients(program, *given), rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(not chunked_losses.DECOMPOSITIONS, reason="this PyTorch has no loss in chunks")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_losses_in_chunks(reduction: str, with_bias: bool) -> None:
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions  # not before PyTorch 2.13

    options = LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=True)
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, target, class_weight = torch.randn(5, 3, dtype=DOUBLE), torch.tensor([0, 3, 1, 3, 2]), torch.rand(4).double()
    biases = [torch.randn(4, dtype=DOUBLE)] * with_bias

    def program(weight: torch.Tensor, x: torch.Tensor, target: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return F.linear_cross_entropy(
            x, weight, target, linear_bias=bias[0] if bias else None, weight=class_weight, ignore_index=1,
            reduction=reduction, options=options,
        )  # fmt: skip

    weight = torch.randn(4, 3, dtype=DOUBLE)
    fast = torch.compile(program, backend="buddy", fullgraph=True, options={"fallback": "error"})
    ours = gradients(fast, weight, x, target, *biases)
    torch.testing.assert_close(ours, gradients(program, weight, x, target, *biases), rtol=1e-11, atol=1e-11)
