"""`convolutions-to-kernels` with Winograd: numbers, infinities and extremes, and which kernel is chosen."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from buddy.compiler.passes.kernels.conv.winograd.transforms import TILE_SIZES, transforms
from tests.passes.convolution_calls import EPSILON, check, check_epilogue, weights_of, with_epilogue
from tests.passes.windows import Array, Window
from tests.support.mlir_jit import TARGETS, Compiled

CHANNELS = (1, 2, 3, 7, 13, 17, 31, 33, 65)


def windows(count: int, seed: int) -> list[Window]:
    """Windows of 3x3, side by side, over images whose sizes are multiples of nothing."""
    draw = random.Random(seed)
    found = []
    while len(found) < count:
        window = Window(
            draw.randint(1, 21), draw.randint(1, 21), draw.choice(CHANNELS[1:]), draw.choice(CHANNELS),
            padding=draw.choice((0, 1, 2)), batch=draw.choice((1, 2, 3)),
        )  # fmt: skip
        if min(window.outputs) > 1:
            found.append(window)
    return found


def compiled(found: list[Window], outputs: int | str, target: str = "avx512") -> Compiled:
    text = "\n".join(window.function(f"f{i}") for i, window in enumerate(found))
    return Compiled(text, [ConvolutionsToKernels(winograd=str(outputs))], target=TARGETS[target])


def run(module: Compiled, window: Window, image: torch.Tensor, weights: torch.Tensor) -> Array:
    a, b, c = window.arrays(image, weights)
    module("f0", a, *weights_of(module, "f0", b), c)
    return c


@pytest.mark.parametrize("outputs", TILE_SIZES)
def test_the_transforms_give_the_sums_of_a_window(outputs: int) -> None:
    found = transforms(outputs)
    draw = np.random.default_rng(0)
    d, g = draw.normal(size=outputs + 2), draw.normal(size=3)
    of_input, of_weights, of_output = (np.array(m) for m in (found.of_input, found.of_weights, found.of_output))
    expected = [d[i : i + 3] @ g for i in range(outputs)]
    # Sums of some ten products around one in double precision.
    np.testing.assert_allclose(of_output @ ((of_weights @ g) * (of_input @ d)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("outputs", "target"), [(2, "avx512"), (2, "small cache"), (4, "avx512"), (4, "avx2")])
@pytest.mark.slow
def test_many_shapes(outputs: int, target: str) -> None:
    found = windows(10, seed=outputs)
    module = compiled(found, outputs, target)
    assert all(f"winograd {outputs}x{outputs}" in remark for remark in module.remarks), module.remarks
    for i, window in enumerate(found):
        check(module, i, window)


def test_double_precision_sums_that_go_on_and_weights_that_are_no_parameter() -> None:
    double, plain = Window(9, 11, 7, 13, padding=1, element="f64"), Window(9, 11, 7, 13, padding=1)
    text = "\n".join([double.function("f0"), plain.function("f1", zero=False), plain.function("f2", parameter=False)])
    module = Compiled(text, [ConvolutionsToKernels(winograd="2")])
    assert module.remarks[1].endswith(", adds to C")
    assert module.remarks[2].endswith(", packed at each call")
    check(module, 0, double)
    check(module, 1, plain, start=3.0)
    check(module, 2, plain, parameter=False)


@pytest.mark.parametrize("outputs", TILE_SIZES)
def test_what_follows_goes_into_the_kernel(outputs: int) -> None:
    window = Window(9, 15, 7, 37, padding=1, batch=2)
    module = Compiled(with_epilogue(window), [FuseEpilogues(), ConvolutionsToKernels(winograd=str(outputs))])
    assert "linalg.generic" not in module.text, module.remarks
    check_epilogue(module, window)


@pytest.mark.parametrize("outputs", TILE_SIZES)
def test_infinity_and_nan_stay_in_their_windows(outputs: int) -> None:
    window = Window(13, 12, 5, 19)
    module = compiled([window], outputs)
    image, weights = window.operands()
    image[0, 3, 4, 5], image[0, 1, 11, 2], image[0, 0, 0, 11] = np.inf, np.nan, -np.inf
    expected = window.eager(image, weights).permute(0, 2, 3, 1).numpy()
    assert np.isinf(expected).any()
    found = run(module, window, image, weights)
    # As in tests of the other kernels: roundings of sums around one.
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * EPSILON["f32"] * 45**0.5)
    weights[3, 2, 1, 1] = -np.inf
    expected = window.eager(image, weights).permute(0, 2, 3, 1).numpy()
    found = run(module, window, image, weights)
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * EPSILON["f32"] * 45**0.5)


@pytest.mark.parametrize("outputs", TILE_SIZES)
@pytest.mark.parametrize("scale", [3e38, 1e-41])
def test_extreme_numbers(outputs: int, scale: float) -> None:
    """Sums of two neighbours overflow where the window's products do not; denormals lose no more than one of them."""
    window = Window(8, 7, 3, 17)
    module = compiled([window], outputs)
    image, weights = window.operands()
    image = image.sign() * scale
    weights = weights / 32 if scale > 1 else weights.sign()
    exact = window.expected(image, weights)
    assert np.abs(exact).max() < np.finfo(np.float32).max
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    # Eight epsilons of the largest sum of products, or a few of the smallest numbers for each of a tile's points.
    limit = 8 * EPSILON["f32"] * float(np.abs(exact).max()) + 4 * smallest * (outputs + 2) ** 2
    np.testing.assert_allclose(run(module, window, image, weights), exact, rtol=0, atol=limit)


def test_auto_takes_it_where_it_is_faster_and_says_why_not() -> None:
    wide = Window(14, 14, 64, 64, padding=1)
    others = [
        wide,
        Window(32, 32, 3, 64, padding=1),
        replace(wide, stride=2),
        replace(wide, groups=2),
        replace(wide, element="i32", factor="i32"),
    ]
    text = "\n".join(window.function(f"f{i}") for i, window in enumerate(others))
    text += wide.function("f5", parameter=False)
    remarks = Compiled(text, [ConvolutionsToKernels()]).remarks
    assert "winograd 2x2 in blocks of 49 tiles" in remarks[0]
    reasons = [remark.partition("not winograd: ")[2] for remark in remarks[1:-1]]
    assert reasons[0].startswith("the estimated speedup over direct convolution is only ")
    assert reasons[1:] == [
        "its window is not 3x3 with neighbours one step apart",
        "it has groups",
        "its sums are of type i32",
    ]
    assert "packed at each call" in remarks[-1]


def test_other_sizes_of_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="winograd must be one of auto, never, 2, 4, not '3'"):
        ConvolutionsToKernels.create({"winograd": 3})
