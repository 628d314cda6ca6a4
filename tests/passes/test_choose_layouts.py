"""`choose-layouts`: what lies between convolutions keeps channels last; transposes stand where an op needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.choose_layouts import ChooseLayouts
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import TO_BUFFERS, Compiled, random_arrays
from tests.support.mlir_text import generic

# Shapes of images: the result of a convolution with 16 outputs, and an image of few channels.
SHAPE, FEW = "1x16x8x10", "1x3x10x12"


def tensor(shape: str) -> str:
    return f"tensor<{shape}xf32>"


def convolution(result: str, image: str, weights: str, shapes: tuple[str, str, str]) -> str:
    a, b, c = map(tensor, shapes)
    inputs = [(image, a, "n,c,h+x,w+y"), (weights, b, "o,c,x,y")]
    multiply_add = "%m = arith.mulf %in0, %in1 : f32\n%r = arith.addf %out0, %m : f32"
    return f"""
      {result}_e = tensor.empty() : {c}
      {result}_z = linalg.fill ins(%z : f32) outs({result}_e : {c}) -> {c}
      {generic("nohwcxy", inputs, [(f"{result}_z", c, "n,o,h,w")], multiply_add, reductions="cxy", results=result)}"""


def elementwise(result: str, first: str, second: str, shape: str, op: str, *, channels: str = "") -> str:
    """`op` of two values of a shape; the second is of shape `channels` where that is given, one number a channel."""
    type_ = tensor(shape)
    other = (second, tensor(channels), "o,0,0") if channels else (second, type_, "n,o,h,w")
    operands = [(first, type_, "n,o,h,w"), other], [(f"{result}_e", type_, "n,o,h,w")]
    return f"""
      {result}_e = tensor.empty() : {type_}
      {generic("nohw", *operands, f"%r = {op} %in0, %in1 : f32", results=result)}"""


def module(arguments: str, body: str, result: str, shape: str) -> str:
    return f"""
    func.func @f({arguments}) -> {tensor(shape)} attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant 0.0 : f32
      {body}
      return {result} : {tensor(shape)}
    }}"""


def after_a_convolution(body: str = "", result: str = "%conv", shape: str = SHAPE) -> str:
    """%conv is a convolution of an image of few channels; %rest is another image of its shape."""
    return module(
        f"%image: {tensor(FEW)}, %weights: {tensor('16x3x3x3')}, %rest: {tensor(SHAPE)}",
        convolution("%conv", "%image", "%weights", (FEW, "16x3x3x3", SHAPE)) + body,
        result,
        shape,
    )


def results_of(
    text: str, steps: Sequence[ChooseLayouts], operands: Sequence[np.ndarray], *shapes: tuple[int, ...]
) -> list[np.ndarray]:
    """What @f returns after `steps` and bufferization, where its results have these shapes."""
    compiled = Compiled(text, [*steps, *TO_BUFFERS])
    results = [np.zeros(shape, np.float32) for shape in shapes]
    compiled("f", *operands, *results)
    return results


CHAIN = module(
    "%image: tensor<1x8x10x12xf32>, %first: tensor<16x8x3x3xf32>, "
    "%scale: tensor<16x1x1xf32>, %second: tensor<5x16x3x3xf32>",
    convolution("%c_1", "%image", "%first", ("1x8x10x12", "16x8x3x3", SHAPE))
    + elementwise("%p", "%c_1", "%scale", SHAPE, "arith.addf", channels="16x1x1")
    + convolution("%c_2", "%p", "%second", (SHAPE, "5x16x3x3", "1x5x6x8")),
    "%c_2",
    "1x5x6x8",
)


def test_a_chain_is_transposed_at_its_ends_alone() -> None:
    compiled = Compiled(CHAIN, [ChooseLayouts()])
    filecheck(
        compiled.text,
        """
        CHECK: #[[IMAGE:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>
        CHECK: #[[WEIGHTS:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d3, d6, d4, d5)>
        CHECK: #[[RESULT:.*]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>
        CHECK: linalg.transpose ins({{.*}} : tensor<1x8x10x12xf32>) {{.*}} permutation = [0, 2, 3, 1]
        CHECK-NOT: linalg.transpose
        CHECK: linalg.generic {indexing_maps = [#[[IMAGE]], #[[WEIGHTS]], #[[RESULT]]]
        CHECK-SAME: tensor<1x10x12x8xf32>, tensor<16x8x3x3xf32>
        CHECK-NOT: linalg.transpose
        CHECK: -> tensor<1x8x10x16xf32>
        CHECK-NOT: linalg.transpose
        CHECK: -> tensor<1x6x8x5xf32>
        CHECK: [[LAST:%.*]] = linalg.transpose ins({{.*}} : tensor<1x6x8x5xf32>) {{.*}} permutation = [0, 3, 1, 2]
        CHECK: return [[LAST]] : tensor<1x5x6x8xf32>
        """,
    )
    assert compiled.remarks == [
        "1x8x10x12 transposed to the order (0, 2, 3, 1)",
        "convolution with channels last",
        "convolution with channels last",
        "1x6x8x5 transposed to the order (0, 1, 2, 3)",
    ]


def test_the_numbers_stay() -> None:
    # Each sum has 72 or 144 products: scaled, so that sums are around one and round by some 1e-7.
    operands = [array / 12 for array in random_arrays((1, 8, 10, 12), (16, 8, 3, 3), (16, 1, 1), (5, 16, 3, 3))]
    (before,), (after,) = (results_of(CHAIN, steps, operands, (1, 5, 6, 8)) for steps in ([], [ChooseLayouts()]))
    np.testing.assert_allclose(before, after, rtol=0, atol=2e-6)


def test_few_channels_are_read_as_they_are() -> None:
    compiled = Compiled(after_a_convolution(), [ChooseLayouts()])
    assert compiled.text.count("linalg.transpose") == 1
    assert "ins(%arg0, %arg1 : tensor<1x3x10x12xf32>, tensor<16x3x3x3xf32>)" in compiled.text


PRODUCT_SHAPES = ("2x24x8x10", "16x24x1x1", "2x16x8x10")


def product(following: str = "", result: str = "%p", shape: str = PRODUCT_SHAPES[2]) -> str:
    """A convolution %p without a window, and what follows it."""
    arguments = (
        f"%image: {tensor(PRODUCT_SHAPES[0])}, %first: {tensor(PRODUCT_SHAPES[1])}, %second: {tensor('5x16x3x3')}"
    )
    return module(arguments, convolution("%p", "%image", "%first", PRODUCT_SHAPES) + following, result, shape)


def test_a_matrix_product_is_transposed_only_for_another_convolution() -> None:
    alone = Compiled(product(), [ChooseLayouts()])
    assert "linalg.transpose" not in alone.text
    following = convolution("%c", "%p", "%second", (PRODUCT_SHAPES[2], "5x16x3x3", "2x5x6x8"))
    followed = Compiled(product(following, "%c", "2x5x6x8"), [ChooseLayouts()])
    assert followed.remarks[0] == "2x24x8x10 transposed to the order (0, 2, 3, 1)"


GROUPED = ["1x4x8x6x7", "4x8x8x3x3", "1x4x8x4x5"]


def grouped(channels: int, following: str = "", result: str = "%p", shape: str = GROUPED[2]) -> str:
    """A convolution %p in four groups, each of so many input channels."""
    image, weights, sums = GROUPED[0].replace("4x8", f"4x{channels}", 1), f"4x8x{channels}x3x3", GROUPED[2]
    inputs = [("%image", tensor(image), "n,g,c,h+x,w+y"), ("%first", tensor(weights), "g,o,c,x,y")]
    multiply_add = "%m = arith.mulf %in0, %in1 : f32\n%r = arith.addf %out0, %m : f32"
    body = f"""
      %p_e = tensor.empty() : {tensor(sums)}
      %p_z = linalg.fill ins(%z : f32) outs(%p_e : {tensor(sums)}) -> {tensor(sums)}
      {generic("ngohwcxy", inputs, [("%p_z", tensor(sums), "n,g,o,h,w")], multiply_add, reductions="cxy", results="%p")}
      """
    arguments = f"%image: {tensor(image)}, %first: {tensor(weights)}, %second: {tensor('5x32x3x3')}"
    return module(arguments, body + following, result, shape)


def test_groups_of_channels_are_tensors_of_their_own_unless_another_convolution_follows() -> None:
    alone = Compiled(grouped(8), [ChooseLayouts()])
    transposed = [remark for remark in alone.remarks if "transposed" in remark]
    assert transposed == [
        "1x4x8x6x7 transposed to the order (0, 1, 3, 4, 2)",
        "1x4x4x5x8 transposed to the order (0, 1, 2, 3, 4)",
    ]
    following = (
        f"%q = tensor.collapse_shape %p [[0], [1, 2], [3], [4]] : {tensor(GROUPED[2])} into {tensor('1x32x4x5')}"
    )
    following += convolution("%c", "%q", "%second", ("1x32x4x5", "5x32x3x3", "1x5x2x3"))
    followed = Compiled(grouped(8, following, "%c", "1x5x2x3"), [ChooseLayouts()])
    assert followed.remarks[0] == "1x4x8x6x7 transposed to the order (0, 3, 4, 1, 2)"


def test_convolutions_in_groups_keep_their_numbers() -> None:
    operands = [array / 9 for array in random_arrays((1, 4, 8, 6, 7), (4, 8, 8, 3, 3), (5, 32, 3, 3))]
    (before,), (after,) = (
        results_of(grouped(8), steps, operands, (1, 4, 8, 4, 5)) for steps in ([], [ChooseLayouts()])
    )
    # Sums of 72 products, scaled to be around one.
    np.testing.assert_allclose(before, after, rtol=0, atol=2e-6)


def test_an_operand_that_lies_otherwise_is_transposed_once() -> None:
    body = elementwise("%p", "%conv", "%rest", SHAPE, "arith.addf") + elementwise(
        "%q", "%p", "%rest", SHAPE, "arith.mulf"
    )
    text = after_a_convolution(body, "%q")
    compiled = Compiled(text, [ChooseLayouts()])
    assert compiled.text.count("permutation = [0, 2, 3, 1]") == 1
    assert compiled.text.count("permutation = [0, 3, 1, 2]") == 1


SHAPED = {
    "a transpose to channels last is that layout": (
        """%t_e = tensor.empty() : tensor<1x8x10x16xf32>
           %t = linalg.transpose ins(%conv : tensor<1x16x8x10xf32>) outs(%t_e : tensor<1x8x10x16xf32>)
                permutation = [0, 2, 3, 1]""",
        "1x8x10x16",
        0,
    ),
    "tokens with channels last need no transpose": (
        """%u = tensor.collapse_shape %conv [[0], [1], [2, 3]] : tensor<1x16x8x10xf32> into tensor<1x16x80xf32>
           %t_e = tensor.empty() : tensor<1x80x16xf32>
           %t = linalg.transpose ins(%u : tensor<1x16x80xf32>) outs(%t_e : tensor<1x80x16xf32>)
                permutation = [0, 2, 1]""",
        "1x80x16",
        0,
    ),
    "channels that are flattened with places are": (
        "%t = tensor.collapse_shape %conv [[0], [1, 2, 3]] : tensor<1x16x8x10xf32> into tensor<1x1280xf32>",
        "1x1280",
        1,
    ),
    "a slice and groups follow": (
        """%u = tensor.extract_slice %conv[0, 4, 1, 2] [1, 12, 7, 8] [1, 1, 1, 1]
                : tensor<1x16x8x10xf32> to tensor<1x12x7x8xf32>
           %v = tensor.expand_shape %u [[0], [1, 2], [3], [4]] output_shape [1, 3, 4, 7, 8]
                : tensor<1x12x7x8xf32> into tensor<1x3x4x7x8xf32>
           %t_e = tensor.empty() : tensor<1x7x8x3x4xf32>
           %t = linalg.transpose ins(%v : tensor<1x3x4x7x8xf32>) outs(%t_e : tensor<1x7x8x3x4xf32>)
                permutation = [0, 3, 4, 1, 2]""",
        "1x7x8x3x4",
        0,
    ),
}


@pytest.mark.parametrize("name", SHAPED)
def test_shapes(name: str) -> None:
    body, shape, transposes = SHAPED[name]
    compiled = Compiled(after_a_convolution(body, "%t", shape), [ChooseLayouts()])
    assert compiled.text.count("linalg.transpose") == transposes, compiled.text


def test_without_convolutions_nothing_changes() -> None:
    text = module(f"%image: {tensor(FEW)}", elementwise("%p", "%image", "%image", FEW, "arith.addf"), "%p", FEW)
    assert Compiled(text, [ChooseLayouts()]).text == Compiled(text).text


IMAGES = f"{tensor('1x8x10x12')}, {tensor(FEW)}"
LAYER = f"({tensor('1x8x10x12')}, {tensor('8x8x1x1')}, {tensor(FEW)}) -> ({IMAGES})"
CALLED = f"""
    func.func private @layer(%image: tensor<1x8x10x12xf32>, %weights: tensor<8x8x1x1xf32> {{buddy.parameter}},
        %other: {tensor(FEW)}) -> ({IMAGES}) {{
      %z = arith.constant 0.0 : f32
      {convolution("%conv", "%image", "%weights", ("1x8x10x12", "8x8x1x1", "1x8x10x12"))}
      {elementwise("%p", "%conv", "%image", "1x8x10x12", "arith.addf")}
      {elementwise("%q", "%other", "%other", FEW, "arith.addf")}
      return %p, %q : {IMAGES}
    }}
    func.func @f(%image: tensor<1x8x10x12xf32>, %weights: tensor<8x8x1x1xf32>, %other: {tensor(FEW)})
        -> ({IMAGES}) attributes {{llvm.emit_c_interface}} {{
      %first:2 = call @layer(%image, %weights, %other) : {LAYER}
      %second:2 = call @layer(%first#0, %weights, %first#1) : {LAYER}
      return %second#0, %second#1 : {IMAGES}
    }}"""


def test_layers_pass_each_other_channels_last() -> None:
    compiled = Compiled(CALLED, [ChooseLayouts()])
    filecheck(
        compiled.text,
        """
        CHECK: func.func private @layer(%arg0: tensor<1x10x12x8xf32>, %arg1: tensor<8x8x1x1xf32> {buddy.parameter},
        CHECK-SAME: %arg2: tensor<1x3x10x12xf32>) -> (tensor<1x10x12x8xf32>, tensor<1x3x10x12xf32>)
        CHECK-NOT: linalg.transpose
        CHECK: func.func @f(%arg0: tensor<1x8x10x12xf32>
        CHECK: linalg.transpose
        CHECK: call @layer
        CHECK-NOT: linalg.transpose
        CHECK: call @layer
        CHECK: linalg.transpose
        CHECK-NOT: linalg.transpose
        """,
    )
    assert "arguments and results in another layout: 2" in compiled.remarks
    operands = random_arrays((1, 8, 10, 12), (8, 8, 1, 1), (1, 3, 10, 12))
    shapes = (1, 8, 10, 12), (1, 3, 10, 12)
    results = (results_of(CALLED, steps, operands, *shapes) for steps in ([], [ChooseLayouts()]))
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)


IMAGE, WEIGHTS = tensor("1x8x10x12"), tensor("8x8x1x1")
CONVOLUTION = convolution("%conv", "%image", "%weights", ("1x8x10x12", "8x8x1x1", "1x8x10x12"))
IN_A_BRANCH = f"""
    func.func private @layer(%image: {IMAGE}, %weights: {WEIGHTS}) -> {IMAGE} {{
      %z = arith.constant 0.0 : f32
      {CONVOLUTION}
      return %conv : {IMAGE}
    }}
    func.func @f(%image: {IMAGE}, %weights: {WEIGHTS}, %is_taken: i1) -> {IMAGE} {{
      %r = scf.if %is_taken -> ({IMAGE}) {{
        %x = func.call @layer(%image, %weights) : ({IMAGE}, {WEIGHTS}) -> {IMAGE}
        scf.yield %x : {IMAGE}
      }} else {{
        scf.yield %image : {IMAGE}
      }}
      return %r : {IMAGE}
    }}"""
RECURSIVE = f"""
    func.func private @layer(%image: {IMAGE}, %weights: {WEIGHTS}) -> {IMAGE} {{
      %z = arith.constant 0.0 : f32
      {CONVOLUTION}
      %r = func.call @layer(%conv, %weights) : ({IMAGE}, {WEIGHTS}) -> {IMAGE}
      return %r : {IMAGE}
    }}"""


@pytest.mark.parametrize("text", [IN_A_BRANCH, RECURSIVE], ids=["in a branch", "recursive"])
def test_a_function_whose_calls_are_not_rewritten_keeps_its_signature(text: str) -> None:
    with ir.Context(), ir.Location.unknown():
        parsed = ir.Module.parse(text).operation
        ChooseLayouts().run(parsed, PassContext(LocationSets()))
        assert parsed.verify()
        assert f"@layer(%arg0: {IMAGE}, %arg1: {WEIGHTS}) -> {IMAGE}" in str(parsed)
