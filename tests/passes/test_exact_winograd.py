"""Winograd's convolution of bytes: exact sums for all shapes, signs and extremes, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from buddy.compiler.passes.kernels.conv.winograd.transforms import MAX_EXACT_CHANNELS, exact_transforms
from buddy.compiler.support.target import Target, host, missing_instructions
from tests.passes.convolution_calls import check, check_epilogue, weights_of, with_epilogue
from tests.passes.windows import Array, Window
from tests.support.dot_products import Emulated
from tests.support.mlir_jit import TARGETS, Compiled

# Odd sizes, several images, panels and vectors that are not full, and more channels than one part may have.
SHAPES = [
    Window(9, 11, 6, 37, padding=1, batch=2),
    Window(14, 14, 64, 48, padding=1),
    Window(7, 6, 2, 1),
    Window(5, 7, 460, 20, padding=1),
]
# The instruction for bytes -> the one for pairs of 16-bit integers, and the target.
CASES = {"vpdpbusd": ("vpdpwssd", "avx512"), "vpmaddwd": ("vpmaddwd", "avx2")}


def of_bytes(window: Window, *, unsigned_image: bool = False) -> Window:
    return replace(window, factor="i8", element="i32", unsigned=(unsigned_image, False))


def target_with(instruction: str) -> Target:
    return replace(TARGETS[CASES[instruction][1]], dot_instructions=(instruction,))


def emulated(text: str, instruction: str = "vpdpbusd") -> Emulated:
    return Emulated(text, [ConvolutionsToKernels(winograd="4")], target=target_with(instruction))


def test_the_transforms_are_exact_and_fit_into_16_bits() -> None:
    found = exact_transforms()
    of_input, of_weights, of_output = (
        np.array(matrix).astype(np.int64) for matrix in (found.of_input, found.of_weights, found.of_output)
    )
    np.testing.assert_array_equal(of_input, found.of_input, "integers")
    np.testing.assert_array_equal(of_weights, found.of_weights, "integers")
    for matrix in (of_input, of_weights):
        assert 128 * int(np.abs(matrix).sum(axis=1).max()) ** 2 < 2**15
    draw = np.random.default_rng(0)
    image, window = draw.integers(-128, 128, (6, 6)), draw.integers(-128, 128, (3, 3))
    products = (of_weights @ window @ of_weights.T) * (of_input @ image @ of_input.T)
    expected = [[(image[i : i + 3, j : j + 3] * window).sum() for j in range(4)] for i in range(4)]
    np.testing.assert_array_equal(of_output @ products @ of_output.T, 24**2 * np.array(expected))


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("instruction", CASES)
def test_many_shapes(instruction: str, unsigned: bool) -> None:
    windows = [of_bytes(window, unsigned_image=unsigned) for window in SHAPES]
    module = emulated("\n".join(window.function(f"f{i}") for i, window in enumerate(windows)), instruction)
    assert all("winograd 4x4 in blocks" in remark for remark in module.remarks), module.remarks
    assert all(CASES[instruction][0] in remark for remark in module.remarks), module.remarks
    for i, window in enumerate(windows):
        check(module, i, window)


def test_the_instructions_of_this_machine() -> None:
    target = target_with("vpdpbusd")
    if missing_instructions(target) or host().vector_bytes != target.vector_bytes:
        pytest.skip("this processor has no vpdpwssd on vectors of 64 bytes")
    windows = [of_bytes(window, unsigned_image=unsigned) for window in SHAPES for unsigned in (False, True)]
    text = "\n".join(window.function(f"f{i}") for i, window in enumerate(windows))
    module = Compiled(text, [ConvolutionsToKernels(winograd="4")], target=target)
    for i, window in enumerate(windows):
        check(module, i, window)


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("channels", [MAX_EXACT_CHANNELS // 2 * 2, MAX_EXACT_CHANNELS // 2 * 4])
def test_the_largest_sums(channels: int, unsigned: bool) -> None:
    """All bytes have the largest magnitude, in one part of the channels and in two."""
    window = of_bytes(Window(6, 5, channels, 17), unsigned_image=unsigned)
    module = emulated(window.function("f0"))
    image, weights = window.operands()
    for image_byte in (0, 255) if unsigned else (-128, 127):
        for weight in (-128, 127):
            expected = np.full(window.arrays(image, weights)[2].shape, 9 * channels * image_byte * weight)
            found = _result(module, window, torch.full_like(image, image_byte), torch.full_like(weights, weight))
            np.testing.assert_array_equal(found, expected)


def _result(module: Compiled, window: Window, image: torch.Tensor, weights: torch.Tensor) -> Array:
    a, b, c = window.arrays(image, weights)
    module("f0", a, *weights_of(module, "f0", b), c)
    return c


def test_initial_sums_and_weights_that_each_call_packs() -> None:
    window = of_bytes(Window(9, 11, 6, 37, padding=1), unsigned_image=True)
    text = "\n".join([window.function("f0", zero=False), window.function("f1", parameter=False)])
    module = emulated(text)
    assert module.remarks[0].endswith(", adds to C")
    assert module.remarks[1].endswith(", packed at each call")
    check(module, 0, window, start=3.0)
    check(module, 1, window, parameter=False)


def test_requantisation_is_its_epilogue() -> None:
    window = of_bytes(Window(9, 15, 8, 37, padding=1, batch=2))
    passes = [FuseEpilogues(), ConvolutionsToKernels(winograd="4")]
    module = Emulated(with_epilogue(window), passes, target=target_with("vpdpbusd"))
    assert "linalg.generic" not in module.text, module.remarks
    check_epilogue(module, window)


def test_auto_takes_it_where_it_is_faster_and_says_why_not() -> None:
    wide = Window(28, 28, 64, 64, padding=1)
    windows = [
        of_bytes(wide, unsigned_image=True),
        of_bytes(Window(7, 7, 512, 512, padding=1)),
        replace(of_bytes(wide), unsigned=(True, True)),
        of_bytes(replace(wide, channels=63)),
    ]
    text = "\n".join(window.function(f"f{i}") for i, window in enumerate(windows))
    remarks = Compiled(text, [ConvolutionsToKernels()], target=target_with("vpdpbusd")).remarks
    assert "winograd 4x4 in blocks of 49 tiles" in remarks[0]
    reasons = [remark.partition("not winograd: ")[2] for remark in remarks[1:]]
    assert reasons[0].startswith("the estimated speedup over direct convolution is only ")
    no_pairs = "no instruction multiplies pairs of 16-bit integers, or channels form no pairs"
    assert reasons[1:] == ["its weights are unsigned", no_pairs]
    on_tiles = replace(TARGETS["avx512"], dot_instructions=("tdpbssd", "vpdpbusd"))
    for target, winograd, reason in (
        (on_tiles, "auto", no_pairs),
        (target_with("vpdpbusd"), "2", "bytes need tiles of 4x4"),
    ):
        (remark,) = Compiled(
            windows[0].function("f0"), [ConvolutionsToKernels(winograd=winograd)], target=target
        ).remarks
        assert remark.endswith(f"not winograd: {reason}")
