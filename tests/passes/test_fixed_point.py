"""Kernels for few rows of f32 and weights of 8 or 4 bits, on instructions computed by plain code, beside NumPy."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.support.target import Target, from_features
from tests.passes.products import function
from tests.passes.test_dot_instructions import assembly_of
from tests.support.dot_products import Emulated
from tests.support.mlir_jit import TARGETS, Compiled

CASES = {
    "vpdpbusd 512": ("avx512", "vpdpbusd"),
    "vpdpbusd 256": ("avx2", "vpdpbusd"),
    "vpmaddubsw 256": ("avx2", "vpmaddwd"),
    "vpmaddubsw 512": ("avx512", "vpmaddwd"),
}
GENERATOR = np.random.default_rng(7)


def target_of(case: str) -> Target:
    target, instruction = CASES[case]
    return replace(TARGETS[target], dot_instructions=(instruction,))


def grouped(name: str, m: int, n: int, groups: int, size: int, by_columns: bool = False) -> str:
    """A function (rows, weights, scales, packed weights ...) with a product of 4-bit weights in groups."""
    w = f"{groups}x{size}x{n}" if by_columns else f"{n}x{groups}x{size}"
    scale = f"{groups}x{n}" if by_columns else f"{n}x{groups}"
    maps = ["m,g,j", "g,j,n" if by_columns else "n,g,j", "g,n" if by_columns else "n,g", "m,n"]
    texts = ",".join(f"affine_map<(m,n,g,j)->({dims})>" for dims in maps)
    mark = "{buddy.parameter, buddy.source = 1 : i64}"
    types = f"memref<{m}x{groups}x{size}xf32>, memref<{w}xi8>, memref<{scale}xf32>"
    return f"""
    func.func @{name}(%x: memref<{m}x{groups}x{size}xf32>, %w: memref<{w}xi8> {mark}, %s: memref<{scale}xf32> {mark},
        %c: memref<{m}x{n}xf32>) attributes {{llvm.emit_c_interface}} {{
      %z = arith.constant 0.0 : f32
      linalg.fill ins(%z : f32) outs(%c : memref<{m}x{n}xf32>)
      linalg.generic {{indexing_maps = [{texts}],
          iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
          ins(%x, %w, %s : {types}) outs(%c : memref<{m}x{n}xf32>) {{
      ^bb0(%a: f32, %byte: i8, %scale: f32, %t: f32):
        %n = arith.trunci %byte : i8 to i4
        %f = arith.sitofp %n : i4 to f32
        %v = arith.mulf %f, %scale : f32
        %p = arith.mulf %a, %v : f32
        %u = arith.addf %t, %p : f32
        linalg.yield %u : f32
      }}
      return
    }}"""


def call(kernels: Compiled, name: str, x: Any, weights: list[Any], c: Any) -> None:
    """Packs `weights` by the packing functions that the arguments of `name` select, and calls it."""
    (arguments,) = re.findall(rf"func.func @{name}\((.*)", kernels.text)
    buffers = []
    packed = re.findall(r"memref<([\dx]+)x(i8|f32)> {[^}]*buddy\.pack = \"(\w+)\"", arguments)
    for (shape, element, packing), source in zip(packed, weights, strict=True):
        sizes = [int(size) for size in shape.split("x")]
        buffer = np.empty(sizes, np.int8 if element == "i8" else np.float32)
        kernels(packing, source, buffer)
        buffers.append(buffer)
    kernels(name, x, *buffers, c)


def assert_close(ours: Any, x: Any, weights: Any) -> None:
    """Relative to the sum of magnitudes, as the products are rounded to 24 bits of the largest one of a row."""
    bound = np.abs(x).max(1, keepdims=True) * np.abs(weights).sum(0)
    assert (np.abs(ours - x.astype(np.float64) @ weights) <= 2.0**-22 * bound).all()


@pytest.mark.parametrize("case", CASES)
def test_4_bit_weights_in_groups(case: str) -> None:
    sizes = [(1, 40, 2, 128), (2, 17, 1, 96), (4, 64, 3, 32), (3, 5, 2, 40)]
    text = "\n".join(grouped(f"f{i}", *shape, by_columns=i % 2 == 1) for i, shape in enumerate(sizes))
    kernels = Emulated(text, [ContractionsToKernels()], target=target_of(case))
    assert len(kernels.remarks) == len(sizes)
    assert all("4-bit integers in groups" in remark and "fixed-point A" in remark for remark in kernels.remarks)
    for i, (m, n, groups, size) in enumerate(sizes):
        x = GENERATOR.standard_normal((m, groups * size)).astype(np.float32)
        # The high four bits of a byte have no effect.
        weights = GENERATOR.integers(-128, 128, (n, groups, size), np.int8)
        scales = GENERATOR.uniform(0.5, 2, (n, groups)).astype(np.float32)
        steps = ((weights.astype(np.int32) + 8) & 15) - 8
        exact = (steps * scales[:, :, None].astype(np.float64)).reshape(n, -1).T
        given = [weights.transpose(1, 2, 0).copy(), scales.T.copy()] if i % 2 else [weights, scales]
        c = np.full((m, n), 7, np.float32)
        call(kernels, f"f{i}", x.reshape(m, groups, size), given, c)
        assert_close(c, x, exact)


@pytest.mark.parametrize("case", ["vpdpbusd 512", "vpdpbusd 256"])
def test_8_bit_weights(case: str) -> None:
    sizes = [("mk,nk->mn", 1, 70, 129), ("mk,kn->mn", 2, 33, 64), ("mk,nk->mn", 4, 64, 7), ("mk,kn->mn", 3, 200, 5)]
    text = "\n".join(
        function(f"f{i}", order, {"m": m, "n": n, "k": k}, element="f32", right="i8", parameter=True)
        for i, (order, m, n, k) in enumerate(sizes)
    )
    kernels = Emulated(text, [ContractionsToKernels()], target=target_of(case))
    assert all("fixed-point A, vpdpbusd" in remark for remark in kernels.remarks), kernels.remarks
    for i, (order, m, n, k) in enumerate(sizes):
        x = (GENERATOR.standard_normal((m, k)) * 10.0 ** GENERATOR.integers(-20, 20)).astype(np.float32)
        weights = GENERATOR.integers(-128, 128, (n, k), np.int8)
        c = np.full((m, n), 7, np.float32)
        call(kernels, f"f{i}", x, [weights.T.copy() if "kn" in order else weights], c)
        assert_close(c, x, weights.T.astype(np.float64))


def test_special_rows() -> None:
    """A row with NaN or infinity has no finite result; the largest digits, rows of zeros and tiny rows are exact."""
    text = function("f", "mk,nk->mn", {"m": 4, "n": 8, "k": 16}, element="f32", right="i8", parameter=True)
    kernels = Emulated(text, [ContractionsToKernels()], target=target_of("vpdpbusd 512"))
    x = np.ones((4, 16), np.float32)
    x[0, 3], x[1, 5], x[2] = np.nan, -np.inf, 0
    weights, c = GENERATOR.integers(-128, 128, (8, 16), np.int8), np.full((4, 8), 7, np.float32)
    call(kernels, "f", x, [weights], c)
    assert np.isnan(c[:2]).all()
    np.testing.assert_array_equal(c[2], 0)
    np.testing.assert_allclose(c[3], weights.sum(1, dtype=np.int64), rtol=1e-6)
    for largest in np.nextafter(np.float32(1), np.float32(2), dtype=np.float32) ** np.arange(1, 40, dtype=np.float32):
        rows = np.zeros((4, 16), np.float32)
        rows[:, 0] = largest * np.array([1, -1, 3, 1e30], np.float32)
        call(kernels, "f", rows, [weights], c)
        np.testing.assert_allclose(c, rows[:, :1] * weights[:, 0].astype(np.float32), rtol=3e-7)


def test_weights_that_cannot_be_packed_stay() -> None:
    text = grouped("f", 1, 16, 1, 32).replace("buddy.parameter, ", "")
    kept = Compiled(text, [ContractionsToKernels()], target=target_of("vpdpbusd 512"))
    assert kept.remarks == [
        "product with 4-bit weights unchanged: its weights or scales cannot be packed before the program is called"
    ]
    assert "linalg.generic" in kept.text
    many = Compiled(grouped("f", 9, 16, 1, 32), [ContractionsToKernels()], target=target_of("vpdpbusd 512"))
    assert "too many rows" in many.remarks[0]


@pytest.mark.parametrize(("case", "cpu"), [("vpdpbusd 512", "znver4"), ("vpmaddubsw 256", "znver3")])
def test_sums_stay_in_registers(case: str, cpu: str) -> None:
    """The loop over a group multiplies weights with three digits, and stores at most the sums of several steps."""
    found = Compiled(grouped("f", 1, 64, 6, 128), [ContractionsToKernels()], target=target_of(case))
    name = case.split()[0]
    loops = assembly_of(found, cpu).split("\n.L")
    loop = max(loops, key=lambda part: part.count(name))
    assert loop.count(name) >= 12
    assert loop.count("(%rsp)") <= loop.count(name) // 2


def test_weights_are_prefetched_where_that_is_faster() -> None:
    text = grouped("f", 1, 64, 6, 128)
    for prefetches in (False, True):
        target = replace(target_of("vpdpbusd 512"), prefetches_streams=prefetches)
        found = Compiled(text, [ContractionsToKernels()], target=target)
        assert ("memref.prefetch" in found.text or "llvm.intr.prefetch" in found.text) == prefetches


def test_processors_of_amd_prefetch_streams_by_themselves() -> None:
    features = {"avx512f", "avx512vl", "avx512dq", "avx512bw"}
    assert from_features(features, "x86_64").prefetches_streams
    assert not from_features(features | {"sse4a"}, "x86_64").prefetches_streams
