"""Views whose offset is known at run time only: kernels are called with base and offset."""

from __future__ import annotations

import numpy as np

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from tests.support.mlir_jit import Compiled, random_arrays

BLOCKS = """
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @f(%a: memref<4x8x5xf32>, %b: memref<5x9xf32>, %c: memref<4x8x9xf32>) attributes {llvm.emit_c_interface} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %end = arith.constant 4 : index
  scf.for %i = %zero to %end step %one {
    %x = memref.subview %a[%i, 0, 0] [1, 8, 5] [1, 1, 1]
      : memref<4x8x5xf32> to memref<8x5xf32, strided<[5, 1], offset: ?>>
    %y = memref.subview %c[%i, 0, 0] [1, 8, 9] [1, 1, 1]
      : memref<4x8x9xf32> to memref<8x9xf32, strided<[9, 1], offset: ?>>
    linalg.contract indexing_maps = [#a, #b, #c]
      ins(%x, %b : memref<8x5xf32, strided<[5, 1], offset: ?>>, memref<5x9xf32>)
      outs(%y : memref<8x9xf32, strided<[9, 1], offset: ?>>)
  }
  return
}
"""


def test_blocks_of_a_loop_share_a_kernel_that_takes_their_offsets() -> None:
    compiled = Compiled(BLOCKS, [ContractionsToKernels()])
    signature = "(memref<f32>, index, memref<5x9xf32>, memref<f32>, index) -> ()"
    assert compiled.text.count(signature) == 1
    a, b, c = random_arrays((4, 8, 5), (5, 9), (4, 8, 9))
    expected = c + a @ b
    compiled("f", a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)  # sums of 5 products in another order
