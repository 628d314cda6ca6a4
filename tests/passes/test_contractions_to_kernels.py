"""`contractions-to-kernels`: numbers against NumPy over shapes, layouts and targets; packing; what is left."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import numpy as np
import pytest

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.fold_transposes import FoldTransposes
from tests.passes.products import function, operands, packed_by
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import SIZES, TARGETS, Compiled, random_arrays
from tests.support.mlir_text import entry_function, from_node, generic, memref

SHAPES = [*random.Random(2).sample(list(itertools.product(SIZES, SIZES, SIZES)), 16), (1, 1, 1), (0, 5, 3), (5, 3, 0)]


def check(compiled: Compiled, name: str, subscripts: str, sizes: dict[str, int], zero: bool = True) -> None:
    a, b, c = operands(subscripts, sizes)
    expected = np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64)) + (0 if zero else c)
    if zero:
        c[...] = np.nan
    compiled(name, a, b, c)
    np.testing.assert_allclose(
        c, expected, atol=2e-6 * max(4, np.prod(list(sizes.values())) ** 0.5), err_msg=str(sizes)
    )


@pytest.mark.parametrize("subscripts", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->nm"])
@pytest.mark.parametrize("target", TARGETS)
def test_matmuls_of_many_shapes(subscripts: str, target: str) -> None:
    cases = [dict(zip("mnk", shape, strict=True)) for shape in SHAPES]
    functions = [function(f"f{i}", subscripts, sizes) for i, sizes in enumerate(cases)]
    compiled = Compiled("\n".join(functions), [ContractionsToKernels()], target=TARGETS[target])
    assert "linalg.contract" not in compiled.text, [r for r in compiled.remarks if "left" in r]
    for i, sizes in enumerate(cases):
        check(compiled, f"f{i}", subscripts, sizes)


@pytest.mark.parametrize("subscripts", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn"])
@pytest.mark.parametrize("parameter", [False, True])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_long_sums_of_many_rows(subscripts: str, parameter: bool, target: str) -> None:
    sizes = {"m": 77, "n": 200, "k": 301}
    compiled = Compiled(
        function("f", subscripts, sizes, parameter=parameter), [ContractionsToKernels()], target=TARGETS[target]
    )
    assert "scf.parallel" in compiled.text
    assert "memref.prefetch" in compiled.text
    innermost_loops = re.findall(r"scf\.for(?:(?!scf\.for).)*?vector\.fma.*?scf\.yield", compiled.text, re.DOTALL)
    assert innermost_loops
    assert not any("memref.prefetch" in loop for loop in innermost_loops)
    # The sums of a block fill the registers: no room for the loads of a second step.
    assert "llvm.loop_annotation = " in compiled.text
    if not parameter:
        check(compiled, "f", subscripts, sizes)
        return
    a, b, c = operands(subscripts, sizes)
    packed = packed_by(compiled, b)
    compiled("f", a, packed, c)
    np.testing.assert_allclose(c, np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64)), atol=2e-4)


@pytest.mark.parametrize(("depth", "max_rows"), [(1024, 6), (512, 12), (1000, 31)])
def test_rows_of_a_block_stay_in_the_l1_cache(depth: int, max_rows: int) -> None:
    """The L1 cache has 8 lines for each offset in a page: rows of 4 KiB compete for them, rows of 4,000 B do not."""
    sizes = {"m": 64, "n": 10, "k": depth}
    compiled = Compiled(function("f", "mk,kn->mn", sizes), [ContractionsToKernels()], target=TARGETS["avx512"])
    (rows,) = re.findall(r"(\d+)x16 register block", " ".join(compiled.remarks))
    assert 4 <= int(rows) <= max_rows
    assert int(rows) > 12 or max_rows <= 12
    check(compiled, "f", "mk,kn->mn", sizes)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("target", ["avx512", "avx2", "small cache"])
def test_a_sum_over_a_batch_is_blocked_along_its_last_loop(target: str, zero: bool) -> None:
    """As in the gradient of the weights of a 1x1 convolution; "small cache" splits the last loop too."""
    sizes = {"m": 70, "n": 85, "b": 3, "k": 601}
    cases = ["bmk,bnk->mn", "bnk,bmk->mn", "bmk,bkn->mn"]
    texts = [function(f"f{i}", subscripts, sizes, zero=zero) for i, subscripts in enumerate(cases)]
    compiled = Compiled("\n".join(texts), [ContractionsToKernels()], target=TARGETS[target])
    assert "linalg.contract" not in compiled.text, compiled.remarks
    for i, subscripts in enumerate(cases):
        check(compiled, f"f{i}", subscripts, sizes, zero)


CROSSED = [
    ("km,kn->mn", {"m": 150, "n": 70, "k": 40}),
    ("km,kn->mn", {"m": 97, "n": 129, "k": 600}),  # several blocks of K, the last one shorter
    ("km,kn->nm", {"m": 65, "n": 213, "k": 33}),  # C is contiguous along m: the operands change places
    ("bkm,bkn->bmn", {"b": 3, "m": 64, "n": 131, "k": 290}),
]


# Targets whose second-level cache is so small that each of these operands is copied.
TINY_CACHES = {name: replace(TARGETS[name], l2=2 << 10) for name in ("avx512", "avx2", "small cache")}


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("target", TINY_CACHES)
def test_a_large_operand_with_a_row_for_each_step_of_k_is_copied(target: str, zero: bool) -> None:
    texts = [function(f"f{i}", subscripts, sizes, zero=zero) for i, (subscripts, sizes) in enumerate(CROSSED)]
    compiled = Compiled("\n".join(texts), [ContractionsToKernels()], target=TINY_CACHES[target])
    assert [remark.count("packed A") for remark in compiled.remarks] == [1] * len(CROSSED), compiled.remarks
    for i, (subscripts, sizes) in enumerate(CROSSED):
        check(compiled, f"f{i}", subscripts, sizes, zero)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_small_operand_with_a_row_for_each_step_of_k_is_prefetched(target: str, zero: bool) -> None:
    for subscripts, sizes in CROSSED:
        text = function("f", subscripts, sizes, zero=zero)
        compiled = Compiled(text, [ContractionsToKernels()], target=TARGETS[target])
        assert "packed A" not in compiled.remarks[0]
        assert "memref.prefetch" in compiled.text
        check(compiled, "f", subscripts, sizes, zero)


@pytest.mark.parametrize(("element", "dtype"), [("f64", np.float64), ("i32", np.int32), ("i64", np.int64)])
@pytest.mark.parametrize("is_copied", [False, True])
def test_an_operand_with_a_row_for_each_step_of_k_has_any_element_type(
    element: str, dtype: type, is_copied: bool
) -> None:
    sizes = {"m": 70, "n": 90, "k": 300}
    text = function("f", "km,kn->mn", sizes, element=element)
    compiled = Compiled(text, [ContractionsToKernels()], target=(TINY_CACHES if is_copied else TARGETS)["avx512"])
    assert ("packed A" in compiled.remarks[0]) == is_copied
    a, b, c = (1000 * x for x in operands("km,kn->mn", sizes, np.float64))
    a, b, c = a.astype(dtype), b.astype(dtype), c.astype(dtype)
    compiled("f", a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-12, atol=1e-6 if element == "f64" else 0)


SMALL = {"m": 9, "n": 20, "k": 11}
ATTENTION = {"b": 2, "h": 3, "m": 19, "n": 37, "k": 21}


@pytest.mark.parametrize(
    ("subscripts", "sizes"),
    [
        ("bmhk,bnhk->bhmn", ATTENTION),
        ("bhmk,bkhn->bmhn", ATTENTION),
        ("bmk,bkn->bnm", {key: ATTENTION[key] for key in "bmnk"}),
        ("mjk,jkn->mn", {"m": 9, "j": 3, "k": 10, "n": 33}),
        ("mjk,kjn->mn", {"m": 9, "j": 3, "k": 10, "n": 33}),
        ("mk,k->m", {"m": 35, "k": 50}),
        ("km,k->m", {"m": 35, "k": 50}),
        ("k,kn->n", {"k": 50, "n": 70}),
        ("k,k->", {"k": 50}),
        ("bk,bk->b", {"b": 5, "k": 20}),
    ],
)
@pytest.mark.parametrize("zero", [True, False])
def test_any_projected_permutation(subscripts: str, sizes: dict[str, int], zero: bool) -> None:
    compiled = Compiled(function("f", subscripts, sizes, zero=zero), [ContractionsToKernels()])
    assert ("linalg.fill" in compiled.text) is False
    check(compiled, "f", subscripts, sizes, zero)


def test_few_rows_against_contiguous_columns_become_dot_products() -> None:
    sizes = {"m": 2, "n": 23, "k": 1003}
    compiled = Compiled(function("f", "mk,nk->mn", sizes), [ContractionsToKernels()], target=TARGETS["avx2"])
    assert compiled.remarks == ["2x23x1003: dot products in vectors of 8"]
    assert "memref<128xf32>" in compiled.text  # room for 2 x 64 sums; the factors are read where they lie
    check(compiled, "f", "mk,nk->mn", sizes)


@pytest.mark.parametrize("target", ["avx512", "neon"])
def test_few_rows_against_long_rows_of_b_stream_these(target: str) -> None:
    """Eight rows of B at once, and those that are left over; as many rows of A as there may be."""
    cases = [dict(zip("mnk", shape, strict=True)) for shape in itertools.product((1, 3, 4), (129, 300), (2, 7, 8, 17))]
    text = "\n".join(function(f"f{i}", "mk,kn->mn", sizes) for i, sizes in enumerate(cases))
    compiled = Compiled(text, [ContractionsToKernels()], target=TARGETS[target])
    assert {remark for remark in compiled.remarks if "rows of B streamed" not in remark} == set()
    for i, sizes in enumerate(cases):
        check(compiled, f"f{i}", "mk,kn->mn", sizes)


@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_a_product_whose_register_block_is_refused_still_starts_from_zero(target: str) -> None:
    """The fill before it may only go where a kernel does its work."""
    sizes = {"m": 16, "n": 64, "k": 32}
    wanted = ContractionsToKernels(rows=64, vectors=64)
    compiled = Compiled(function("f", "mk,kn->mn", sizes), [wanted], target=TARGETS[target])
    assert "64 rows of 64 vectors exceed" in " ".join(compiled.remarks)
    check(compiled, "f", "mk,kn->mn", sizes)


def convolution(n: int, c: int, o: int, size: int, kernel: int, stride: int, dilation: int) -> tuple[str, int]:
    """Text of a convolution [n, c, size, size] by [o, c, kernel, kernel] on padded input, and its output's size."""
    out = (size - dilation * (kernel - 1) - 1) // stride + 1
    x, w, y = memref(n, c, size, size), memref(o, c, kernel, kernel), memref(n, o, out, out)
    read = f"b, c, h * {stride} + i * {dilation}, w * {stride} + j * {dilation}"
    inputs = [("%x", x, read), ("%w", w, "o,c,i,j")]
    multiply_add = "%0 = arith.mulf %in0, %in1 : f32\n%r = arith.addf %out0, %0 : f32"
    text = generic("bohwcij", inputs, [("%y", y, "b,o,h,w")], multiply_add, reductions="cij")
    return entry_function(f"%x: {x}, %w: {w}, %y: {y}", text), out


@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "stride", "dilation"),
    [(3, 8, 17, 3, 1, 1), (5, 20, 20, 3, 2, 1), (4, 7, 23, 3, 1, 2), (40, 13, 9, 1, 1, 1), (1, 1, 30, 5, 3, 1)],
)
def test_convolutions_are_contractions_too(
    channels: int, outputs: int, size: int, kernel: int, stride: int, dilation: int
) -> None:
    text, out = convolution(2, channels, outputs, size, kernel, stride, dilation)
    compiled = Compiled(text, [ContractionsToKernels()])
    assert "linalg.generic" not in compiled.text, compiled.remarks
    x, w, y = random_arrays((2, channels, size, size), (outputs, channels, kernel, kernel), (2, outputs, out, out))
    expected = y.astype(np.float64)
    for i, j in itertools.product(range(kernel), repeat=2):
        last_i, last_j = i * dilation + stride * (out - 1) + 1, j * dilation + stride * (out - 1) + 1
        part = x[:, :, i * dilation : last_i : stride, j * dilation : last_j : stride]
        expected += np.einsum("bchw,oc->bohw", part.astype(np.float64), w[:, :, i, j])
    compiled("f", x, w, y)
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_doubles() -> None:
    sizes = {"m": 17, "n": 23, "k": 31}
    compiled = Compiled(function("f", "mk,kn->mn", sizes, element="f64"), [ContractionsToKernels()])
    a, b, c = operands("mk,kn->mn", sizes, np.float64)
    compiled("f", a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-12, atol=1e-12)


def test_infinities_and_nans_stay_in_their_rows_and_columns() -> None:
    sizes = {"m": 13, "n": 21, "k": 9}
    compiled = Compiled(function("f", "mk,nk->mn", sizes), [ContractionsToKernels()])
    a, b, c = operands("mk,nk->mn", sizes)
    a[3, 2], b[20, 1] = np.inf, np.nan
    compiled("f", a, b, c)
    with np.errstate(invalid="ignore"):
        expected = a @ b.T
    np.testing.assert_array_equal(np.isfinite(c), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))


def test_strided_views_are_read_and_written_in_place() -> None:
    view = "memref<7x33xf32, strided<[50, 1], offset: ?>>"
    text = entry_function(
        "%x: memref<7x50xf32>, %b: memref<33x20xf32>, %at: memref<1xindex>, %c: memref<7x20xf32>",
        f"""%i = arith.constant 0 : index
      %offset = memref.load %at[%i] : memref<1xindex>
      %a = memref.subview %x[0, %offset] [7, 33] [1, 1] : memref<7x50xf32> to {view}
      linalg.matmul ins(%a, %b : {view}, memref<33x20xf32>) outs(%c : memref<7x20xf32>)""",
    )
    compiled = Compiled(text, [ContractionsToKernels()])
    x, b, c = random_arrays((7, 50), (33, 20), (7, 20))
    expected = c + x[:, 5:38].astype(np.float64) @ b
    compiled("f", x, b, np.array([5]), c)
    np.testing.assert_allclose(c, expected, atol=1e-4)


LAYERS = """
func.func private @layer(%x: memref<8x16xf32>, %w: memref<24x16xf32> {buddy.parameter},
    %v: memref<24x16xf32> {buddy.parameter}, %y: memref<8x24xf32>, %z: memref<24x16xf32>) {
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%y : memref<8x24xf32>)
  linalg.contract indexing_maps = [affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]
    ins(%x, %w : memref<8x16xf32>, memref<24x16xf32>) outs(%y : memref<8x24xf32>)
  linalg.contract indexing_maps = [affine_map<(m,n,k)->(m,k)>, affine_map<(m,n,k)->(n,k)>, affine_map<(m,n,k)->(m,n)>]
    ins(%x, %v : memref<8x16xf32>, memref<24x16xf32>) outs(%y : memref<8x24xf32>)
  linalg.copy ins(%v : memref<24x16xf32>) outs(%z : memref<24x16xf32>)
  return
}
func.func @forward(%x: memref<8x16xf32> {buddy.source = 0 : i64}, %p: memref<384xf32> {buddy.parameter, buddy.source = 1 : i64},
    %q: memref<24x16xf32> {buddy.parameter, buddy.source = 2 : i64}, %y: memref<8x24xf32>, %y2: memref<8x24xf32>,
    %z: memref<24x16xf32>) attributes {llvm.emit_c_interface} {
  %w = memref.expand_shape %p [[0, 1]] output_shape [24, 16] : memref<384xf32> into memref<24x16xf32>
  call @layer(%x, %w, %q, %y, %z) : (memref<8x16xf32>, memref<24x16xf32>, memref<24x16xf32>, memref<8x24xf32>, memref<24x16xf32>) -> ()
  call @layer(%x, %q, %q, %y2, %z) : (memref<8x16xf32>, memref<24x16xf32>, memref<24x16xf32>, memref<8x24xf32>, memref<24x16xf32>) -> ()
  return
}
"""  # noqa: E501


def test_weights_are_packed_before_the_call_up_to_the_entry() -> None:
    compiled = Compiled(LAYERS, [ContractionsToKernels()], target=TARGETS["avx512"])
    filecheck(
        compiled.text,
        """
        CHECK: func.func private @layer({{[^,]+}}: memref<8x16xf32>
        CHECK-SAME: {{[^,]+}}: memref<[[PACKED:[0-9x]+]]xf32> {buddy.parameter}
        CHECK-SAME: {{[^,]+}}: memref<24x16xf32> {buddy.parameter}
        CHECK-SAME: {{[^,]+}}: memref<[[PACKED]]xf32> {buddy.parameter}
        CHECK-SAME: {{[^,]+}}: memref<8x24xf32>, {{[^,]+}}: memref<24x16xf32>)
        CHECK: call @matmul_8x16x24
        CHECK-NEXT: call @matmul_add_8x16x24
        CHECK-NEXT: linalg.copy
        CHECK: func.func @forward(
        CHECK-SAME: memref<[[PACKED]]xf32> {buddy.pack = "pack_[[P:.]]", buddy.parameter, buddy.source = 1 : i64}
        CHECK-SAME: memref<24x16xf32> {buddy.parameter, buddy.source = 2 : i64}
        CHECK-SAME: memref<[[PACKED]]xf32> {buddy.pack = "pack_{{.}}", buddy.parameter, buddy.source = 2 : i64}
        CHECK-NOT: expand_shape
        CHECK: func.func @pack_{{.}}({{.*}}attributes {buddy.once, llvm.emit_c_interface}
        """,
    )
    x, p, q = operands("mk,nk->nk", {"m": 8, "n": 24, "k": 16})
    shape = [
        int(size) for size in re.findall(r"%arg1: memref<([\dx]+)xf32> {buddy.parameter}", compiled.text)[0].split("x")
    ]
    packed_p, packed_q = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    pack_p, pack_q = re.findall(r'buddy.pack = "(pack_\d)"', compiled.text)
    compiled(pack_p, p.reshape(-1), packed_p)
    compiled(pack_q, q, packed_q)
    y, y2, z = np.zeros((8, 24), np.float32), np.zeros((8, 24), np.float32), np.zeros_like(q)
    compiled("forward", x, packed_p, q, packed_q, y, y2, z)
    np.testing.assert_allclose(y, x @ p.T + x @ q.T, atol=1e-5)
    np.testing.assert_allclose(y2, 2 * x @ q.T, atol=1e-5)
    np.testing.assert_array_equal(z, q)


def test_packing_can_be_switched_off() -> None:
    text = function("f", "mk,nk->mn", SMALL, parameter=True)
    assert "@pack_0" in Compiled(text, [ContractionsToKernels()]).text
    without = Compiled(text, [ContractionsToKernels(pack_weights=False)])
    assert "@pack_" not in without.text
    check(without, "f", "mk,nk->mn", SMALL)


def test_weights_above_the_limit_are_packed_in_the_call() -> None:
    large = {"m": 64, "k": 512, "n": 640}  # 1.25 MiB of weights
    text = function("f", "mk,nk->mn", large, parameter=True)
    assert "@pack_0" in Compiled(text, [ContractionsToKernels(pack_limit=2)]).text
    assert "@pack_0" in Compiled(text, [ContractionsToKernels(pack_limit=0)]).text
    limited = Compiled(text, [ContractionsToKernels(pack_limit=1)])
    assert "@pack_" not in limited.text
    check(limited, "f", "mk,nk->mn", large)
    with pytest.raises(ValueError, match="pack-limit must be 0"):
        ContractionsToKernels(pack_limit=-1)


def test_equal_contractions_share_a_kernel() -> None:
    text = function("f", "mk,nk->mn", SMALL) + function("g", "mk,nk->mn", SMALL)
    compiled = Compiled(text, [ContractionsToKernels()])
    assert compiled.text.count("func.func private") == 1
    assert compiled.text.count("call @matmul_9x11x20") == 2
    assert len(compiled.remarks) == 2
    assert all(remark.startswith("9x20x11: ") for remark in compiled.remarks)


def test_kernels_and_packing_come_from_all_the_ops_that_use_them() -> None:
    contraction = function("f", "mk,nk->mn", SMALL, parameter=True)
    text = "".join(from_node(node, contraction.replace("@f", f"@f{node}")) for node in (1, 2))
    compiled = Compiled(text, [ContractionsToKernels()], nodes=["query", "key"])
    assert compiled.nodes_of("matmul_9x11x20") == {"query", "key"}
    assert compiled.nodes_of("pack_0") == {"query", "key"}


def test_a_fill_that_something_reads_stays() -> None:
    text = """
    func.func @f(%a: memref<4x4xf32>, %c: memref<4x4xf32>, %d: memref<4x4xf32>) attributes {llvm.emit_c_interface} {
      %z = arith.constant 0.0 : f32
      linalg.fill ins(%z : f32) outs(%c : memref<4x4xf32>)
      linalg.copy ins(%c : memref<4x4xf32>) outs(%d : memref<4x4xf32>)
      linalg.matmul ins(%a, %d : memref<4x4xf32>, memref<4x4xf32>) outs(%c : memref<4x4xf32>)
      return
    }"""
    compiled = Compiled(text, [ContractionsToKernels()])
    assert "linalg.fill" in compiled.text
    assert "call @matmul_add_4x4x4" in compiled.text


@pytest.mark.parametrize(
    ("a", "b", "c", "reason"),
    [
        ("?x4xf32", "4x4xf32", "?x4xf32", "dynamic shape memref<?x4xf32>"),
        ("4x4xf32", "4x4xf64", "4x4xf32", "no kernel multiplies and adds these element types"),
    ],
)
def test_what_is_left_says_why(a: str, b: str, c: str, reason: str) -> None:
    text = f"""
    func.func @f(%a: memref<{a}>, %b: memref<{b}>, %c: memref<{c}>) {{
      linalg.matmul ins(%a, %b : memref<{a}>, memref<{b}>) outs(%c : memref<{c}>)
      return
    }}"""
    compiled = Compiled(text, [ContractionsToKernels()])
    assert compiled.remarks == [f"linalg.matmul unchanged: {reason}"]
    assert "linalg.matmul" in compiled.text


def test_transposes_of_factors_and_result_become_maps() -> None:
    compiled = Compiled(
        """
    func.func @f(%a: tensor<4x8xf32>, %b: tensor<4x16xf32>) -> tensor<16x8xf32> {
      %z = arith.constant 0.0 : f32
      %0 = tensor.empty() : tensor<8x4xf32>
      %1 = linalg.transpose ins(%a : tensor<4x8xf32>) outs(%0 : tensor<8x4xf32>) permutation = [1, 0]
      %2 = tensor.empty() : tensor<8x16xf32>
      %3 = linalg.fill ins(%z : f32) outs(%2 : tensor<8x16xf32>) -> tensor<8x16xf32>
      %4 = linalg.matmul ins(%1, %b : tensor<8x4xf32>, tensor<4x16xf32>) outs(%3 : tensor<8x16xf32>) -> tensor<8x16xf32>
      %5 = tensor.empty() : tensor<16x8xf32>
      %6 = linalg.transpose ins(%4 : tensor<8x16xf32>) outs(%5 : tensor<16x8xf32>) permutation = [1, 0]
      return %6 : tensor<16x8xf32>
    }""",
        [FoldTransposes()],
    )
    filecheck(
        compiled.text,
        """
        CHECK-DAG: [[A:#.*]] = affine_map<(d0, d1, d2) -> (d2, d0)>
        CHECK-DAG: [[B:#.*]] = affine_map<(d0, d1, d2) -> (d2, d1)>
        CHECK-DAG: [[C:#.*]] = affine_map<(d0, d1, d2) -> (d1, d0)>
        CHECK-NOT: linalg.transpose
        CHECK: [[R:%.*]] = linalg.contract indexing_maps = {{\\[}}[[A]], [[B]], [[C]]]
        CHECK-SAME: -> tensor<16x8xf32>
        CHECK-NOT: linalg.transpose
        CHECK: return [[R]] : tensor<16x8xf32>
        """,
    )
    assert compiled.remarks == ["folded 1 operand transpose and the result's transpose"]


def test_a_transpose_that_moves_the_last_dim_stays_before_an_elementwise_op() -> None:
    text = """
    #id = affine_map<(i, j, k) -> (i, j, k)>
    func.func @f(%a: tensor<4x8x2xf32>, %b: tensor<OUT>) -> tensor<OUT> {
      %0 = tensor.empty() : tensor<OUT>
      %1 = linalg.transpose ins(%a : tensor<4x8x2xf32>) outs(%0 : tensor<OUT>) permutation = PERMUTATION
      %2 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
        ins(%1 : tensor<OUT>) outs(%b : tensor<OUT>) {
        ^bb0(%x: f32, %y: f32):
          %s = arith.mulf %x, %x : f32
          linalg.yield %s : f32
      } -> tensor<OUT>
      return %2 : tensor<OUT>
    }"""
    kept = Compiled(text.replace("OUT", "8x2x4xf32").replace("PERMUTATION", "[1, 2, 0]"), [FoldTransposes()])
    assert "linalg.transpose" in kept.text
    folded = Compiled(text.replace("OUT", "8x4x2xf32").replace("PERMUTATION", "[1, 0, 2]"), [FoldTransposes()])
    assert "linalg.transpose" not in folded.text
    assert folded.remarks == ["folded 1 operand transpose"]


def test_weights_are_packed_beside_functions_that_call_themselves() -> None:
    """MLIR's `async-parallel-for` makes such."""
    again = """
    func.func private @again(%n: index) {
      func.call @other(%n) : (index) -> ()
      return
    }
    func.func private @other(%n: index) {
      func.call @again(%n) : (index) -> ()
      return
    }"""
    compiled = Compiled(again + function("f", "mk,nk->mn", SMALL, parameter=True), [ContractionsToKernels()])
    assert "@pack_0" in compiled.text
