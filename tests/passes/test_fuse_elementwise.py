"""`fuse-elementwise`: what is fused, what is not, and that numbers stay."""

from __future__ import annotations

import numpy as np
from mlir_jit import BUFFERIZE, Compiled, Upstream

from buddy.compiler.passes.fuse_elementwise import FuseElementwise
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics

CHAIN = """
#id2 = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (j)>
#id3 = affine_map<(a, i, j) -> (a, i, j)>
#sum = affine_map<(a, i, j) -> (a, i, 0)>
func.func @f(%x: tensor<6x40xf32>, %b: tensor<40xf32>, %out: tensor<1x6x1xf32>) -> tensor<1x6x1xf32> {
  %e = tensor.empty() : tensor<6x40xf32>
  %y = linalg.generic {indexing_maps = [#id2, #row, #id2], iterator_types = ["parallel", "parallel"]}
    ins(%x, %b : tensor<6x40xf32>, tensor<40xf32>) outs(%e : tensor<6x40xf32>) {
    ^bb0(%a: f32, %c: f32, %d: f32):
      %s = arith.addf %a, %c : f32
      linalg.yield %s : f32
  } -> tensor<6x40xf32>
  %z = tensor.expand_shape %y [[0, 1], [2]] output_shape [1, 6, 40] : tensor<6x40xf32> into tensor<1x6x40xf32>
  %e3 = tensor.empty() : tensor<1x6x40xf32>
  %w = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%z : tensor<1x6x40xf32>) outs(%e3 : tensor<1x6x40xf32>) {
    ^bb0(%a: f32, %d: f32):
      %s = arith.mulf %a, %a : f32
      linalg.yield %s : f32
  } -> tensor<1x6x40xf32>
  %r = linalg.generic {indexing_maps = [#id3, #sum], iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%w : tensor<1x6x40xf32>) outs(%out : tensor<1x6x1xf32>) {
    ^bb0(%a: f32, %d: f32):
      %s = arith.addf %d, %a : f32
      linalg.yield %s : f32
  } -> tensor<1x6x1xf32>
  return %r : tensor<1x6x1xf32>
}
"""


def test_a_chain_through_a_reshape_becomes_one_reduction() -> None:
    compiled = Compiled(CHAIN, [FuseElementwise()])
    assert compiled.text.count("linalg.generic") == 1
    assert "tensor.expand_shape" not in compiled.text
    assert compiled.remarks == ["fused its producer (1 scalar ops)", "fused its producer (2 scalar ops)"]


def test_numbers_stay() -> None:
    """The result, returned as a buffer, is compared after a second function has stored it to the caller's array."""
    store = """
func.func @g(%x: tensor<6x40xf32>, %b: tensor<40xf32>, %out: memref<1x6x1xf32>) attributes {llvm.emit_c_interface} {
  %zero = arith.constant dense<0.0> : tensor<1x6x1xf32>
  %r = call @f(%x, %b, %zero) : (tensor<6x40xf32>, tensor<40xf32>, tensor<1x6x1xf32>) -> tensor<1x6x1xf32>
  bufferization.materialize_in_destination %r in restrict writable %out : (tensor<1x6x1xf32>, memref<1x6x1xf32>) -> ()
  return
}
"""
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    b = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    out = np.zeros((1, 6, 1), np.float32)
    compiled = Compiled(CHAIN + store, [FuseElementwise(), Upstream(BUFFERIZE), VectorizeGenerics()])
    compiled("g", x, b, out)
    np.testing.assert_allclose(out[0, :, 0], ((x + b).astype(np.float64) ** 2).sum(1), rtol=1e-5)


SHARED = """
#id = affine_map<(i, j) -> (i, j)>
#column = affine_map<(i, j) -> (i, 0)>
func.func @f(%x: tensor<6x1xf32>, %y: tensor<6x40xf32>) -> tensor<6x40xf32> {
  %e = tensor.empty() : tensor<6x1xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
    ins(%x : tensor<6x1xf32>) outs(%e : tensor<6x1xf32>) {
    ^bb0(%a: f32, %d: f32):
      %s = math.rsqrt %a : f32
      linalg.yield %s : f32
  } -> tensor<6x1xf32>
  %z = linalg.generic {indexing_maps = [#id, #column, #id], iterator_types = ["parallel", "parallel"]}
    ins(%y, %r : tensor<6x40xf32>, tensor<6x1xf32>) outs(%y : tensor<6x40xf32>) {
    ^bb0(%a: f32, %c: f32, %d: f32):
      %s = arith.mulf %a, %c : f32
      linalg.yield %s : f32
  } -> tensor<6x40xf32>
  return %z : tensor<6x40xf32>
}
"""


def test_what_is_read_by_a_broadcast_is_not_computed_again_for_every_element() -> None:
    compiled = Compiled(SHARED, [FuseElementwise()])
    assert compiled.text.count("linalg.generic") == 2
    reason = "each of its elements would be computed more than once"
    assert compiled.remarks == [f"stays apart from the op that reads it: {reason}"]


CONTRACTION = """
#id = affine_map<(i, j) -> (i, j)>
func.func @f(%x: tensor<6x8xf32>, %b: tensor<8x5xf32>, %c: tensor<6x5xf32>) -> tensor<6x5xf32> {
  %e = tensor.empty() : tensor<6x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
    ins(%x : tensor<6x8xf32>) outs(%e : tensor<6x8xf32>) {
    ^bb0(%a: f32, %d: f32):
      %s = arith.mulf %a, %a : f32
      linalg.yield %s : f32
  } -> tensor<6x8xf32>
  %z = linalg.matmul ins(%r, %b : tensor<6x8xf32>, tensor<8x5xf32>) outs(%c : tensor<6x5xf32>) -> tensor<6x5xf32>
  return %z : tensor<6x5xf32>
}
"""


def test_contractions_stay_what_they_are() -> None:
    compiled = Compiled(CONTRACTION, [FuseElementwise()])
    assert "linalg.matmul" in compiled.text
    assert compiled.text.count("linalg.generic") == 1
