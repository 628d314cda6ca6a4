"""`fuse-epilogues` with `contractions-to-kernels`: what is marked and moved, what is refused, and the numbers after."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.programs import Line, assert_same
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import SIZES, TARGETS, Compiled, random_arrays
from tests.support.mlir_text import entry_function, generic, memref

BOTH = [FuseEpilogues(), ContractionsToKernels()]


def product(m: int, n: int, k: int, target: str, b_columns: bool = False, a_columns: bool = False) -> str:
    """`target` = %lhs %rhs, from %zero; %rhs is [n, k] where `b_columns`, %lhs is [k, m] where `a_columns`."""
    b, b_map = (memref(n, k), "(n, k)") if b_columns else (memref(k, n), "(k, n)")
    a, a_map = (memref(k, m), "(k, m)") if a_columns else (memref(m, k), "(m, k)")
    return f"""
      linalg.fill ins(%zero : f32) outs({target} : {memref(m, n)})
      linalg.contract indexing_maps = [affine_map<(m, n, k) -> {a_map}>, affine_map<(m, n, k) -> {b_map}>,
        affine_map<(m, n, k) -> (m, n)>] ins(%lhs, %rhs : {a}, {b}) outs({target} : {memref(m, n)})"""


def bias_residual_relu(
    m: int, n: int, k: int, b_columns: bool = False, parameter: bool = False, a_columns: bool = False
) -> str:
    """%u = relu(%lhs %rhs + %bias) + %residual."""
    a = memref(k, m) if a_columns else memref(m, k)
    b, c = memref(n, k) if b_columns else memref(k, n), memref(m, n)
    mark = " {buddy.parameter, buddy.source = 1 : i64}" if parameter else ""
    body = """%0 = arith.addf %in0, %in1 : f32
          %1 = arith.maximumf %0, %zero : f32
          %r = arith.addf %1, %in2 : f32"""
    inputs = [("%t", c, "i,j"), ("%bias", memref(n), "j"), ("%residual", c, "i,j")]
    return entry_function(
        f"%lhs: {a}, %rhs: {b}{mark}, %bias: {memref(n)}, %residual: {c}, %u: {c} {{buddy.result}}",
        f"""%zero = arith.constant 0.0 : f32
      %t = memref.alloc() : {c}
      {product(m, n, k, "%t", b_columns, a_columns)}
      {generic("ij", inputs, [("%u", c, "i,j")], body)}""",
    )


def check_bias_residual_relu(
    compiled: Compiled, m: int, n: int, k: int, b_columns: bool = False, a_columns: bool = False
) -> None:
    a, b, bias, r, u = random_arrays(
        (k, m) if a_columns else (m, k), (n, k) if b_columns else (k, n), (n,), (m, n), (m, n)
    )
    u[...] = np.nan
    wide = (a.T if a_columns else a).astype(np.float64) @ (b.T if b_columns else b)
    compiled("f", a, b, bias, r, u)
    # k products of unit variance, each rounded once: the error grows with the root of k.
    np.testing.assert_allclose(u, np.maximum(wide + bias, 0) + r, atol=2e-6 * max(4, k**0.5) * 4)


SHAPES = random.Random(5).sample(list(itertools.product(SIZES, SIZES, SIZES)), 10)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("b_columns", [False, True])
@pytest.mark.slow
def test_an_epilogue_gives_the_same_numbers_for_many_shapes(target: str, b_columns: bool) -> None:
    for m, n, k in SHAPES:
        compiled = Compiled(bias_residual_relu(m, n, k, b_columns), BOTH, target=TARGETS[target])
        assert "linalg" not in compiled.text, compiled.remarks
        assert "memref.alloc() : " not in compiled.text
        check_bias_residual_relu(compiled, m, n, k, b_columns)


def test_sums_over_blocks_of_k_reach_the_epilogue_once() -> None:
    compiled = Compiled(bias_residual_relu(40, 50, 700), BOTH, target=TARGETS["small cache"])
    assert "linalg" not in compiled.text
    check_bias_residual_relu(compiled, 40, 50, 700, False)


@pytest.mark.parametrize("depth", [45, 700])
def test_the_epilogue_of_a_product_of_copied_operands(depth: int) -> None:
    target = replace(TARGETS["avx2"], l2=2 << 10)
    compiled = Compiled(bias_residual_relu(140, 90, depth, a_columns=True), BOTH, target=target)
    assert any("packed A, epilogue of" in remark for remark in compiled.remarks)
    check_bias_residual_relu(compiled, 140, 90, depth, a_columns=True)


def test_the_reader_of_a_product_is_marked_and_then_gone() -> None:
    marked = Compiled(bias_residual_relu(8, 16, 4), [FuseEpilogues()])
    filecheck(
        marked.text,
        """
        CHECK: linalg.fill
        CHECK-NEXT: linalg.contract
        CHECK-NEXT: linalg.generic
        CHECK-SAME: {buddy.epilogue = 0 : i64}
        """,
    )
    assert marked.remarks == ["linalg.generic, which reads the result, is its epilogue"]
    fused = Compiled(bias_residual_relu(8, 16, 4), BOTH, target=TARGETS["avx512"])
    filecheck(
        fused.text,
        """
        CHECK: func.func @f
        CHECK-NOT: memref.alloc
        CHECK: call @matmul_8x4x16_epilogue(%arg0, %arg1, %arg2, %arg3, %arg4)
        CHECK-NEXT: return
        CHECK: func.func private @matmul_8x4x16_epilogue(
        CHECK: vector.fma
        CHECK: arith.maximumf
        CHECK: vector.store
        """,
    )
    assert fused.remarks[1].endswith("direct B, epilogue of linalg.generic (3 scalar ops)")


@pytest.mark.parametrize("target", TARGETS)
def test_a_long_epilogue_is_a_loop_over_the_vectors_of_a_block(target: str) -> None:
    text = bias_residual_relu(45, 70, 33)
    steps = [f"%h{i} = arith.mulf %h{i - 1}, %half : f32" for i in range(1, 13)]
    text = text.replace("%zero = ", "%half = arith.constant 0.5 : f32\n      %zero = ")
    text = text.replace("%r = arith.addf %1, %in2 : f32", "%h0 = arith.addf %1, %in2 : f32\n" + "\n".join(steps))
    compiled = Compiled(text.replace("yield %r", "yield %h12"), BOTH, target=TARGETS[target])
    assert compiled.text.count("arith.mulf") < 12 * 30  # once per kind of block, not once per vector of it
    a, b, bias, r, u = random_arrays((45, 33), (33, 70), (70,), (45, 70), (45, 70))
    compiled("f", a, b, bias, r, u)
    wide = a.astype(np.float64) @ b
    np.testing.assert_allclose(u * 2**12, np.maximum(wide + bias, 0) + r, atol=5e-5)


def test_epilogues_can_be_switched_off() -> None:
    passes = [FuseEpilogues(epilogues=False), ContractionsToKernels(), VectorizeGenerics()]
    compiled = Compiled(bias_residual_relu(9, 20, 11), passes)
    assert "epilogue" not in compiled.text
    check_bias_residual_relu(compiled, 9, 20, 11, False)


def test_an_epilogue_reaches_packed_weights_too() -> None:
    compiled = Compiled(bias_residual_relu(9, 20, 11, parameter=True), BOTH, target=TARGETS["avx512"])
    filecheck(
        compiled.text,
        """
        CHECK: func.func @f({{.*}}buddy.pack = "pack_0"
        CHECK: call @matmul_9x11x20_epilogue(
        CHECK: func.func private @matmul_9x11x20_epilogue(
        """,
    )


BATCHED = """
func.func @f(%a: memref<6x10xf32>, %b: memref<10x40xf32>, %p: memref<3x40xf32>, %c: memref<2x1x40xf32>,
    %u: memref<2x3x40xf32> {buddy.result}) attributes {llvm.emit_c_interface} {
  %zero = arith.constant 0.0 : f32
  %t = memref.alloc() : memref<6x40xf32>
  linalg.fill ins(%zero : f32) outs(%t : memref<6x40xf32>)
  linalg.matmul ins(%a, %b : memref<6x10xf32>, memref<10x40xf32>) outs(%t : memref<6x40xf32>)
  %v = memref.expand_shape %t [[0, 1], [2]] output_shape [2, 3, 40] : memref<6x40xf32> into memref<2x3x40xf32>
  linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j, k)>,
      affine_map<(i, j, k) -> (i, 0, k)>, affine_map<(i, j, k) -> (i, j, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p, %v, %c : memref<3x40xf32>, memref<2x3x40xf32>, memref<2x1x40xf32>) outs(%u : memref<2x3x40xf32>) {
    ^bb0(%x: f32, %y: f32, %z: f32, %old: f32):
      %0 = arith.mulf %x, %y : f32
      %1 = arith.addf %0, %z : f32
      linalg.yield %1 : f32
  }
  return
}"""


def test_loops_are_cut_where_an_operand_repeats() -> None:
    compiled = Compiled(BATCHED, BOTH, target=TARGETS["avx512"])
    assert "linalg" not in compiled.text, compiled.remarks
    assert any("over 2" in remark for remark in compiled.remarks)
    a, b, p, c, u = random_arrays((6, 10), (10, 40), (3, 40), (2, 1, 40), (2, 3, 40))
    compiled("f", a, b, p, c, u)
    np.testing.assert_allclose(u, p * (a.astype(np.float64) @ b).reshape(2, 3, 40) + c, atol=1e-5)


GATED = """
func.func @f(%a: memref<5x10xf32>, %b: memref<10x40xf32>, %d: memref<10x40xf32>, %u: memref<5x40xf32> {buddy.result})
    attributes {llvm.emit_c_interface} {
  %zero = arith.constant 0.0 : f32
  %t = memref.alloc() : memref<5x40xf32>
  linalg.fill ins(%zero : f32) outs(%t : memref<5x40xf32>)
  linalg.matmul ins(%a, %b : memref<5x10xf32>, memref<10x40xf32>) outs(%t : memref<5x40xf32>)
  %s = memref.alloc() : memref<5x40xf32>
  linalg.fill ins(%zero : f32) outs(%s : memref<5x40xf32>)
  linalg.matmul ins(%a, %d : memref<5x10xf32>, memref<10x40xf32>) outs(%s : memref<5x40xf32>)
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%t, %s : memref<5x40xf32>, memref<5x40xf32>) outs(%u : memref<5x40xf32>) {
    ^bb0(%x: f32, %y: f32, %old: f32):
      %0 = arith.mulf %x, %y : f32
      linalg.yield %0 : f32
  }
  return
}"""


def test_of_two_products_that_one_op_reads_the_one_right_before_it_has_the_epilogue() -> None:
    compiled = Compiled(GATED, BOTH)
    assert "linalg.matmul: linalg.generic, which reads its result, is the epilogue of another op" in compiled.remarks
    assert "linalg.generic" not in compiled.text
    a, b, d, u = random_arrays((5, 10), (10, 40), (10, 40), (5, 40))
    compiled("f", a, b, d, u)
    np.testing.assert_allclose(u, (a @ b) * (a @ d), atol=1e-4)


FACTORS = f"%lhs: {memref(8, 16)}, %rhs: {memref(16, 16)}"


def reader(inputs: Sequence[str], output: str) -> str:
    """An op over all elements of a result of 8x16."""
    operands = [[(value, memref(8, 16), "i,j") for value in values] for values in (inputs, [output])]
    return generic("ij", *operands, "%r = arith.negf %in0 : f32")


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (reader(["%t"], "%u") + reader(["%t"], "%w"), "2 ops read its result"),
        (reader(["%t", "%u"], "%t"), "an op reads the result more than once"),
        (reader(["%t"], "%factor"), "linalg.generic may overwrite its inputs"),
        ("call @g(%t) : (memref<8x16xf32>) -> ()", "func.call reads its result"),
        ("call @g(%lhs) : (memref<8x16xf32>) -> ()" + reader(["%t"], "%u"), "in between may overwrite its inputs"),
        ("", "0 ops read its result"),
    ],
)
def test_what_is_no_epilogue_is_left_with_the_reason(after: str, reason: str) -> None:
    text = f"""
    func.func private @g(memref<8x16xf32>)
    func.func @f({FACTORS}, %u: memref<8x16xf32> {{buddy.result}}, %w: memref<8x16xf32> {{buddy.result}}) {{
      %zero = arith.constant 0.0 : f32
      %factor = memref.cast %lhs : memref<8x16xf32> to memref<8x16xf32>
      %t = memref.alloc() : memref<8x16xf32>
      linalg.fill ins(%zero : f32) outs(%t : memref<8x16xf32>)
      linalg.matmul ins(%factor, %rhs : memref<8x16xf32>, memref<16x16xf32>) outs(%t : memref<8x16xf32>)
      {after}
      return
    }}"""
    compiled = Compiled(text, [FuseEpilogues()])
    assert any(remark.startswith("linalg.matmul: ") and reason in remark for remark in compiled.remarks)
    assert "buddy.epilogue" not in compiled.text


def test_what_a_prologue_reads_may_not_be_overwritten_before_the_epilogue() -> None:
    text = f"""
    func.func private @g(memref<16xf32>)
    func.func @f({FACTORS}, %bias: memref<16xf32>, %u: memref<8x16xf32> {{buddy.result}}) {{
      %t = memref.alloc() : memref<8x16xf32>
      linalg.broadcast ins(%bias : memref<16xf32>) outs(%t : memref<8x16xf32>) dimensions = [0]
      linalg.matmul ins(%lhs, %rhs : memref<8x16xf32>, memref<16x16xf32>) outs(%t : memref<8x16xf32>)
      %v = memref.cast %bias : memref<16xf32> to memref<16xf32>
      call @g(%v) : (memref<16xf32>) -> ()
      {reader(["%t"], "%u")}
      return
    }}"""
    compiled = Compiled(text, [FuseEpilogues()])
    assert "linalg.matmul: func.call in between may overwrite its inputs" in compiled.remarks
    assert "buddy.epilogue" not in compiled.text


def test_a_result_of_the_function_has_no_epilogue() -> None:
    text = f"""
    func.func @f({FACTORS}, %t: memref<8x16xf32> {{buddy.result}}) {{
      linalg.matmul ins(%lhs, %rhs : memref<8x16xf32>, memref<16x16xf32>) outs(%t : memref<8x16xf32>)
      return
    }}"""
    assert Compiled(text, [FuseEpilogues()]).remarks == ["linalg.matmul: its result is returned"]


def product_on_bias(result: str, before: str = "", after: str = "") -> str:
    """%c = %lhs %rhs + %bias, which begins with the bias in every row."""
    return entry_function(
        f"%lhs: {memref(7, 10)}, %rhs: {memref(10, 40)}, %bias: {memref(40)}, {result} {{buddy.result}}",
        f"""{before}
      linalg.broadcast ins(%bias : {memref(40)}) outs(%c : {memref(7, 40)}) dimensions = [0]
      linalg.matmul ins(%lhs, %rhs : {memref(7, 10)}, {memref(10, 40)}) outs(%c : {memref(7, 40)})
      {after}""",
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_bias_that_is_spread_over_the_result_first_becomes_the_first_sums(target: str) -> None:
    compiled = Compiled(product_on_bias(f"%c: {memref(7, 40)}"), BOTH, target=TARGETS[target])
    assert "linalg.broadcast, which initialises the sums, is its prologue" in compiled.remarks
    assert compiled.remarks[-1].endswith("starts from linalg.broadcast")
    assert "linalg" not in compiled.text
    a, b, bias, c = random_arrays((7, 10), (10, 40), (40,), (7, 40))
    compiled("f", a, b, bias, c)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b + bias, atol=1e-5)


def test_a_prologue_and_an_epilogue_of_one_product() -> None:
    plain, rounded = memref(7, 40), memref(7, 40, element="bf16")
    epilogue = generic("ij", [("%c", plain, "i,j")], [("%u", rounded, "i,j")], "%r = arith.truncf %in0 : f32 to bf16")
    text = product_on_bias(f"%u: {rounded}", before=f"%c = memref.alloc() : {plain}", after=epilogue)
    compiled = Compiled(text, BOTH)
    assert "linalg" not in compiled.text, compiled.remarks
    a, b, bias = random_arrays((7, 10), (10, 40), (40,))
    u = np.zeros((7, 40), np.uint16)
    compiled("f", a, b, bias, u)
    found = (u.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(found, a @ b + bias, rtol=2**-8, atol=1e-5)  # bf16 keeps 8 bits


def test_a_reader_that_repeats_the_result_is_no_epilogue() -> None:
    """A row's dot product, spread over the row: a kernel that meets each sum once cannot write the whole row."""
    a, b, x = (torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))

    def spread(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x * (a * b).sum(1, keepdim=True)

    line = Line(spread, a, b, x)
    assert_same(line.run(), [spread(a, b, x)])
    remarks = [text for name, _, text in line.compile().remarks if name == "fuse-epilogues"]
    assert "linalg.generic: it reads an element of the result more than once" in remarks
