"""`convolutions-to-kernels` without Winograd: numbers over shapes and targets, packing, and what is left."""

from __future__ import annotations

import random

import numpy as np
import pytest

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from tests.passes.convolution_calls import allowed, check, check_epilogue, weights_of, with_epilogue
from tests.passes.windows import Window
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import TARGETS, Compiled
from tests.support.mlir_text import from_node

DIRECT = ConvolutionsToKernels(winograd="never")
CHANNELS = (1, 2, 3, 7, 13, 17, 31, 33, 65)


def random_windows(count: int, seed: int) -> list[Window]:
    """Windows whose sizes are multiples of no block."""
    draw = random.Random(seed)
    found = []
    while len(found) < count:
        window = Window(
            draw.randint(1, 33), draw.randint(1, 33), draw.choice(CHANNELS), draw.choice(CHANNELS),
            kernel=draw.choice((1, 2, 3, 5)), stride=draw.choice((1, 2, 3)), padding=draw.choice((0, 1, 2)),
            dilation=draw.choice((1, 2)), batch=draw.choice((1, 2, 3)),
        )  # fmt: skip
        if min(window.outputs) > 0:
            found.append(window)
    return found


GROUPED = [
    Window(9, 11, 6, 9, groups=3, padding=1),
    Window(8, 8, 64, 96, groups=2, stride=2, padding=1, batch=2),
    Window(7, 5, 34, 68, groups=17, kernel=2),
    Window(6, 7, 12, 24, groups=12, padding=1),  # a multiplier of 2
    Window(6, 7, 24, 12, groups=12, padding=1),  # two channels in, one out
]
DEPTHWISE = [
    Window(7, 7, 33, 33, groups=33, padding=1),
    Window(28, 13, 16, 16, groups=16, kernel=5, padding=2, stride=2),
    Window(14, 14, 40, 40, groups=40, kernel=5, padding=2, batch=2),
    Window(17, 19, 13, 13, groups=13, kernel=3, stride=3, dilation=2),
    Window(12, 12, 5, 5, groups=5, kernel=9, padding=4),  # a window too large to unroll
    Window(4, 4, 31, 31, groups=31, kernel=1),
]


def compiled(windows: list[Window], target: str = "avx512") -> Compiled:
    text = "\n".join(window.function(f"f{i}") for i, window in enumerate(windows))
    return Compiled(text, [DIRECT, ContractionsToKernels()], target=TARGETS[target])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_many_shapes(target: str) -> None:
    windows = random_windows(24, seed=3)
    module = compiled(windows, target)
    assert "linalg.generic" not in module.text, module.remarks
    assert sum("channels in registers" in remark for remark in module.remarks) > 12
    for i, window in enumerate(windows):
        check(module, i, window)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["grouped", "depthwise"])
@pytest.mark.slow
def test_groups(kind: str, target: str) -> None:
    windows = {"grouped": GROUPED, "depthwise": DEPTHWISE}[kind]
    module = compiled(windows, target)
    assert all(("channel by channel" in remark) == (kind == "depthwise") for remark in module.remarks), module.remarks
    for i, window in enumerate(windows):
        check(module, i, window)


def test_double_precision() -> None:
    windows = [Window(9, 11, 7, 13, padding=1, element="f64"), Window(9, 8, 13, 13, groups=13, element="f64")]
    module = compiled(windows)
    for i, window in enumerate(windows):
        check(module, i, window)


def test_halves_are_summed_in_single_precision() -> None:
    windows = [Window(9, 11, 7, 37, padding=1, factor="f16"), Window(9, 8, 21, 21, padding=1, groups=21, factor="f16")]
    module = compiled(windows)
    assert "memref<1x63x48xf32>" in module.text  # widened once, when weights are packed
    for i, window in enumerate(windows):
        check(module, i, window)


@pytest.mark.parametrize("window", [Window(9, 11, 7, 37, padding=1), Window(9, 11, 21, 21, padding=1, groups=21)])
def test_without_a_fill_it_adds(window: Window) -> None:
    module = Compiled(window.function("f0", zero=False), [DIRECT])
    assert module.remarks[0].endswith(", adds to C")
    check(module, 0, window, start=3.0)


@pytest.mark.parametrize("window", [Window(6, 7, 5, 37, padding=1), Window(9, 8, 21, 21, padding=1, groups=21)])
def test_weights_that_are_no_parameter_are_packed_at_each_call(window: Window) -> None:
    module = Compiled(window.function("f0", parameter=False), [DIRECT])
    assert "@pack_" not in module.text
    assert module.remarks[0].endswith(", packed at each call")
    check(module, 0, window, parameter=False)


def test_packing_can_be_switched_off() -> None:
    window = Window(6, 7, 5, 37, padding=1)
    module = Compiled(window.function("f0"), [ConvolutionsToKernels(pack_weights=False, winograd="never")])
    assert "@pack_" not in module.text
    check(module, 0, window, parameter=False)


@pytest.mark.parametrize("winograd", ["never", "2", "4"])
@pytest.mark.parametrize("target", TARGETS)
def test_weights_packed_at_each_call(target: str, winograd: str) -> None:
    """Channels that are not multiples of a vector's lanes, in and out, and several windows."""
    windows = [
        Window(9, 11, 37, 29, padding=1), Window(6, 7, 16, 64, padding=1), Window(8, 8, 5, 3, padding=1),
        Window(9, 9, 19, 33, kernel=5, padding=2), Window(9, 9, 17, 16, kernel=2, stride=2),
        Window(8, 8, 64, 96, groups=2, stride=2, padding=1), Window(9, 11, 20, 37, padding=1, element="f64"),
    ]  # fmt: skip
    passes = [ConvolutionsToKernels(pack_weights=False, winograd=winograd), ContractionsToKernels(pack_weights=False)]
    text = "\n".join(window.function(f"f{i}") for i, window in enumerate(windows))
    module = Compiled(text, passes, target=TARGETS[target])
    assert "@pack_" not in module.text
    assert any("winograd" in remark.partition("not winograd")[0] for remark in module.remarks) == (winograd != "never")
    for i, window in enumerate(windows):
        check(module, i, window, parameter=False)


def test_winograd_is_chosen_for_weights_that_are_transformed_at_each_call_where_images_are_large() -> None:
    large, small = Window(56, 56, 64, 64, padding=1), Window(7, 7, 512, 512, padding=1)
    text = large.function("f0") + small.function("f1")
    module = Compiled(text, [ConvolutionsToKernels(pack_weights=False)])
    first, second = module.remarks
    assert "winograd 2x2 in blocks" in first
    assert "not winograd" in second


@pytest.mark.parametrize("window", [Window(8, 9, 5, 19, padding=1), Window(8, 9, 19, 19, padding=1, groups=19)])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinity_and_nan_stay_in_their_windows(window: Window, value: float) -> None:
    module = compiled([window])
    image, weights = window.operands()
    image[0, 3, 4, 5] = value
    a, b, c = window.arrays(image, weights)
    module("f0", a, *weights_of(module, "f0", b), c)
    # The zeros of the padding are far from the marked pixel, so that no reference multiplies them with it.
    expected = window.eager(image, weights).permute(0, 2, 3, 1).numpy().reshape(c.shape)
    assert not np.isfinite(expected).all()
    np.testing.assert_allclose(c, expected, rtol=0, atol=allowed(window))


def test_the_ir_has_a_call_and_a_packing_function() -> None:
    module = compiled([Window(8, 9, 5, 19, padding=1)])
    filecheck(
        module.text,
        """
        CHECK: func.func @f0({{.*}}: memref<1x45x32xf32> {buddy.pack = "pack_0", buddy.parameter
        CHECK-NOT: linalg
        CHECK: call @conv_8x9x19_3x3x5(%arg0, %arg1, %arg2)
        CHECK: func.func private @conv_8x9x19_3x3x5(
        CHECK: vector.fma
        CHECK: func.func @pack_0({{.*}}: memref<19x5x3x3xf32>, {{.*}}: memref<1x45x32xf32>)
        """,
    )
    assert module.remarks == ["8x9 pixels, 19 channels over 3x3x5: 4x3 pixels by 32 channels in registers"]


def test_equal_convolutions_share_a_kernel_that_comes_from_all_of_them() -> None:
    function = Window(8, 9, 5, 19).function("f")
    text = "".join(from_node(node, function.replace("@f", f"@f{node}")) for node in (1, 2))
    module = Compiled(text, [DIRECT], nodes=["conv1", "conv2"])
    assert module.text.count("func.func private") == 1
    assert module.nodes_of("conv_6x7x19_3x3x5") == {"conv1", "conv2"}
    assert module.nodes_of("pack_0") == {"conv1", "conv2"}


def test_what_is_left_says_why() -> None:
    pointwise = Window(8, 9, 5, 19, kernel=1)
    swapped = Window(4, 4, 4, 4, kernel=2).function("f1").replace("->(n,h,w,o)", "->(n,o,h,w)")
    swapped = swapped.replace("memref<1x3x3x4xf32>", "memref<1x4x3x3xf32>")
    empty = Window(4, 4, 4, 4, kernel=2, batch=0).function("f2")
    assert Compiled(pointwise.function("f"), [DIRECT]).remarks == [
        "convolution unchanged: it is a plain matrix product"
    ]
    assert Compiled(swapped, [DIRECT]).remarks == ["convolution unchanged: channels are not its last dim"]
    assert Compiled(empty, [DIRECT]).remarks == ["convolution unchanged: no elements"]


@pytest.mark.parametrize(
    "window",
    [
        Window(9, 15, 7, 37, padding=1, batch=2),
        Window(9, 15, 21, 21, padding=1, groups=21, batch=2),
        Window(9, 8, 12, 36, groups=3, stride=2),
    ],
)
def test_what_follows_goes_into_the_kernel(window: Window) -> None:
    module = Compiled(with_epilogue(window), [FuseEpilogues(), DIRECT])
    assert "linalg.generic" not in module.text, module.remarks
    assert module.remarks[-1].endswith("epilogue of linalg.generic (2 scalar ops)")
    check_epilogue(module, window)


def test_blocks_fit_the_channels_of_a_group_and_the_cache() -> None:
    """Vectors are at most a group wide; of pixels 2 KiB apart, two sets of a cache of 32 KiB keep sixteen lines."""
    narrow = Window(28, 28, 256, 256, padding=1, groups=32)
    apart = Window(14, 14, 512, 512, padding=1, groups=32)
    text = narrow.function("f0") + apart.function("f1")
    remarks = Compiled(text, [DIRECT], target=TARGETS["avx512"]).remarks
    assert remarks[0].endswith("pixels by 8 channels in registers")
    assert remarks[1].endswith("3x4 pixels by 16 channels in registers")
