"""`narrow-products`: products of bytes have the bits of the wider numbers that torch-mlir multiplies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from buddy.compiler.passes.narrow_products import NarrowProducts
from tests.support.mlir_jit import TO_BUFFERS, Compiled

GENERATOR = np.random.default_rng(3)
MAPS = """
#all = affine_map<(m, n) -> (m, n)>
#row = affine_map<(m, n) -> (m)>
#column = affine_map<(m, n) -> (n)>
#none = affine_map<(m, n) -> ()>
#all4 = affine_map<(a, b, c, d) -> (a, b, c, d)>
#first4 = affine_map<(a, b, c, d) -> (a)>
"""


def elementwise(name: str, source: str, shape: str, types: str, body: str, others: str = "", maps: str = "") -> str:
    """A generic over two dims on `source`, of element types `types` (from, to), and the operands `others`."""
    old, new = types.split()
    names, ins = "".join(f", %{name}o: i8" for _ in others.split(",") if others), f"tensor<{shape}x{old}>"
    operands = f"{source}, {others.split(':')[0]}" if others else source
    ins += f", {others.split(':')[1]}" if others else ""
    return f"""
      %{name}e = tensor.empty() : tensor<{shape}x{new}>
      %{name} = linalg.generic {{indexing_maps = [#all, {maps}#all], iterator_types = ["parallel", "parallel"]}}
          ins({operands} : {ins}) outs(%{name}e : tensor<{shape}x{new}>) {{
      ^bb0(%x: {old}{names}, %out: {new}):
        {body}
      }} -> tensor<{shape}x{new}>"""


def widened(name: str, source: str, shape: str, extension: str, zero: str = "", kind: str = "none") -> str:
    """`source` in 32 bits, less the zero points `zero: type` of `kind` none, row or column."""
    wide = elementwise(
        f"{name}w", source, shape, "i8 i32", f"%y = arith.{extension} %x : i8 to i32 linalg.yield %y : i32"
    )
    if not zero:
        return wide.replace(f"%{name}w", f"%{name}")
    body = f"%z = arith.{extension} %{name}o : i8 to i32 %y = arith.subi %x, %z : i32 linalg.yield %y : i32"
    return wide + elementwise(name, f"%{name}w", shape, "i32 i32", body, zero, f"#{kind}, ")


def of_integers(a_zero: str, b_zero: str, m: int, n: int, k: int) -> str:
    """MatMulInteger as torch-mlir computes it: unsigned rows, signed columns, sums of 64 bits."""
    parameters = {"none": "tensor<i8>", "row": f"tensor<{m}xi8>", "column": f"tensor<{n}xi8>", "": "tensor<i8>"}
    a_type, b_type = parameters[a_zero], parameters[b_zero]
    a = widened("l", "%a", f"{m}x{k}", "extui", f"%az:{a_type}" if a_zero else "", a_zero)
    b = widened("r", "%b", f"{k}x{n}", "extsi", f"%bz:{b_type}" if b_zero else "", b_zero)
    return f"""{MAPS}
    func.func @f(%a: tensor<{m}x{k}xi8>, %b: tensor<{k}x{n}xi8>, %az: {a_type}, %bz: {b_type}) -> tensor<{m}x{n}xi64>
        attributes {{llvm.emit_c_interface}} {{{a}{b}
      %zero = arith.constant 0 : i64
      %e = tensor.empty() : tensor<{m}x{n}xi64>
      %c = linalg.fill ins(%zero : i64) outs(%e : tensor<{m}x{n}xi64>) -> tensor<{m}x{n}xi64>
      %p = linalg.matmul ins(%l, %r : tensor<{m}x{k}xi32>, tensor<{k}x{n}xi32>)
          outs(%c : tensor<{m}x{n}xi64>) -> tensor<{m}x{n}xi64>
      return %p : tensor<{m}x{n}xi64>
    }}"""


def random_bytes(*shape: int) -> Any:
    return GENERATOR.integers(-128, 128, shape, np.int8)


@pytest.mark.parametrize("a_zero", ["", "none", "row"])
@pytest.mark.parametrize("b_zero", ["", "none", "column"])
def test_products_of_widened_bytes(a_zero: str, b_zero: str) -> None:
    m, n, k = 5, 9, 70
    compiled = Compiled(of_integers(a_zero, b_zero, m, n, k), [NarrowProducts(), *TO_BUFFERS])
    assert compiled.remarks[0] == "linalg.matmul multiplies bytes, with sums of 32 bits"
    a, b = random_bytes(m, k), random_bytes(k, n)
    zeros = {"": (), "none": (), "row": (m,), "column": (n,)}
    az, bz = random_bytes(*zeros[a_zero]), random_bytes(*zeros[b_zero])
    left, right = a.view(np.uint8).astype(np.int64), b.astype(np.int64)
    if a_zero:
        left = left - az.view(np.uint8).astype(np.int64).reshape(-1, 1)
    if b_zero:
        right = right - bz.astype(np.int64).reshape(1, -1)
    out = np.zeros((m, n), np.int64)
    compiled("f", a, b, az, bz, out)
    np.testing.assert_array_equal(out, left @ right)


def named(op: str, ins: str, result: str, attributes: str = "") -> str:
    """A named op that subtracts zero points: operands, `%az` and `%bz`, added to the initial sums."""
    return f"""
    func.func @f(%a: tensor<{ins.split()[0]}xi8>, %b: tensor<{ins.split()[1]}xi8>, %az: tensor<i32>, %bz: tensor<i32>,
        %c: tensor<{result}xi32>) -> tensor<{result}xi32> attributes {{llvm.emit_c_interface}} {{
      %x = tensor.extract %az[] : tensor<i32>
      %y = tensor.extract %bz[] : tensor<i32>
      %zero = arith.constant 0 : i32
      %r = linalg.{op} {attributes} ins(%a, %b, %x, {"%zero" if "conv" in op else "%y"} :
          tensor<{ins.split()[0]}xi8>, tensor<{ins.split()[1]}xi8>, i32, i32)
          outs(%c : tensor<{result}xi32>) -> tensor<{result}xi32>
      return %r : tensor<{result}xi32>
    }}"""


@pytest.mark.parametrize(
    ("op", "ins", "result", "attributes"),
    [
        ("quantized_matmul", "4x33 33x7", "4x7", ""),
        ("quantized_batch_matmul", "3x4x33 3x33x7", "3x4x7", ""),
        (
            "conv_2d_nchw_fchw_q", "2x3x9x8 5x3x3x2", "2x5x4x6",
            "{dilations = dense<[1, 2]> : vector<2xi64>, strides = dense<[2, 1]> : vector<2xi64>}",
        ),
    ],
)  # fmt: skip
def test_named_ops_with_zero_points(op: str, ins: str, result: str, attributes: str) -> None:
    """They have the bits that MLIR's own semantics of the op give, which a run without the pass computes."""
    shapes = [[int(size) for size in text.split("x")] for text in (*ins.split(), result)]
    a, b, start = random_bytes(*shapes[0]), random_bytes(*shapes[1]), GENERATOR.integers(-99, 99, shapes[2], np.int32)
    found = []
    for passes in ([], [NarrowProducts()]):
        compiled = Compiled(named(op, ins, result, attributes), [*passes, *TO_BUFFERS])
        assert (f"linalg.{op}" in compiled.text) == (not passes)
        out = np.zeros(shapes[2], np.int32)
        compiled("f", a, b, np.array(-17, np.int32), np.array(3, np.int32), start.copy(), out)
        found.append(out)
    assert found[0].any()
    np.testing.assert_array_equal(*found)


def dequantised() -> str:
    """A product of rows with one scale and columns with one each, in floats."""
    a = elementwise(
        "l", "%a", "6x40", "i8 f32",
        """%n = arith.extui %x : i8 to i64 %z = arith.constant 131 : i64 %d = arith.subi %n, %z : i64
        %v = arith.sitofp %d : i64 to f32 %q = arith.constant 0.25 : f32 %y = arith.mulf %v, %q : f32
        linalg.yield %y : f32""",
    )  # fmt: skip
    b = """
      %re = tensor.empty() : tensor<40x11xf32>
      %r = linalg.generic {indexing_maps = [#all, #column, #all], iterator_types = ["parallel", "parallel"]}
          ins(%b, %s : tensor<40x11xi8>, tensor<11xf32>) outs(%re : tensor<40x11xf32>) {
      ^bb0(%x: i8, %scale: f32, %out: f32):
        %v = arith.sitofp %x : i8 to f32
        %y = arith.mulf %v, %scale : f32
        linalg.yield %y : f32
      } -> tensor<40x11xf32>"""
    return f"""{MAPS}
    func.func @f(%a: tensor<6x40xi8>, %b: tensor<40x11xi8>, %s: tensor<11xf32>, %c: tensor<6x11xf32>)
        -> tensor<6x11xf32> attributes {{llvm.emit_c_interface}} {{{a}{b}
      %p = linalg.matmul ins(%l, %r : tensor<6x40xf32>, tensor<40x11xf32>)
          outs(%c : tensor<6x11xf32>) -> tensor<6x11xf32>
      return %p : tensor<6x11xf32>
    }}"""


def test_products_of_dequantised_bytes() -> None:
    compiled = Compiled(dequantised(), [NarrowProducts(), *TO_BUFFERS])
    assert compiled.remarks[0] == "linalg.matmul multiplies bytes, with sums of 32 bits"
    a, b = random_bytes(6, 40), random_bytes(40, 11)
    # Powers of two, so that the float results are exact.
    scales = 2.0 ** GENERATOR.integers(-6, 2, 11).astype(np.float32)
    start, out = GENERATOR.integers(-9, 9, (6, 11)).astype(np.float32), np.zeros((6, 11), np.float32)
    compiled("f", a, b, scales, start.copy(), out)
    exact = ((a.view(np.uint8).astype(np.float64) - 131) @ b) * 0.25 * scales + start
    np.testing.assert_array_equal(out, exact.astype(np.float32))


def test_scales_along_the_summed_dim_stay_in_floats() -> None:
    text = (
        dequantised().replace("[#all, #column, #all]", "[#all, #row, #all]").replace("tensor<11xf32>", "tensor<40xf32>")
    )
    compiled = Compiled(text, [NarrowProducts(), *TO_BUFFERS])
    reason = "scales or zero points differ along the dim that it sums over"
    assert compiled.remarks[0] == f"linalg.matmul unchanged: {reason}"
    assert "linalg.matmul" in compiled.text


def test_floats_that_are_no_bytes_stay() -> None:
    text = """
    func.func @f(%a: tensor<6x40xf32>, %b: tensor<40x11xf32>, %c: tensor<6x11xf32>) -> tensor<6x11xf32> {
      %p = linalg.matmul ins(%a, %b : tensor<6x40xf32>, tensor<40x11xf32>)
          outs(%c : tensor<6x11xf32>) -> tensor<6x11xf32>
      return %p : tensor<6x11xf32>
    }"""
    remarks = Compiled(text, [NarrowProducts(), *TO_BUFFERS]).remarks
    assert remarks[0] == "linalg.matmul unchanged: an operand is not made of bytes"
