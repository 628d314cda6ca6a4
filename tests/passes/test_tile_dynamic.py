"""`tile-dynamic` and `pass-sizes`: loops around ops of known sizes, and buffers that cross calls as base pointers."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.pass_sizes import PassSizes
from buddy.compiler.passes.tile_dynamic import TileDynamic
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled

# Around the blocks of vectors (64, 8, 1), of rows (128, 32, 8), and of squares (64).
SIZES = (0, 1, 7, 8, 31, 32, 64, 73, 128, 161)

PLACES = """
#id = affine_map<(i, j) -> (i, j)>
func.func @f(%x: memref<?x?xf32>, %out: memref<?x?xf32>) attributes {llvm.emit_c_interface} {
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : memref<?x?xf32>) outs(%out : memref<?x?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %k = arith.muli %i, %j : index
    %n = arith.index_cast %k : index to i64
    %s = arith.sitofp %n : i64 to f32
    %r = arith.addf %a, %s : f32
    linalg.yield %r : f32
  }
  return
}
"""

ROWS = """
func.func @f(%a: memref<?x48xf32>, %b: memref<48x24xf32>, %c: memref<?x24xf32>) attributes {llvm.emit_c_interface} {
  linalg.matmul ins(%a, %b : memref<?x48xf32>, memref<48x24xf32>) outs(%c : memref<?x24xf32>)
  return
}
"""

SQUARES = """
func.func @f(%a: memref<?x?xf32>, %b: memref<?x?xf32>, %c: memref<?x?xf32>) attributes {llvm.emit_c_interface} {
  linalg.matmul ins(%a, %b : memref<?x?xf32>, memref<?x?xf32>) outs(%c : memref<?x?xf32>)
  return
}
"""


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_every_element_is_told_its_own_place() -> None:
    compiled = Compiled(PLACES, [TileDynamic(), VectorizeGenerics()])
    for rows, columns in ((3, 1), (2, 8), (1, 64), (3, 75), (0, 5), (4, 0)):
        x, out = array(rows, columns), np.full((rows, columns), np.nan, np.float32)
        compiled("f", x, out)
        np.testing.assert_array_equal(out, x + np.outer(np.arange(rows), np.arange(columns)).astype(np.float32))


def test_vectors_along_the_loop_that_is_dense_then_a_remainder() -> None:
    filecheck(
        Compiled(PLACES, [TileDynamic()]).text,
        """
        CHECK: scf.for %[[I:.*]] =
        CHECK:   scf.for %[[J:.*]] =
        CHECK:     outs({{.*}} : memref<1x64xf32
        CHECK:   scf.for
        CHECK:     outs({{.*}} : memref<1x8xf32
        CHECK:   scf.for
        CHECK:     outs({{.*}} : memref<1x1xf32
        CHECK-NOT: linalg.generic
        """,
    )


def test_rows_of_a_product_keep_their_operands_but_for_the_last_block() -> None:
    compiled = Compiled(ROWS, [TileDynamic(), ContractionsToKernels(pack_weights=False)])
    assert "linalg.matmul: rows in blocks" in compiled.remarks
    for rows in SIZES:
        a, b, c = array(rows, 48), array(48, 24), array(rows, 24)
        wanted = c + a @ b
        compiled("f", a, b, c)
        # 48 products in another order: less than 48 roundings of f32 beside sums of about 7.
        np.testing.assert_allclose(c, wanted, atol=48 * 7 * 6e-8)


# B is contiguous along K, so kernels pack it. Between the products of the second function, it is written.
TRANSPOSED = """
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @f(%a: memref<?x48xf32>, %b: memref<64x48xf32>, %c: memref<?x64xf32>) attributes {llvm.emit_c_interface} {
  linalg.contract indexing_maps = [#a, #b, #c]
      ins(%a, %b : memref<?x48xf32>, memref<64x48xf32>) outs(%c : memref<?x64xf32>)
  return
}
func.func @g(%a: memref<?x48xf32>, %b: memref<64x48xf32>, %c: memref<?x64xf32>) attributes {llvm.emit_c_interface} {
  linalg.contract indexing_maps = [#a, #b, #c]
      ins(%a, %b : memref<?x48xf32>, memref<64x48xf32>) outs(%c : memref<?x64xf32>)
  %one = arith.constant 1.0 : f32
  linalg.fill ins(%one : f32) outs(%b : memref<64x48xf32>)
  linalg.contract indexing_maps = [#a, #b, #c]
      ins(%a, %b : memref<?x48xf32>, memref<64x48xf32>) outs(%c : memref<?x64xf32>)
  return
}
"""


def test_all_blocks_of_rows_share_one_packing() -> None:
    compiled = Compiled(TRANSPOSED, [TileDynamic(), ContractionsToKernels(pack_weights=False)])
    of_f, of_g = compiled.text.split("func.func @g")
    assert of_f.count("call @pack_before_loop") == 1
    assert of_g.partition("func.func")[0].count("call @pack_before_loop") == 2
    for rows in SIZES:
        a, b, c = array(rows, 48), array(64, 48), array(rows, 64)
        wanted = c + a @ b.T
        compiled("f", a, b, c)
        # 48 products in another order: less than 48 roundings of f32 beside sums of about 7.
        np.testing.assert_allclose(c, wanted, atol=48 * 7 * 6e-8)
        wanted = c + a @ b.T + a.sum(1, keepdims=True)
        compiled("g", a, b, c)
        np.testing.assert_allclose(c, wanted, atol=2 * 48 * 14 * 6e-8)


# The loops add three products. `READ` leaves B as it is; the others write it, a view of it, and in a function.
IN_A_LOOP = """
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @fill_with_ones(%b: memref<64x48xf32>) {{
  %one = arith.constant 1.0 : f32
  linalg.fill ins(%one : f32) outs(%b : memref<64x48xf32>)
  return
}}
func.func @f(%a: memref<64x48xf32>, %b: memref<64x48xf32>, %c: memref<64x64xf32>)
    attributes {{llvm.emit_c_interface}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %one = arith.constant 1.0 : f32
  scf.for %i = %c0 to %c3 step %c1 {{
    linalg.contract indexing_maps = [#a, #b, #c]
        ins(%a, %b : memref<64x48xf32>, memref<64x48xf32>) outs(%c : memref<64x64xf32>)
    {write}
  }}
  return
}}
"""
READ = ""
WRITE = "linalg.fill ins(%one : f32) outs(%b : memref<64x48xf32>)"
WRITE_VIEW = """%view = memref.collapse_shape %b [[0, 1]] : memref<64x48xf32> into memref<3072xf32>
    linalg.fill ins(%one : f32) outs(%view : memref<3072xf32>)"""
CALL = "func.call @fill_with_ones(%b) : (memref<64x48xf32>) -> ()"


@pytest.mark.parametrize("write", [READ, WRITE, WRITE_VIEW, CALL])
def test_an_operand_is_packed_before_a_loop_only_if_the_loop_does_not_write_it(write: str) -> None:
    compiled = Compiled(IN_A_LOOP.format(write=write), [ContractionsToKernels(pack_weights=False)])
    assert compiled.text.count("call @pack_before_loop") == (not write)
    a, b, c = array(64, 48), array(64, 48), array(64, 64)
    later = a.sum(1, keepdims=True) if write else a @ b.T
    wanted = c + a @ b.T + 2 * later
    compiled("f", a, b, c)
    # Three times 48 products in another order: less than 144 roundings of f32 beside sums of up to 30.
    np.testing.assert_allclose(c, wanted, atol=144 * 30 * 6e-8)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_product_of_any_sizes(kernels: bool) -> None:
    compiled = Compiled(SQUARES, [TileDynamic(), *([ContractionsToKernels(pack_weights=False)] * kernels)])
    assert "linalg.matmul: tiles in separate buffers" in compiled.remarks
    for m, n, k in ((1, 1, 1), (64, 64, 64), (65, 3, 130), (5, 70, 0), (0, 4, 4), (63, 129, 65)):
        a, b, c = array(m, k), array(k, n), array(m, n)
        wanted = c + a @ b
        compiled("f", a, b, c)
        np.testing.assert_allclose(c, wanted, atol=130 * 12 * 6e-8)


def test_what_lies_behind_the_factors_is_not_summed() -> None:
    compiled = Compiled(SQUARES, [TileDynamic()])
    # Tiles are 64 wide: their rest is in these arrays, but not in the operands.
    wide = np.full((9, 200), np.nan, np.float32)
    wide[:, :5] = array(9, 5)
    a, b, c = np.ascontiguousarray(wide[:, :5]), array(5, 7), np.zeros((9, 7), np.float32)
    compiled("f", a, b, c)
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


def test_known_sizes_are_left_alone() -> None:
    for text in (ROWS.replace("?", "16"), SQUARES.replace("?", "16"), PLACES.replace("?", "16")):
        tiled = Compiled(text, [TileDynamic(), PassSizes()])
        assert tiled.text == Compiled(text).text
        assert tiled.remarks == []


# %u, %v and %w have known sizes. A sum of loops cannot be tiled where sizes are not known.
MIXED = """
#id = affine_map<(i, j) -> (i, j)>
#sum = affine_map<(i, j) -> (i + j)>
func.func @f(%x: memref<?x?xf32>, %y: memref<?xf32>, %u: memref<8x8xf32>, %v: memref<8x8xf32>, %w: memref<15xf32>) {
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%u : memref<8x8xf32>) outs(%v : memref<8x8xf32>) { ^bb0(%a: f32, %o: f32): linalg.yield %a : f32 }
  linalg.matmul ins(%u, %u : memref<8x8xf32>, memref<8x8xf32>) outs(%v : memref<8x8xf32>)
  linalg.generic {indexing_maps = [#sum, #id], iterator_types = ["parallel", "parallel"]}
      ins(%w : memref<15xf32>) outs(%v : memref<8x8xf32>) { ^bb0(%a: f32, %o: f32): linalg.yield %a : f32 }
  memref.copy %u, %v : memref<8x8xf32> to memref<8x8xf32>
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : memref<?x?xf32>) outs(%x : memref<?x?xf32>) { ^bb0(%a: f32, %o: f32): linalg.yield %a : f32 }
  linalg.generic {indexing_maps = [#sum, #id], iterator_types = ["parallel", "parallel"]}
      ins(%y : memref<?xf32>) outs(%x : memref<?x?xf32>) { ^bb0(%a: f32, %o: f32): linalg.yield %a : f32 }
  return
}
"""


def test_remarks_are_about_ops_of_unknown_sizes_alone() -> None:
    tiled = Compiled(MIXED, [TileDynamic()])
    assert tiled.remarks == [
        "linalg.generic: loops around tiles of 1x64",
        "linalg.generic left to scalar loops: a dynamic size or stride is indexed by d0 + d1",
    ]
    filecheck(
        tiled.text,
        """
        CHECK:      func.func @f
        CHECK-NEXT: linalg.generic {{.*}} ins({{.*}} : memref<8x8xf32>) outs({{.*}} : memref<8x8xf32>)
        CHECK:      linalg.matmul ins({{.*}} : memref<8x8xf32>, memref<8x8xf32>)
        CHECK-NEXT: linalg.generic {{.*}} ins({{.*}} : memref<15xf32>) outs({{.*}} : memref<8x8xf32>)
        CHECK:      memref.copy {{.*}} : memref<8x8xf32> to memref<8x8xf32>
        CHECK:      scf.for
        CHECK:      linalg.generic {{.*}} ins({{.*}} : memref<?xf32>) outs({{.*}} : memref<?x?xf32>)
        """,
    )


# The first loop is dynamic in one operand only.
WINDOWS = """
func.func @f(%x: memref<84xf32>, %y: memref<?xf32>, %out: memref<80x5xf32>) attributes {llvm.emit_c_interface} {
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i + j)>, affine_map<(i, j) -> (i)>,
                                   affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%x, %y : memref<84xf32>, memref<?xf32>) outs(%out : memref<80x5xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.addf %a, %b : f32
    linalg.yield %r : f32
  }
  return
}
"""


def test_a_loop_in_a_sum_is_not_tiled_if_its_size_is_static_in_another_operand() -> None:
    compiled = Compiled(WINDOWS, [TileDynamic(), VectorizeGenerics()])
    x, y, out = array(84), array(80), np.full((80, 5), np.nan, np.float32)
    compiled("f", x, y, out)
    np.testing.assert_array_equal(out, np.lib.stride_tricks.sliding_window_view(x, 5) + y[:, None])


CALLS = """
func.func private @g(%x: memref<?x4xf32> {buddy.sizes = ["2*s0 + 1", "4"]}, %n: index {buddy.symbol = "s0"}) {
  %two = arith.constant 2.0 : f32
  linalg.fill ins(%two : f32) outs(%x : memref<?x4xf32>)
  return
}
func.func @f(%x: memref<?x4xf32>, %n: index) attributes {llvm.emit_c_interface} {
  call @g(%x, %n) : (memref<?x4xf32>, index) -> ()
  return
}
"""


def test_buffers_are_made_anew_from_their_sizes() -> None:
    # The entry here is called with descriptors, so that only the inner call crosses by base.
    inner = CALLS.replace("@f(%x: memref<?x4xf32>", '@f(%x: memref<?x4xf32> {buddy.sizes = ["2*s0 + 1", "4"]}')
    text = Compiled(inner.replace("%n: index) attr", '%n: index {buddy.symbol = "s0"}) attr'), [PassSizes()]).text
    filecheck(
        text,
        """
        CHECK: func.func private @g(%[[X:.*]]: memref<f32> {{.*}}, %[[N:.*]]: index
        CHECK: %[[TWICE:.*]] = arith.muli %[[N]], %c2
        CHECK: %[[ROWS:.*]] = arith.addi %[[TWICE]], %c1
        CHECK: memref.reinterpret_cast %[[X]] to offset: [0], sizes: [%[[ROWS]], 4], strides: [4, 1]
        CHECK: func.func @f(%{{.*}}: memref<f32>
        CHECK: call @g({{.*}}) : (memref<f32>, index) -> ()
        """,
    )
