"""`fuse-elementwise`: what is fused, what is not, and that numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from buddy.compiler.passes.fuse_elementwise import FuseElementwise
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.mlir_jit import BUFFERIZE, Compiled, Upstream, random_array
from tests.support.mlir_text import generic

MATRIX, CUBE, SQUARE = "tensor<6x40xf32>", "tensor<1x6x40xf32>", "%r = arith.mulf %in0, %in0 : f32"
ADDED = generic(
    "ij",
    [("%x", MATRIX, "i,j"), ("%b", "tensor<40xf32>", "j")],
    [("%e", MATRIX, "i,j")],
    "%r = arith.addf %in0, %in1 : f32",
    results="%y",
)
SQUARED = generic("aij", [("%z", CUBE, "a,i,j")], [("%e3", CUBE, "a,i,j")], SQUARE, results="%w")
SUMMED = generic(
    "aij",
    [("%w", CUBE, "a,i,j")],
    [("%out", "tensor<1x6x1xf32>", "a,i,0")],
    "%r = arith.addf %out0, %in0 : f32",
    reductions="j",
    results="%sum",
)
CHAIN = f"""
func.func @f(%x: {MATRIX}, %b: tensor<40xf32>, %out: tensor<1x6x1xf32>) -> tensor<1x6x1xf32> {{
  %e = tensor.empty() : {MATRIX}
  {ADDED}
  %z = tensor.expand_shape %y [[0, 1], [2]] output_shape [1, 6, 40] : {MATRIX} into {CUBE}
  %e3 = tensor.empty() : {CUBE}
  {SQUARED}
  {SUMMED}
  return %sum : tensor<1x6x1xf32>
}}
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
    x = random_array(6, 40)
    b = random_array(40, seed=1)
    out = np.zeros((1, 6, 1), np.float32)
    compiled = Compiled(CHAIN + store, [FuseElementwise(), Upstream(BUFFERIZE), VectorizeGenerics()])
    compiled("g", x, b, out)
    np.testing.assert_allclose(out[0, :, 0], ((x + b).astype(np.float64) ** 2).sum(1), rtol=1e-5)


COLUMN = "tensor<6x1xf32>"
ROOTS = generic("ij", [("%x", COLUMN, "i,j")], [("%e", COLUMN, "i,j")], "%r = math.rsqrt %in0 : f32", results="%roots")
SCALED = generic(
    "ij",
    [("%y", MATRIX, "i,j"), ("%roots", COLUMN, "i,0")],
    [("%y", MATRIX, "i,j")],
    "%r = arith.mulf %in0, %in1 : f32",
    results="%z",
)
SHARED = f"""
func.func @f(%x: {COLUMN}, %y: {MATRIX}) -> {MATRIX} {{
  %e = tensor.empty() : {COLUMN}
  {ROOTS}
  {SCALED}
  return %z : {MATRIX}
}}
"""


def test_what_is_read_by_a_broadcast_is_not_computed_again_for_every_element() -> None:
    compiled = Compiled(SHARED, [FuseElementwise()])
    assert compiled.text.count("linalg.generic") == 2
    reason = "each of its elements would be computed more than once"
    assert compiled.remarks == [f"not fused into its reader: {reason}"]


CONTRACTION = f"""
func.func @f(%x: tensor<6x8xf32>, %b: tensor<8x5xf32>, %c: tensor<6x5xf32>) -> tensor<6x5xf32> {{
  %e = tensor.empty() : tensor<6x8xf32>
  {generic("ij", [("%x", "tensor<6x8xf32>", "i,j")], [("%e", "tensor<6x8xf32>", "i,j")], SQUARE, results="%squares")}
  %z = linalg.matmul ins(%squares, %b : tensor<6x8xf32>, tensor<8x5xf32>) outs(%c : tensor<6x5xf32>) -> tensor<6x5xf32>
  return %z : tensor<6x5xf32>
}}
"""


def test_contractions_stay_what_they_are() -> None:
    compiled = Compiled(CONTRACTION, [FuseElementwise()])
    assert "linalg.matmul" in compiled.text
    assert compiled.text.count("linalg.generic") == 1


PLACES = generic(
    "ij",
    [("%seed", "tensor<f32>", "")],
    [("%e", MATRIX, "i,j")],
    """%i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %c = arith.constant 40 : index
    %row = arith.muli %i, %c : index
    %at = arith.addi %row, %j : index
    %word = arith.index_cast %at : index to i32
    %place = arith.sitofp %word : i32 to f32
    %r = arith.addf %place, %in0 : f32""",
    results="%places",
)
TURNED = generic(
    "ij",
    [("%places", MATRIX, "j,i"), ("%y", "tensor<40x6xf32>", "i,j")],
    [("%y", "tensor<40x6xf32>", "i,j")],
    "%r = arith.mulf %in0, %in1 : f32",
    results="%z",
)
NUMBERED = f"""
func.func @f(%seed: tensor<f32>, %y: tensor<40x6xf32>) -> tensor<40x6xf32> {{
  %e = tensor.empty() : {MATRIX}
  {PLACES}
  {TURNED}
  return %z : tensor<40x6xf32>
}}
"""


def test_a_producer_that_asks_for_its_indices_gets_the_loops_that_read_it() -> None:
    compiled = Compiled(NUMBERED, [FuseElementwise()])
    assert compiled.text.count("linalg.generic") == 1
    row, column = (compiled.text.index(f"linalg.index {dim} : index") for dim in (1, 0))
    assert row < column


def test_numbers_of_places_stay() -> None:
    store = """
func.func @g(%seed: tensor<f32>, %y: tensor<40x6xf32>, %out: memref<40x6xf32>) attributes {llvm.emit_c_interface} {
  %r = call @f(%seed, %y) : (tensor<f32>, tensor<40x6xf32>) -> tensor<40x6xf32>
  bufferization.materialize_in_destination %r in restrict writable %out : (tensor<40x6xf32>, memref<40x6xf32>) -> ()
  return
}
"""
    y, out = random_array(40, 6), np.zeros((40, 6), np.float32)
    expected = y * (np.arange(240, dtype=np.float32).reshape(6, 40).T + 3)  # now: the result takes the place of y
    compiled = Compiled(NUMBERED + store, [FuseElementwise(), Upstream(BUFFERIZE), VectorizeGenerics()])
    compiled("g", np.array(3, np.float32), y, out)
    np.testing.assert_array_equal(out, expected)


def rounded_chain(element: str, constant: str) -> str:
    """Returns functions that add, round, take the maximum with `constant` and the minimum with 6, and round again."""
    narrow = f"tensor<6x40x{element}>"
    added = generic(
        "ij",
        [("%x", MATRIX, "i,j"), ("%x", MATRIX, "i,j")],
        [("%n", narrow, "i,j")],
        f"%s = arith.addf %in0, %in1 : f32\n%r = arith.truncf %s : f32 to {element}",
        results="%y",
    )
    clamped = generic(
        "ij",
        [("%y", narrow, "i,j")],
        [("%n", narrow, "i,j")],
        f"%w = arith.extf %in0 : {element} to f32\n%l = arith.constant {constant} : f32\n"
        "%h = arith.constant 6.0 : f32\n%a = arith.maximumf %w, %l : f32\n%b = arith.minimumf %h, %a : f32\n"
        f"%r = arith.truncf %b : f32 to {element}",
        results="%z",
    )
    return f"""
func.func @f(%x: {MATRIX}) -> {narrow} {{
  %n = tensor.empty() : {narrow}
  {added}
  {clamped}
  return %z : {narrow}
}}
func.func @g(%x: {MATRIX}, %out: memref<6x40x{element}>) attributes {{llvm.emit_c_interface}} {{
  %r = call @f(%x) : ({MATRIX}) -> {narrow}
  bufferization.materialize_in_destination %r in restrict writable %out : ({narrow}, memref<6x40x{element}>) -> ()
  return
}}
"""


@pytest.mark.parametrize(("element", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
@pytest.mark.parametrize(("constant", "roundings"), [(0.0, 1), (1.5, 1), (0.1, 2), (-0.0, 1)])
def test_a_number_that_is_clamped_is_rounded_once(
    element: str, dtype: torch.dtype, constant: float, roundings: int
) -> None:
    """The results are those of two roundings; a limit that 16 bits do not represent keeps both."""
    compiled = Compiled(rounded_chain(element, str(constant)), [FuseElementwise()])
    assert compiled.text.count("arith.truncf") == roundings, compiled.text
    x = torch.from_numpy(random_array(6, 40)).mul_(4)
    special = [torch.nan, torch.inf, -torch.inf, -0.0, 1e-45, -1e-45, -1e-9, 0.1000061, 2.998, 0.74999999]
    x[0, : len(special)] = torch.tensor(special)
    once, twice = torch.zeros(2, 6, 40, dtype=torch.int16)
    rest = [Upstream(BUFFERIZE), VectorizeGenerics()]
    for passes, out in (([FuseElementwise(), *rest], once), (rest, twice)):
        Compiled(rounded_chain(element, str(constant)), passes)("g", x.numpy(), out.numpy())
    rounded = (x + x).to(dtype).float()
    expected = torch.minimum(torch.maximum(rounded, torch.tensor(constant)), torch.tensor(6.0)).to(dtype)
    torch.testing.assert_close(once.view(dtype), expected, rtol=0, atol=0, equal_nan=True)
    assert (once == twice)[~expected.isnan()].all(), "bits, with the signs of zeros"
