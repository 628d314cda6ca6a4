"""`drop-unit-loops`: a batch of one around a matmul goes away with its reshapes."""

from __future__ import annotations

from buddy.compiler.passes.drop_unit_loops import DropUnitLoops
from buddy.compiler.passes.fold_transposes import FoldTransposes
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled

BATCH_OF_ONE = """
func.func @f(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>) -> tensor<1x4x16xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %t = linalg.transpose ins(%w : tensor<16x8xf32>) outs(%e : tensor<8x16xf32>) permutation = [1, 0]
  %a = tensor.expand_shape %x [[0, 1], [2]] output_shape [1, 4, 8] : tensor<4x8xf32> into tensor<1x4x8xf32>
  %b = tensor.expand_shape %t [[0, 1], [2]] output_shape [1, 8, 16] : tensor<8x16xf32> into tensor<1x8x16xf32>
  %o = tensor.empty() : tensor<1x4x16xf32>
  %c = linalg.fill ins(%z : f32) outs(%o : tensor<1x4x16xf32>) -> tensor<1x4x16xf32>
  %r = linalg.batch_matmul ins(%a, %b : tensor<1x4x8xf32>, tensor<1x8x16xf32>) outs(%c : tensor<1x4x16xf32>)
    -> tensor<1x4x16xf32>
  return %r : tensor<1x4x16xf32>
}
"""


def test_a_batch_of_one_disappears_and_the_transpose_behind_it_folds() -> None:
    compiled = Compiled(BATCH_OF_ONE, [DropUnitLoops(), FoldTransposes()])
    filecheck(
        compiled.text,
        """
        CHECK-DAG: [[A:#.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
        CHECK-DAG: [[B:#.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
        CHECK-DAG: [[C:#.*]] = affine_map<(d0, d1, d2) -> (d0, d1)>
        CHECK: func.func @f([[X:%[a-z0-9]+]]: tensor<4x8xf32>, [[W:%[a-z0-9]+]]: tensor<16x8xf32>)
        CHECK: [[R:%.*]] = linalg.contract indexing_maps = {{\\[}}[[A]], [[B]], [[C]]]
        CHECK-SAME: ins([[X]], [[W]] : tensor<4x8xf32>, tensor<16x8xf32>)
        CHECK: [[E:%.*]] = tensor.expand_shape [[R]]
        CHECK: return [[E]]
        """,
    )
    assert compiled.remarks == ["dropped 1 loop of one iteration", "folded 1 operand transpose"]


def test_a_batch_of_one_that_no_reshape_made_stays() -> None:
    text = """
    func.func @f(%a: tensor<1x4x8xf32>, %b: tensor<1x8x16xf32>, %c: tensor<1x4x16xf32>) -> tensor<1x4x16xf32> {
      %r = linalg.batch_matmul ins(%a, %b : tensor<1x4x8xf32>, tensor<1x8x16xf32>) outs(%c : tensor<1x4x16xf32>)
        -> tensor<1x4x16xf32>
      return %r : tensor<1x4x16xf32>
    }"""
    compiled = Compiled(text, [DropUnitLoops()])
    assert "linalg.batch_matmul" in compiled.text
    assert compiled.remarks == []
