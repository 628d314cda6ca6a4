"""`fuse-rows`: what becomes one loop over rows, what does not and why, and that numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.fuse_rows import FuseRows
from buddy.compiler.passes.plan_memory import PlanMemory
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.mlir_jit import SIZES, Compiled, random_array
from tests.support.mlir_text import Operand, entry_function, generic, memref

RESULT = "{buddy.result}"


def elementwise(op: str, inputs: list[Operand], target: str, kind: str) -> str:
    """`target` = `op` of two inputs, or of one and itself, for each element."""
    second = "%in1" if len(inputs) == 2 else "%in0"
    return generic("ij", inputs, [(target, kind, "i,j")], f"%r = {op} %in0, {second} : f32")


def fold_rows(op: str, source: str, kind: str, target: str, column: str, indices: str = "i,0") -> str:
    """`target` = `op` of itself and all elements of a row of `source`."""
    operands = [(source, kind, "i,j")], [(target, column, indices)]
    return generic("ij", *operands, f"%r = {op} %out0, %in0 : f32", reductions="j")


def softmax_ops(m: int, n: int) -> str:
    """%y = rows of %x less their maximum, exponentials (here: squares), their sum, the quotient."""
    whole, column = memref(m, n), memref(m, 1)
    difference = "%0 = arith.subf %in0, %in1 : f32\n%r = arith.mulf %0, %0 : f32"
    return f"""
      %low = arith.constant 0xFF800000 : f32
      %zero = arith.constant 0.0 : f32
      %peak = memref.alloc() : {column}
      linalg.fill ins(%low : f32) outs(%peak : {column})
      {fold_rows("arith.maximumf", "%x", whole, "%peak", column)}
      %powers = memref.alloc() : {whole}
      {generic("ij", [("%x", whole, "i,j"), ("%peak", column, "i,0")], [("%powers", whole, "i,j")], difference)}
      %sum = memref.alloc() : {column}
      linalg.fill ins(%zero : f32) outs(%sum : {column})
      {fold_rows("arith.addf", "%powers", whole, "%sum", column)}
      {elementwise("arith.divf", [("%powers", whole, "i,j"), ("%sum", column, "i,0")], "%y", whole)}"""


def softmax(m: int, n: int, name: str = "f") -> str:
    whole = memref(m, n)
    return entry_function(f"%x: {whole}, %y: {whole} {RESULT}", softmax_ops(m, n), name)


def expected_softmax(x: np.ndarray) -> np.ndarray:
    powers = (x.astype(np.float64) - x.max(1, keepdims=True)) ** 2
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("m", [2, 5, 64])
def test_numbers_of_a_softmax_like_chain(m: int) -> None:
    sizes = [n for n in SIZES if n > 1]
    text = "".join(softmax(m, n, f"f{n}") for n in sizes)
    compiled = Compiled(text, [FuseRows(), PlanMemory(), VectorizeGenerics()])
    assert "linalg." not in compiled.text
    for n in sizes:
        x = random_array(m, n, seed=n)
        y = np.full_like(x, np.nan)
        compiled(f"f{n}", x, y)
        np.testing.assert_allclose(y, expected_softmax(x), rtol=n * 1e-6, err_msg=str(n))


def test_a_softmax_becomes_one_loop_that_works_in_the_rows_of_the_result() -> None:
    compiled = Compiled(softmax(96, 40), [FuseRows()])
    assert compiled.remarks == ["6 ops in one loop over 96 rows, 5 stages, 3 temporaries of one row each"]
    assert compiled.text.count("memref<96x40xf32>\n") == 0, "a whole temporary is left"
    allocated = [line for line in compiled.text.splitlines() if "memref.alloc" in line]
    assert len(allocated) == 2, "the maximum and the sum; powers live in the result"
    # Powers and their sum are one pass over the row.
    assert compiled.text.count("linalg.generic") == 5


def test_special_values_stay_in_their_row() -> None:
    compiled = Compiled(softmax(4, 33), [FuseRows(), VectorizeGenerics()])
    x = random_array(4, 33)
    x[1, 32], x[2, 0] = np.nan, np.inf
    y = np.zeros_like(x)
    compiled("f", x, y)
    np.testing.assert_allclose(y[[0, 3]], expected_softmax(x[[0, 3]]), rtol=1e-4)
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2]).all()


@pytest.mark.parametrize("rows", [37, 2048])
def test_many_rows_are_shared_between_threads_in_chunks(rows: int) -> None:
    compiled = Compiled(softmax(rows, 129), [FuseRows()])
    assert ("scf.parallel" in compiled.text) == (rows == 2048)
    compiled = Compiled(softmax(rows, 129), [FuseRows(), VectorizeGenerics()])
    assert compiled.text.count("scf.parallel") <= 1
    x = random_array(rows, 129)
    y = np.zeros_like(x)
    compiled("f", x, y)
    np.testing.assert_allclose(y, expected_softmax(x), rtol=1e-4)


def test_a_bias_a_residual_and_a_mask_by_index_join_through_reshapes() -> None:
    """[2, 3, 5] + bias, where the last index is below the middle one, summed by rows; the sum has another shape."""
    cube, flat, sums = memref(2, 3, 5), memref(6, 5), memref(6)
    masked = """%zero2 = arith.constant 0.0 : f32
          %i = linalg.index 1 : index
          %j = linalg.index 2 : index
          %below = arith.cmpi ult, %j, %i : index
          %0 = arith.addf %in0, %in1 : f32
          %r = arith.select %below, %0, %zero2 : f32"""
    text = entry_function(
        f"%x: {cube}, %bias: {memref(5)}, %y: {flat} {RESULT}",
        f"""%zero = arith.constant 0.0 : f32
      %t = memref.alloc() : {cube}
      {generic("bij", [("%x", cube, "b,i,j"), ("%bias", memref(5), "j")], [("%t", cube, "b,i,j")], masked)}
      %rows = memref.collapse_shape %t [[0, 1], [2]] : {cube} into {flat}
      %s = memref.alloc() : {sums}
      linalg.fill ins(%zero : f32) outs(%s : {sums})
      {fold_rows("arith.addf", "%rows", flat, "%s", sums, "i")}
      {elementwise("arith.subf", [("%rows", flat, "i,j"), ("%s", sums, "i")], "%y", flat)}""",
    )
    compiled = Compiled(text, [FuseRows(), VectorizeGenerics()])
    assert compiled.remarks[0].startswith("4 ops in one loop over 6 rows")
    x, bias = np.arange(30, dtype=np.float32).reshape(2, 3, 5), np.arange(5, dtype=np.float32) * 100
    y = np.zeros((6, 5), np.float32)
    compiled("f", x, bias, y)
    t = np.where(np.arange(5) < np.arange(3)[:, None], x + bias, 0).reshape(6, 5)
    np.testing.assert_array_equal(y, t - t.sum(1, keepdims=True))


def test_a_temporary_that_others_read_stays_whole() -> None:
    text = softmax(8, 16).replace("return", "memref.copy %powers, %x : memref<8x16xf32> to memref<8x16xf32>\nreturn")
    compiled = Compiled(text, [FuseRows(), VectorizeGenerics()])
    x = random_array(8, 16)
    before, y = x.copy(), np.zeros_like(x)
    compiled("f", x, y)
    np.testing.assert_allclose(y, expected_softmax(before), rtol=1e-5)
    np.testing.assert_allclose(x, (before - before.max(1, keepdims=True)) ** 2, rtol=1e-6)


def transposed_reader(mark: str) -> str:
    """A sum over rows, and an op that reads what another row has written."""
    whole, sums = memref(8, 8), memref(8)
    return entry_function(
        f"%x: {whole}, %s: {sums} {mark}, %y: {whole} {mark}",
        f"""%t = memref.alloc() : {whole}
      {elementwise("arith.mulf", [("%x", whole, "i,j")], "%t", whole)}
      {fold_rows("arith.addf", "%t", whole, "%s", sums, "i")}
      {generic("ij", [("%t", whole, "j,i")], [("%y", whole, "i,j")], "", yields="%in0")}""",
    )


def test_what_needs_other_rows_stays_outside() -> None:
    compiled = Compiled(transposed_reader(RESULT), [FuseRows(), VectorizeGenerics()])
    assert compiled.remarks[0].startswith("2 ops in one loop over 8 rows")
    x = random_array(8, 8)
    s, y = np.zeros(8, np.float32), np.zeros_like(x)
    compiled("f", x, s, y)
    np.testing.assert_array_equal(y, (x * x).T)
    np.testing.assert_allclose(s, (x * x).sum(1), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (transposed_reader(""), {}, "two of their buffers may overlap"),
        (softmax(1, 64), {}, "it has a single row"),
        (softmax(8, 4096), {"max_row_kib": 8}, "a row of 16384 bytes does not stay in cache"),
    ],
)
def test_what_is_not_fused_says_why(text: str, options: dict[str, int], reason: str) -> None:
    compiled = Compiled(text, [FuseRows(**options)])
    assert any(reason in remark for remark in compiled.remarks), compiled.remarks
    assert "scf.for" not in compiled.text


def test_products_are_left_to_their_kernels() -> None:
    whole, sums, column = memref(8, 16), memref(8), memref(16)
    multiply_add = "%0 = arith.mulf %in0, %in1 : f32\n%r = arith.addf %out0, %0 : f32"
    operands = [("%t", whole, "i,j"), ("%w", column, "j")], [("%s", sums, "i")]
    text = entry_function(
        f"%x: {whole}, %w: {column}, %s: {sums} {RESULT}",
        f"""%t = memref.alloc() : {whole}
      {elementwise("arith.mulf", [("%x", whole, "i,j")], "%t", whole)}
      {generic("ij", *operands, multiply_add, reductions="j")}""",
    )
    compiled = Compiled(text, [FuseRows()])
    assert compiled.remarks == []
    assert "scf.for" not in compiled.text


def test_an_epilogue_is_left_to_its_product() -> None:
    plain = softmax(8, 16)
    at = plain.index("outs(%powers : memref<8x16xf32>)") + len("outs(%powers : memref<8x16xf32>)")
    marked = plain[:at] + " attrs = {buddy.epilogue = 0 : i64}" + plain[at:]
    assert Compiled(plain, [FuseRows()]).remarks[0].startswith("6 ops in one loop")
    compiled = Compiled(marked, [FuseRows()])
    assert compiled.remarks[-1].startswith("3 ops in one loop"), "the fill, the sum and the quotient"
    assert "buddy.epilogue" in compiled.text


def test_rows_within_a_loop_are_fused_there() -> None:
    """A softmax over each [6, 33] matrix of a batch, the batch in a loop that threads share."""
    cube, whole, view = memref(3, 6, 33), memref(6, 33), "memref<6x33xf32, strided<[33, 1], offset: ?>>"
    text = entry_function(
        f"%all: {cube}, %out: {cube}",
        f"""%c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      scf.parallel (%i) = (%c0) to (%c3) step (%c1) {{
        %s = memref.subview %all[%i, 0, 0] [1, 6, 33] [1, 1, 1] : {cube} to {view}
        %x = memref.alloc() : {whole}
        %y = memref.alloc() : {whole}
        memref.copy %s, %x : {view} to {whole}
        {softmax_ops(6, 33)}
        %r = memref.subview %out[%i, 0, 0] [1, 6, 33] [1, 1, 1] : {cube} to {view}
        memref.copy %y, %r : {whole} to {view}
        scf.reduce
      }}""",
    )
    compiled = Compiled(text, [FuseRows(), VectorizeGenerics()])
    assert compiled.remarks[0].startswith("6 ops in one loop over 6 rows")
    x = random_array(3, 6, 33)
    y = np.zeros_like(x)
    compiled("f", x, y)
    for matrix, result in zip(x, y, strict=True):
        np.testing.assert_allclose(result, expected_softmax(matrix), rtol=1e-4)


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0)])
def test_nothing_is_no_row(m: int, n: int) -> None:
    compiled = Compiled(softmax(m, n), [FuseRows(), VectorizeGenerics()])
    assert "scf." not in compiled.text
    assert "linalg." not in compiled.text, compiled.remarks


def test_what_stands_in_no_function_of_func_stays() -> None:
    """As after `convert-func-to-llvm`, where a recipe has that first."""
    whole, column = memref(3, 5), memref(3, 1)
    text = f"""
    llvm.func @f() {{
      %zero = arith.constant 0.0 : f32
      %x = memref.alloc() : {whole}
      %sum = memref.alloc() : {column}
      linalg.fill ins(%zero : f32) outs(%sum : {column})
      {fold_rows("arith.addf", "%x", whole, "%sum", column)}
      llvm.return
    }}"""
    compiled = Compiled(text, [FuseRows(), VectorizeGenerics(share=False)])
    assert compiled.text.count("linalg.generic") == 1
    assert any("it is not in a func.func" in remark for remark in compiled.remarks)
