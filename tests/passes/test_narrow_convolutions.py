"""Convolutions of bfloat16 and bytes: numbers with every kind of instruction, packing, epilogues, and machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from buddy.compiler.passes.kernels.conv.winograd.transforms import transforms
from buddy.compiler.support.target import Target, host, request_amx_tiles
from tests.passes.convolution_calls import allowed, check, check_epilogue, weights_of, with_epilogue
from tests.passes.test_dot_instructions import CASES, assembly_of
from tests.passes.windows import Array, Window
from tests.support.dot_products import Emulated
from tests.support.mlir_jit import TARGETS, Compiled

DIRECT = [ConvolutionsToKernels(winograd="never"), ContractionsToKernels()]
# Depths that are multiples of no group of elements, blocks that cross lines, windows with strides and gaps.
SHAPES = [
    Window(9, 11, 7, 37, padding=1),
    Window(9, 9, 16, 24, stride=2, padding=1, batch=2, groups=2),
    Window(9, 9, 33, 20, kernel=1, stride=2),
    Window(13, 13, 3, 33, kernel=7, stride=2, padding=3),
    Window(8, 7, 3, 17, kernel=2, dilation=2),
    Window(5, 3, 1, 9, kernel=2),
]
DEPTHWISE = [
    Window(9, 8, 21, 21, padding=1, groups=21),
    Window(12, 12, 5, 5, groups=5, kernel=9, padding=4),  # a window too large to unroll
    Window(9, 9, 33, 33, groups=33, stride=2, dilation=2),
]
SIGNS = [(False, False), (True, False), (False, True), (True, True)]


def typed(windows: list[Window], element: str, unsigned: tuple[bool, bool] = (False, False)) -> list[Window]:
    sums = "f32" if element == "bf16" else "i32"
    return [replace(window, factor=element, element=sums, unsigned=unsigned) for window in windows]


def texts_of(windows: list[Window], parameter: bool = True) -> str:
    return "\n".join(window.function(f"f{i}", parameter=parameter) for i, window in enumerate(windows))


def check_all(module: Compiled, windows: list[Window], parameter: bool = True) -> None:
    assert "linalg.generic" not in module.text, module.remarks
    for i, window in enumerate(windows):
        check(module, i, window, parameter=parameter)


def with_instruction(case: str) -> Target:
    return replace(TARGETS[CASES[case][1]], dot_instructions=(case.split()[0],))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_each_instruction(case: str) -> None:
    windows = typed(SHAPES, CASES[case][0])
    module = Emulated(texts_of(windows), DIRECT, target=with_instruction(case))
    assert all(case.split()[0] in remark for remark in module.remarks), module.remarks
    check_all(module, windows)


@pytest.mark.parametrize("unsigned", SIGNS[1:])
@pytest.mark.parametrize("case", ["vpdpbusd", "vpmaddwd", "tdpbssd"])
@pytest.mark.slow
def test_unsigned_bytes(case: str, unsigned: tuple[bool, bool]) -> None:
    windows = typed(SHAPES, "i8", unsigned)
    module = Emulated(texts_of(windows), DIRECT, target=with_instruction(case))
    assert all((case in remark) == (case != "vpdpbusd" or unsigned == (True, False)) for remark in module.remarks)
    check_all(module, windows)


@pytest.mark.parametrize("target", ["avx512", "avx2", "neon"])
@pytest.mark.slow
def test_plain_multiply_adds(target: str) -> None:
    for element in ("bf16", "i8"):
        windows = typed([*SHAPES, *DEPTHWISE], element)
        module = Compiled(texts_of(windows), DIRECT, target=TARGETS[target])
        assert sum("patches" in remark for remark in module.remarks) == len(SHAPES)
        check_all(module, windows)


@pytest.mark.parametrize(("element", "unsigned"), [("bf16", SIGNS[0]), *(("i8", signs) for signs in SIGNS)])
@pytest.mark.slow
def test_the_instructions_of_this_machine(element: str, unsigned: tuple[bool, bool]) -> None:
    request_amx_tiles()
    windows = typed([*SHAPES, *DEPTHWISE], element, unsigned)
    check_all(Compiled(texts_of(windows), DIRECT, target=host()), windows)


@pytest.mark.parametrize("element", ["bf16", "i8"])
def test_weights_packed_at_each_call(element: str) -> None:
    windows = typed(SHAPES[:4], element)
    case = "vdpbf16ps" if element == "bf16" else "vpdpbusd"
    module = Emulated(texts_of(windows, parameter=False), DIRECT, target=with_instruction(case))
    assert "@pack_" not in module.text
    check_all(module, windows, parameter=False)


def test_many_chunks_of_patches() -> None:
    """With a small cache, the patches of a few rows are copied at a time, and the last chunk has fewer."""
    (window,) = typed([Window(17, 19, 5, 21, padding=1)], "bf16")
    target = replace(TARGETS["small cache"], dot_instructions=("vdpbf16ps",))
    module = Emulated(texts_of([window]), DIRECT, target=target)
    (positions,) = re.findall(r": (\d+) patches", module.remarks[0])
    assert int(positions) < 17 * 19 // 2
    check_all(module, [window])


@pytest.mark.parametrize("case", ["vdpbf16ps", "tdpbf16ps"])
def test_without_a_fill_it_adds(case: str) -> None:
    (window,) = typed([Window(9, 11, 7, 37, padding=1)], "bf16")
    module = Emulated(window.function("f0", zero=False), DIRECT, target=with_instruction(case))
    assert module.remarks[0].endswith(", adds to C")
    check(module, 0, window, start=3.0)


@pytest.mark.parametrize("case", ["vdpbf16ps", "tdpbf16ps", "vpmaddwd", "tdpbssd"])
@pytest.mark.slow
def test_an_epilogue_writes_lines_to_the_inside_of_an_image(case: str) -> None:
    """Sums are finished where they are: bias and ReLU of floats, requantisation of bytes; lines are apart."""
    (window,) = typed([Window(9, 11, 20, 37, padding=1, batch=2)], CASES[case][0])
    passes = [FuseEpilogues(), *DIRECT]
    module = Emulated(with_epilogue(window), passes, target=with_instruction(case))
    assert "epilogue of linalg.generic" in module.remarks[-1], module.remarks
    check_epilogue(module, window)


def test_winograd_of_bfloat16_is_computed_in_f32() -> None:
    window = replace(Window(14, 14, 64, 48, padding=1), factor="bf16")
    text = window.function("f0")
    module = Compiled(text, [ConvolutionsToKernels()], target=TARGETS["avx2"])
    assert "winograd 2x2" in module.remarks[0]
    assert "buddy.pack" in module.text
    check(module, 0, window)
    found = Compiled(text, [ConvolutionsToKernels()], target=with_instruction("tdpbf16ps"))
    assert "tdpbf16ps" in found.remarks[0], "fewer products do not pay on tiles"


# The largest relative change of a number that is rounded to bfloat16, which has 8 significant bits. The change is
# uniform, so that the root mean square is smaller by the root of three, and still smaller for numbers above a power of
# two.
ROUNDING = 2.0**-8


def rounding_bound(window: Window, image: torch.Tensor, weights: torch.Tensor) -> Array:
    """How far from the exact sums F(2 x 2, 3 x 3) may be, if it rounds both factors of each product to bfloat16.

    Each product changes by twice `ROUNDING` at most, and products of magnitudes add up through |A|.
    """
    matrices = transforms(2)
    of_input, of_weights, of_output = (
        np.array(m) for m in (matrices.of_input, matrices.of_weights, matrices.of_output)
    )
    (_, height, width, _), (_, lines, pixels, _) = window.shapes[0], window.shapes[2]
    padded = np.zeros((window.batch, window.channels, height + 1, width + 1))
    lines_inside, pixels_inside = (slice(window.padding, window.padding + n) for n in (window.height, window.width))
    padded[:, :, lines_inside, pixels_inside] = image.double().numpy()
    factors = np.abs(np.einsum("pi,ocij,qj->ocpq", of_weights, weights.double().numpy(), of_weights))
    bound = np.zeros((window.batch, lines + 1, pixels + 1, window.out))
    for line in range(0, lines, 2):
        for pixel in range(0, pixels, 2):
            tile = padded[:, :, line : line + 4, pixel : pixel + 4]
            values = np.abs(np.einsum("pi,ncij,qj->ncpq", of_input, tile, of_input))
            products = np.einsum("ncpq,ocpq->nopq", values, factors)
            sums = np.einsum("ip,nopq,jq->nijo", np.abs(of_output), products, np.abs(of_output))
            bound[:, line : line + 2, pixel : pixel + 2] = sums
    return 2 * ROUNDING * bound[:, :lines, :pixels] + allowed(window)


def rounded_windows() -> list[Window]:
    """Odd sizes, several images, panels that are not full, an even number of channels that fills no vector."""
    return typed([Window(14, 14, 64, 48, padding=1), Window(9, 11, 6, 37, padding=1, batch=2)], "bf16")


@pytest.mark.parametrize("parameter", [True, False])
@pytest.mark.parametrize("target", ["avx512", "small cache"])
def test_winograd_multiplies_transformed_values_that_are_rounded(target: str, parameter: bool) -> None:
    windows = rounded_windows()
    machine = replace(TARGETS[target], dot_instructions=("vdpbf16ps",))
    module = Emulated(texts_of(windows, parameter), [ConvolutionsToKernels(winograd="2")], target=machine)
    assert all("winograd 2x2" in remark and "vdpbf16ps" in remark for remark in module.remarks), module.remarks
    for i, window in enumerate(windows):
        image, weights = window.operands()
        a, b, c = window.arrays(image, weights)
        module(f"f{i}", a, *(weights_of(module, f"f{i}", b) if parameter else [b]), c)
        expected = window.expected(image, weights)
        assert (np.abs(c - expected) <= rounding_bound(window, image, weights)).all()
        # Random factors have 25/9 of the variance of the window's sum, from the squares of the transforms' factors.
        relative = np.sqrt(np.mean((c - expected) ** 2) / np.mean(expected**2))
        assert relative < ROUNDING / 3**0.5 * (2 * 25 / 9) ** 0.5


def test_winograd_of_vectors_is_chosen_where_it_pays() -> None:
    wide, few, odd = typed(
        [Window(14, 14, 64, 64, padding=1), Window(32, 32, 4, 64, padding=1), Window(14, 14, 63, 64, padding=1)], "bf16"
    )
    target = with_instruction("vdpbf16ps")
    remarks = Compiled(texts_of([wide, few, odd]), [ConvolutionsToKernels()], target=target).remarks
    assert "winograd 2x2" in remarks[0]
    assert remarks[0].endswith(", vdpbf16ps")
    assert all("patches" in remark for remark in remarks[1:]), remarks
    larger = Compiled(texts_of([wide]), [ConvolutionsToKernels(winograd="4")], target=target).remarks[0]
    assert "winograd 4x4" in larger
    assert "vdpbf16ps" not in larger, "tiles of 4 x 4 would lose too many digits"


def test_depthwise_convolutions_of_narrow_elements_share_lines_of_the_image() -> None:
    """With an odd number of lines, the last one is computed alone. Floats, which are not widened, do not share."""
    wide = [Window(11, 9, 20, 20, padding=1, groups=20), Window(13, 16, 35, 35, kernel=5, stride=2, groups=35)]
    windows = typed(wide, "bf16")
    module = Compiled(texts_of(windows), DIRECT, target=TARGETS["avx512"])
    assert all(" 2x" in remark for remark in module.remarks), module.remarks
    check_all(module, windows)
    for remarks in (
        Compiled(texts_of(windows), DIRECT, target=TARGETS["avx2"]).remarks,
        Compiled(texts_of(wide), DIRECT, target=TARGETS["avx512"]).remarks,
    ):
        assert not any(" 2x" in remark for remark in remarks), remarks


def test_depthwise_convolutions_multiply_pairs_of_lines() -> None:
    """Windows with odd and even lines, strides, gaps, vectors that are not full; others are computed as without it."""
    paired = [
        Window(11, 9, 20, 20, padding=1, groups=20),
        Window(13, 37, 35, 35, kernel=5, stride=2, groups=35, batch=2),
        Window(9, 19, 16, 16, kernel=2, dilation=2, groups=16),
    ]
    plain = [Window(12, 12, 5, 5, groups=5, kernel=9, padding=4), Window(5, 7, 16, 16, groups=16, kernel=1)]
    windows = typed([*paired, *plain], "bf16")
    module = Emulated(texts_of(windows), DIRECT, target=with_instruction("vdpbf16ps"))
    remarks = [remark for remark in module.remarks if "channel by channel" in remark]
    assert ["pairs of lines" in remark for remark in remarks] == [True] * 3 + [False] * (len(remarks) - 3), remarks
    check_all(module, windows)


def test_few_channels_are_read_in_place() -> None:
    """Runs of 3 elements, as in a network's first layer, odd and even; with more channels, or few lanes, patches."""
    in_place = [
        Window(9, 11, 3, 16, dilation=2),
        Window(9, 12, 1, 30, kernel=2, batch=2),
        Window(8, 9, 1, 16, stride=2),
    ]
    copied = [Window(9, 11, 3, 64, dilation=2), Window(9, 11, 3, 3, dilation=2), Window(9, 11, 32, 16, dilation=2)]
    windows = typed([*in_place, *copied], "bf16")
    module = Emulated(texts_of(windows), DIRECT, target=with_instruction("vdpbf16ps"))
    assert ["in place" in remark for remark in module.remarks] == [True] * 3 + [False] * 3, module.remarks
    check_all(module, windows)
    assert "in place" not in Compiled(texts_of(windows), DIRECT, target=TARGETS["avx2"]).remarks[0]


@pytest.mark.parametrize("winograd", ["never", "2", "2 rounded", "never in place", "never in pairs"])
def test_infinity_and_nan_stay_in_their_windows(winograd: str) -> None:
    windows = {
        "never in place": Window(13, 12, 3, 16, dilation=2),
        "never in pairs": Window(13, 12, 19, 19, groups=19),
    }
    (window,) = typed([windows.get(winograd, Window(13, 12, 6, 19))], "bf16")
    target = TARGETS["avx2"] if winograd in ("never", "2") else with_instruction("vdpbf16ps")
    module = Emulated(window.function("f0"), [ConvolutionsToKernels(winograd=winograd.split()[0])], target=target)
    assert ("winograd 2x2" in module.remarks[0]) == ("never" not in winograd)
    assert ("in place" in module.remarks[0]) == ("place" in winograd)
    assert ("pairs of lines" in module.remarks[0]) == ("pairs" in winograd)
    image, weights = window.operands()
    bound = rounding_bound(window, image, weights) if "rounded" in winograd else allowed(window)
    image[0, -3, 4, 5], image[0, 1, 11, 2], image[0, 0, 0, 11] = torch.inf, torch.nan, -torch.inf
    a, b, c = window.arrays(image, weights)
    module("f0", a, *weights_of(module, "f0", b), c)
    expected = window.expected(image, weights)
    assert 0 < np.isfinite(expected).mean() < 1
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(c[~finite], expected[~finite])
    assert (np.abs(c[finite] - expected[finite]) <= np.broadcast_to(bound, c.shape)[finite]).all()


@pytest.mark.parametrize(
    ("case", "cpu"),
    [("vdpbf16ps", "znver4"), ("vpdpbusd", "znver4"), ("vpmaddwd", "haswell"), ("tdpbssd", "sapphirerapids")],
)
def test_sums_stay_in_registers(case: str, cpu: str) -> None:
    """The loop over a patch has one instruction for each vector or tile of sums, and stores none of them."""
    (window,) = typed([Window(28, 28, 64, 48, padding=1)], CASES[case][0])
    found = Compiled(texts_of([window]), DIRECT, target=with_instruction(case))
    name = case.split()[0]
    loop = max(re.split(r"^\.L\w+:", assembly_of(found, cpu), flags=re.MULTILINE), key=lambda part: part.count(name))
    loop = loop[: loop.rindex(name)]  # the code after the loop has no label of its own
    products = loop.count(name) + 1
    assert products >= 4
    assert loop.count("(%rsp)") <= products // 4
