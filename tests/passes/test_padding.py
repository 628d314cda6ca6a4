"""`pad-in-place` and `fill-borders`: padded tensors are made where they lie, and filled where nothing else writes."""

from __future__ import annotations

import numpy as np

from buddy.compiler.passes.copies_to_loops import CopiesToLoops
from buddy.compiler.passes.fill_borders import FillBorders
from buddy.compiler.passes.pad_in_place import PadInPlace
from buddy.compiler.passes.results_to_out_params import ResultsToOutParams
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import BUFFERIZE, Compiled, Upstream

PADDED = """
    #id = affine_map<(i, j, k) -> (i, j, k)>
    func.func @f(%a: tensor<4x5x3xf32> {bufferization.writable = false}) -> (tensor<7x6x3xf32>, tensor<4x5x3xf32>)
        attributes {llvm.emit_c_interface} {
      %z = arith.constant 7.0 : f32
      %e = tensor.empty() : tensor<4x5x3xf32>
      %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
          ins(%a : tensor<4x5x3xf32>) outs(%e : tensor<4x5x3xf32>) {
        ^bb0(%x: f32, %y: f32):
          %s = arith.mulf %x, %x : f32
          linalg.yield %s : f32
      } -> tensor<4x5x3xf32>
      %p_e = tensor.empty() : tensor<7x6x3xf32>
      %p_z = linalg.fill ins(%z : f32) outs(%p_e : tensor<7x6x3xf32>) -> tensor<7x6x3xf32>
      %p = tensor.insert_slice %r into %p_z[1, 0, 0] [4, 5, 3] [1, 1, 1] : tensor<4x5x3xf32> into tensor<7x6x3xf32>
      USE
    }"""
ALONE = PADDED.replace("-> (tensor<7x6x3xf32>, tensor<4x5x3xf32>)", "-> tensor<7x6x3xf32>").replace(
    "USE", "return %p : tensor<7x6x3xf32>"
)
STEPS = [
    PadInPlace(),
    Upstream(BUFFERIZE),
    ResultsToOutParams(),
    Upstream("builtin.module(cse)"),
    FillBorders(),
    CopiesToLoops(),
]


def check(compiled: Compiled, *, with_squares: bool = False) -> None:
    """@f gives the squares of its argument with a border of sevens, and after them the squares alone if asked to."""
    a = np.arange(60, dtype=np.float32).reshape(4, 5, 3)
    padded, squares = np.full((7, 6, 3), np.nan, np.float32), np.full((4, 5, 3), np.nan, np.float32)
    compiled("f", a, padded, *([squares] if with_squares else []))
    expected = np.full((7, 6, 3), 7.0, np.float32)
    expected[1:5, 0:5] = a * a
    np.testing.assert_array_equal(padded, expected)
    if with_squares:
        np.testing.assert_array_equal(squares, a * a)


def test_what_the_padded_tensor_is_filled_with_may_come_behind_the_generic() -> None:
    """A constant is moved in front of it; what is computed there stays, and the copy with it."""
    constant = "%z = arith.constant 7.0 : f32\n"
    late = ALONE.replace(constant, "").replace("%p_e =", f"{constant} %p_e =")
    check(Compiled(late, STEPS))
    summed = late.replace(constant, "%c = arith.constant 3.5 : f32\n %z = arith.addf %c, %c : f32\n")
    assert "extract_slice" not in Compiled(summed, [PadInPlace()]).text


def test_the_generic_writes_into_the_padded_tensor() -> None:
    compiled = Compiled(ALONE, [PadInPlace()])
    filecheck(
        compiled.text,
        """
        CHECK: [[FILLED:%.*]] = linalg.fill {{.*}} -> tensor<7x6x3xf32>
        CHECK: [[SLOT:%.*]] = tensor.extract_slice [[FILLED]][1, 0, 0] [4, 5, 3] [1, 1, 1]
        CHECK: [[MADE:%.*]] = linalg.generic {{.*}} outs([[SLOT]] : tensor<4x5x3xf32>)
        CHECK: tensor.insert_slice [[MADE]] into [[FILLED]][1, 0, 0]
        """,
    )
    assert compiled.remarks == ["its result is computed inside the padded 7x6x3"]


def test_only_the_border_is_filled_and_nothing_copied() -> None:
    compiled = Compiled(ALONE, STEPS)
    written = "result 0 is written to the caller's buffer"
    assert compiled.remarks[1:] == [written, "filled in 3 strips around the part that is written next"]
    assert compiled.text.count("linalg.fill") == 3
    check(compiled)


def test_other_readers_see_the_same_numbers() -> None:
    text = PADDED.replace("USE", "return %p, %r : tensor<7x6x3xf32>, tensor<4x5x3xf32>")
    check(Compiled(text, STEPS), with_squares=True)


def test_a_filled_tensor_with_other_readers_stays() -> None:
    text = PADDED.replace("USE", "return %p_z, %r : tensor<7x6x3xf32>, tensor<4x5x3xf32>")
    compiled = Compiled(text, [PadInPlace()])
    assert "tensor.extract_slice" not in compiled.text
    assert compiled.remarks == ["copied into the padded tensor: no generic could write it there"]


BORDERS = """
    #id = affine_map<(i, j) -> (i, j)>
    func.func @f(%a: memref<2x3xf32>, %out: memref<4x5xf32>) attributes {llvm.emit_c_interface} {
      %z = arith.constant 7.0 : f32
      %p = memref.alloc() : memref<4x5xf32>
      linalg.fill ins(%z : f32) outs(%p : memref<4x5xf32>)
      BEFORE
      %s = memref.subview %p[1, 1] [2, 3] [1, 1] : memref<4x5xf32> to memref<2x3xf32, strided<[5, 1], offset: 6>>
      linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%a : memref<2x3xf32>) outs(%s : memref<2x3xf32, strided<[5, 1], offset: 6>>) {
        ^bb0(%x: f32, %y: f32):
          linalg.yield VALUE : f32
      }
      linalg.copy ins(%p : memref<4x5xf32>) outs(%out : memref<4x5xf32>)
      return
    }"""


def bordered(before: str, value: str) -> Compiled:
    return Compiled(BORDERS.replace("BEFORE", before).replace("VALUE", value), [FillBorders()])


def test_a_fill_that_is_read_stays_whole() -> None:
    overwritten = bordered("", "%x")
    assert overwritten.text.count("linalg.fill") == 4
    assert bordered("", "%y").remarks == []
    assert bordered("linalg.copy ins(%p : memref<4x5xf32>) outs(%out : memref<4x5xf32>)", "%x").remarks == []
    a, out = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((4, 5), np.nan, np.float32)
    overwritten("f", a, out)
    np.testing.assert_array_equal(out, np.pad(a, 1, constant_values=7.0))
