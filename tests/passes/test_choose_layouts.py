"""`choose-layouts`: what lies between convolutions keeps channels last; transposes stand where an op needs them."""

from __future__ import annotations

import numpy as np
import pytest
from filecheck_text import filecheck
from mlir_jit import BUFFERIZE, Compiled, Upstream

from buddy.compiler.passes.choose_layouts import ChooseLayouts
from buddy.compiler.passes.copies_to_loops import CopiesToLoops
from buddy.compiler.passes.results_to_out_params import ResultsToOutParams

MAPS = """
    #image = affine_map<(n, o, h, w, c, x, y) -> (n, c, h + x, w + y)>
    #weights = affine_map<(n, o, h, w, c, x, y) -> (o, c, x, y)>
    #result = affine_map<(n, o, h, w, c, x, y) -> (n, o, h, w)>
    #id = affine_map<(a, b, c, d) -> (a, b, c, d)>
    #channel = affine_map<(a, b, c, d) -> (b, 0, 0)>
"""


def convolution(result: str, image: str, weights: str, shapes: tuple[str, str, str]) -> str:
    a, b, c = (f"tensor<{shape}xf32>" for shape in shapes)
    return f"""
      {result}_e = tensor.empty() : {c}
      {result}_z = linalg.fill ins(%z : f32) outs({result}_e : {c}) -> {c}
      {result} = linalg.generic {{indexing_maps = [#image, #weights, #result], iterator_types = ["parallel", "parallel",
          "parallel", "parallel", "reduction", "reduction", "reduction"]}}
          ins({image}, {weights} : {a}, {b}) outs({result}_z : {c}) {{
        ^bb0(%x: f32, %y: f32, %t: f32):
          %m = arith.mulf %x, %y : f32
          %s = arith.addf %t, %m : f32
          linalg.yield %s : f32
      }} -> {c}"""


def elementwise(result: str, operands: tuple[tuple[str, str, str], ...], shape: str, op: str) -> str:
    """`op` of two block arguments; operands are (value, shape, map)."""
    maps = ", ".join([*(map_ for _, _, map_ in operands), "#id"])
    values = ", ".join(value for value, _, _ in operands)
    types = ", ".join(f"tensor<{shape}xf32>" for _, shape, _ in operands)
    return f"""
      {result}_e = tensor.empty() : tensor<{shape}xf32>
      {result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel", "parallel",
          "parallel"]}} ins({values} : {types}) outs({result}_e : tensor<{shape}xf32>) {{
        ^bb0(%x: f32, %y: f32, %t: f32):
          %r = {op} %x, %y : f32
          linalg.yield %r : f32
      }} -> tensor<{shape}xf32>"""


def module(arguments: str, body: str, result: str, shape: str) -> str:
    return f"""{MAPS}
    func.func @f({arguments}) -> tensor<{shape}xf32> attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant 0.0 : f32
      {body}
      return {result} : tensor<{shape}xf32>
    }}"""


CHAIN = module(
    "%a: tensor<1x8x10x12xf32>, %b: tensor<16x8x3x3xf32>, %scale: tensor<16x1x1xf32>, %d: tensor<5x16x3x3xf32>",
    convolution("%c", "%a", "%b", ("1x8x10x12", "16x8x3x3", "1x16x8x10"))
    + elementwise("%p", (("%c", "1x16x8x10", "#id"), ("%scale", "16x1x1", "#channel")), "1x16x8x10", "arith.addf")
    + convolution("%q", "%p", "%d", ("1x16x8x10", "5x16x3x3", "1x5x6x8")),
    "%q",
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
    rng = np.random.default_rng(0)
    shapes = [(1, 8, 10, 12), (16, 8, 3, 3), (16, 1, 1), (5, 16, 3, 3)]
    # Each sum has 72 or 144 products: scaled, so that sums are around one and round by some 1e-7.
    operands = [rng.standard_normal(shape).astype(np.float32) / 12 for shape in shapes]
    results = []
    for passes in ([], [ChooseLayouts()]):
        compiled = Compiled(CHAIN, [*passes, Upstream(BUFFERIZE), ResultsToOutParams(), CopiesToLoops()])
        out = np.zeros((1, 5, 6, 8), np.float32)
        compiled("f", *operands, out)
        results.append(out)
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=2e-6)


def test_few_channels_are_read_as_they_are() -> None:
    text = module(
        "%a: tensor<1x3x10x12xf32>, %b: tensor<16x3x3x3xf32>",
        convolution("%c", "%a", "%b", ("1x3x10x12", "16x3x3x3", "1x16x8x10")),
        "%c",
        "1x16x8x10",
    )
    compiled = Compiled(text, [ChooseLayouts()])
    assert compiled.text.count("linalg.transpose") == 1
    assert "ins(%arg0, %arg1 : tensor<1x3x10x12xf32>, tensor<16x3x3x3xf32>)" in compiled.text


def test_an_operand_that_lies_otherwise_is_transposed_once() -> None:
    text = module(
        "%a: tensor<1x3x10x12xf32>, %b: tensor<16x3x3x3xf32>, %rest: tensor<1x16x8x10xf32>",
        convolution("%c", "%a", "%b", ("1x3x10x12", "16x3x3x3", "1x16x8x10"))
        + elementwise("%p", (("%c", "1x16x8x10", "#id"), ("%rest", "1x16x8x10", "#id")), "1x16x8x10", "arith.addf")
        + elementwise("%q", (("%p", "1x16x8x10", "#id"), ("%rest", "1x16x8x10", "#id")), "1x16x8x10", "arith.mulf"),
        "%q",
        "1x16x8x10",
    )
    compiled = Compiled(text, [ChooseLayouts()])
    assert compiled.text.count("permutation = [0, 2, 3, 1]") == 1
    assert compiled.text.count("permutation = [0, 3, 1, 2]") == 1


SHAPED = {
    "a transpose to channels last is that layout": (
        """%t_e = tensor.empty() : tensor<1x8x10x16xf32>
           %t = linalg.transpose ins(%c : tensor<1x16x8x10xf32>) outs(%t_e : tensor<1x8x10x16xf32>)
                permutation = [0, 2, 3, 1]""",
        "1x8x10x16",
        0,
    ),
    "tokens with channels last need no transpose": (
        """%u = tensor.collapse_shape %c [[0], [1], [2, 3]] : tensor<1x16x8x10xf32> into tensor<1x16x80xf32>
           %t_e = tensor.empty() : tensor<1x80x16xf32>
           %t = linalg.transpose ins(%u : tensor<1x16x80xf32>) outs(%t_e : tensor<1x80x16xf32>)
                permutation = [0, 2, 1]""",
        "1x80x16",
        0,
    ),
    "channels that are flattened with places are": (
        "%t = tensor.collapse_shape %c [[0], [1, 2, 3]] : tensor<1x16x8x10xf32> into tensor<1x1280xf32>",
        "1x1280",
        1,
    ),
    "a slice and groups follow": (
        """%u = tensor.extract_slice %c[0, 4, 1, 2] [1, 12, 7, 8] [1, 1, 1, 1]
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
    text = module(
        "%a: tensor<1x3x10x12xf32>, %b: tensor<16x3x3x3xf32>",
        convolution("%c", "%a", "%b", ("1x3x10x12", "16x3x3x3", "1x16x8x10")) + body,
        "%t",
        shape,
    )
    compiled = Compiled(text, [ChooseLayouts()])
    assert compiled.text.count("linalg.transpose") == transposes, compiled.text


def test_without_convolutions_nothing_changes() -> None:
    text = module(
        "%a: tensor<1x3x10x12xf32>",
        elementwise("%p", (("%a", "1x3x10x12", "#id"), ("%a", "1x3x10x12", "#id")), "1x3x10x12", "arith.addf"),
        "%p",
        "1x3x10x12",
    )
    assert Compiled(text, [ChooseLayouts()]).text == Compiled(text).text


CALLED = f"""{MAPS}
    func.func private @layer(%a: tensor<1x8x10x12xf32>, %w: tensor<8x8x1x1xf32> {{buddy.parameter}},
        %n: tensor<1x3x10x12xf32>) -> (tensor<1x8x10x12xf32>, tensor<1x3x10x12xf32>) {{
      %z = arith.constant 0.0 : f32
      {convolution("%c", "%a", "%w", ("1x8x10x12", "8x8x1x1", "1x8x10x12"))}
      {elementwise("%p", (("%c", "1x8x10x12", "#id"), ("%a", "1x8x10x12", "#id")), "1x8x10x12", "arith.addf")}
      {elementwise("%q", (("%n", "1x3x10x12", "#id"), ("%n", "1x3x10x12", "#id")), "1x3x10x12", "arith.addf")}
      return %p, %q : tensor<1x8x10x12xf32>, tensor<1x3x10x12xf32>
    }}
    func.func @f(%a: tensor<1x8x10x12xf32>, %w: tensor<8x8x1x1xf32>, %n: tensor<1x3x10x12xf32>)
        -> (tensor<1x8x10x12xf32>, tensor<1x3x10x12xf32>) attributes {{llvm.emit_c_interface}} {{
      %b:2 = call @layer(%a, %w, %n) : (tensor<1x8x10x12xf32>, tensor<8x8x1x1xf32>, tensor<1x3x10x12xf32>)
        -> (tensor<1x8x10x12xf32>, tensor<1x3x10x12xf32>)
      %c:2 = call @layer(%b#0, %w, %b#1) : (tensor<1x8x10x12xf32>, tensor<8x8x1x1xf32>, tensor<1x3x10x12xf32>)
        -> (tensor<1x8x10x12xf32>, tensor<1x3x10x12xf32>)
      return %c#0, %c#1 : tensor<1x8x10x12xf32>, tensor<1x3x10x12xf32>
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
    assert "2 arguments and results cross calls in their own order" in compiled.remarks
    rng = np.random.default_rng(0)
    shapes = [(1, 8, 10, 12), (8, 8, 1, 1), (1, 3, 10, 12)]
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    results = []
    for passes in ([], [ChooseLayouts()]):
        compiled = Compiled(CALLED, [*passes, Upstream(BUFFERIZE), ResultsToOutParams(), CopiesToLoops()])
        out = np.zeros((1, 8, 10, 12), np.float32), np.zeros((1, 3, 10, 12), np.float32)
        compiled("f", *operands, *out)
        results.append(out)
    for before, after in zip(*results, strict=True):
        np.testing.assert_array_equal(before, after)
