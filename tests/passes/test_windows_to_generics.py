"""`windows-to-generics`: one form of each window, with the numbers that it had."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.choose_layouts import ChooseLayouts
from buddy.compiler.passes.fold_transposes import FoldTransposes
from buddy.compiler.passes.windows_to_generics import WindowsToGenerics
from tests.support.mlir_jit import TO_BUFFERS, Compiled, random_arrays

# Name, shape of the second operand, of the result.
OPS = {
    "convolution": ("conv_2d_nhwc_fhwc", "6x3x2x4", "2x3x4x6"),
    "weights with channels out last": ("conv_2d_nhwc_hwcf", "3x2x4x6", "2x3x4x6"),
    "depthwise": ("depthwise_conv_2d_nhwc_hwcm", "3x2x4x3", "2x3x4x4x3"),
    "largest": ("pooling_nhwc_max", "3x2", "2x3x4x4"),
    "sum": ("pooling_nhwc_sum", "3x2", "2x3x4x4"),
}


def module(name: str) -> str:
    op, second, result = OPS[name]
    return f"""
    func.func @f(%a: tensor<2x7x9x4xf32>, %b: tensor<{second}xf32>) -> tensor<{result}xf32>
        attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<{result}xf32>
      %c = linalg.fill ins(%z : f32) outs(%e : tensor<{result}xf32>) -> tensor<{result}xf32>
      %r = linalg.{op} {{dilations = dense<[1, 2]> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}}
          ins(%a, %b : tensor<2x7x9x4xf32>, tensor<{second}xf32>) outs(%c : tensor<{result}xf32>)
          -> tensor<{result}xf32>
      return %r : tensor<{result}xf32>
    }}"""


def shape(text: str) -> list[int]:
    return [int(size) for size in text.split("x")]


@pytest.mark.parametrize("name", OPS)
def test_named_windows(name: str) -> None:
    _, second, result = OPS[name]
    a, b = random_arrays((2, 7, 9, 4), shape(second))
    found = []
    for passes in ([], [WindowsToGenerics()]):
        compiled = Compiled(module(name), [*passes, *TO_BUFFERS])
        assert ("linalg.generic" in compiled.text) == bool(passes)
        out = np.zeros(shape(result), np.float32)
        compiled("f", a, b, out)
        found.append(out)
    np.testing.assert_array_equal(*found)


def test_padding_is_a_slice_of_a_filled_tensor() -> None:
    text = """
    func.func @f(%a: tensor<2x3xf32>, %s: f32) -> (tensor<5x4xf32>, tensor<3x3xf32>) {
      %p = tensor.pad %a low[1, 0] high[2, 1] {
        ^bb0(%i: index, %j: index):
          tensor.yield %s : f32
      } : tensor<2x3xf32> to tensor<5x4xf32>
      %q = tensor.pad %a low[1, 0] high[0, 0] {
        ^bb0(%i: index, %j: index):
          %k = arith.index_cast %j : index to i32
          %v = arith.sitofp %k : i32 to f32
          tensor.yield %v : f32
      } : tensor<2x3xf32> to tensor<3x3xf32>
      return %p, %q : tensor<5x4xf32>, tensor<3x3xf32>
    }"""
    compiled = Compiled(text, [WindowsToGenerics()])
    assert compiled.remarks == [
        "tensor.pad became tensor.insert_slice",
        "tensor.pad unchanged: it pads with more than one value",
    ]
    assert "tensor.insert_slice %arg0 into" in compiled.text
    assert "[1, 0] [2, 3] [1, 1] : tensor<2x3xf32> into tensor<5x4xf32>" in compiled.text


def test_transposes_between_windows_with_channels_last_go() -> None:
    """TOSA has channels last, a program second: each op is transposed there and back."""
    text = """
    #id = affine_map<(i, j, k, l) -> (i, j, k, l)>
    func.func @f(%a: tensor<1x7x9x8xf32>, %w: tensor<8x8x3x3xf32>) -> tensor<1x3x5x8xf32> {
      %z = arith.constant 0.0 : f32
      %w_e = tensor.empty() : tensor<8x3x3x8xf32>
      %v = linalg.transpose ins(%w : tensor<8x8x3x3xf32>) outs(%w_e : tensor<8x3x3x8xf32>) permutation = [0, 2, 3, 1]
      %b_e = tensor.empty() : tensor<1x5x7x8xf32>
      %b_z = linalg.fill ins(%z : f32) outs(%b_e : tensor<1x5x7x8xf32>) -> tensor<1x5x7x8xf32>
      %b = linalg.conv_2d_nhwc_fhwc ins(%a, %v : tensor<1x7x9x8xf32>, tensor<8x3x3x8xf32>)
          outs(%b_z : tensor<1x5x7x8xf32>) -> tensor<1x5x7x8xf32>
      %c_e = tensor.empty() : tensor<1x8x5x7xf32>
      %c = linalg.transpose ins(%b : tensor<1x5x7x8xf32>) outs(%c_e : tensor<1x8x5x7xf32>) permutation = [0, 3, 1, 2]
      %d = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel",
          "parallel"]} ins(%c : tensor<1x8x5x7xf32>) outs(%c_e : tensor<1x8x5x7xf32>) {
        ^bb0(%x: f32, %y: f32):
          %s = arith.mulf %x, %x : f32
          linalg.yield %s : f32
      } -> tensor<1x8x5x7xf32>
      %e_e = tensor.empty() : tensor<1x5x7x8xf32>
      %e = linalg.transpose ins(%d : tensor<1x8x5x7xf32>) outs(%e_e : tensor<1x5x7x8xf32>) permutation = [0, 2, 3, 1]
      %g_e = tensor.empty() : tensor<1x3x5x8xf32>
      %g_z = linalg.fill ins(%z : f32) outs(%g_e : tensor<1x3x5x8xf32>) -> tensor<1x3x5x8xf32>
      %g = linalg.conv_2d_nhwc_fhwc ins(%e, %v : tensor<1x5x7x8xf32>, tensor<8x3x3x8xf32>)
          outs(%g_z : tensor<1x3x5x8xf32>) -> tensor<1x3x5x8xf32>
      return %g : tensor<1x3x5x8xf32>
    }"""
    assert text.count("linalg.transpose") == 3
    compiled = Compiled(text, [WindowsToGenerics(), ChooseLayouts(), FoldTransposes()])
    assert "linalg.transpose" not in compiled.text
    assert "tensor<1x8x5x7xf32>" not in compiled.text
