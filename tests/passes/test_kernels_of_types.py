"""Kernels of every element type, beside what PyTorch computes: sizes, special values, denormals and extremes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from tests.passes.products import function, packed_by
from tests.support.mlir_jit import SIZES, TARGETS, Compiled

SUBSCRIPTS = {"mk,kn->mn": (False, False), "mk,nk->mn": (False, True), "km,kn->mn": (True, False)}
_shapes = [*random.Random(3).sample(list(itertools.product(SIZES, SIZES, SIZES)), 9), (0, 5, 3), (5, 3, 0), (3, 0, 4)]
# Each shape in one of the orders, in turn.
SHAPES = list(zip(_shapes, itertools.cycle(SUBSCRIPTS), strict=False))
# Element type of the factors -> that of the sums, and PyTorch's types.
FLOATS = {
    "f32": ("f32", torch.float32, torch.float32),
    "f64": ("f64", torch.float64, torch.float64),
    "bf16": ("f32", torch.bfloat16, torch.float32),
    "f16": ("f32", torch.float16, torch.float32),
}
SIZES_OF_MIXED = [(40, 33, 70), (17, 100, 64), (9, 7, 300)]
INTEGERS = {
    "i8": ("i32", torch.int8, torch.int32),
    "i32": ("i32", torch.int32, torch.int32),
    "i64": ("i64", torch.int64, torch.int64),
}


def compiled(element: str, sums: str, shapes: list[tuple[tuple[int, ...], str]], target: str) -> Compiled:
    texts = [
        function(f"f{i}", subscripts, dict(zip("mnk", shape, strict=True)), element=element, sums=sums)
        for i, (shape, subscripts) in enumerate(shapes)
    ]
    found = Compiled("\n".join(texts), [ContractionsToKernels()], target=TARGETS[target])
    assert "linalg.contract" not in found.text, [r for r in found.remarks if "left" in r]
    return found


# Element types of A and B, and PyTorch's types.
MIXED = {
    ("f32", "i8"): (torch.float32, torch.int8),
    ("f32", "bf16"): (torch.float32, torch.bfloat16),
    ("bf16", "i8"): (torch.bfloat16, torch.int8),
    ("f16", "f32"): (torch.float16, torch.float32),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("elements", MIXED)
def test_products_of_mixed_elements_round_only_the_sums(elements: tuple[str, str], target: str) -> None:
    """Few rows, whose columns are read in place, and many rows; elements convert to f32 without rounding."""
    shapes = [(m, n, k) for m, n, k in SIZES_OF_MIXED for m in (1, 3, m)]
    programs = list(zip(shapes, itertools.cycle(SUBSCRIPTS), strict=False))
    texts = [
        function(
            f"f{i}",
            subscripts,
            dict(zip("mnk", shape, strict=True)),
            element=elements[0],
            right=elements[1],
            sums="f32",
        )
        for i, (shape, subscripts) in enumerate(programs)
    ]
    kernels = Compiled("\n".join(texts), [ContractionsToKernels()], target=TARGETS[target])
    assert "linalg.contract" not in kernels.text
    torch.manual_seed(0)
    for i, ((m, n, k), subscripts) in enumerate(programs):
        a, b = torch.randn(m, k).to(MIXED[elements][0]), (40 * torch.randn(k, n)).to(MIXED[elements][1])
        found = run(kernels, f"f{i}", subscripts, a, b, torch.float32)
        # A few roundings of sums of k products of about 40.
        torch.testing.assert_close(
            found.double(), a.double() @ b.double(), rtol=0, atol=40 * 2e-6 * k, msg=f"{m} {n} {k}"
        )


@pytest.mark.parametrize("elements", [("f32", "i8"), ("bf16", "bf16"), ("f16", "f16")])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_packed_panels_of_narrow_elements(elements: tuple[str, str], target: str) -> None:
    """Many blocks of rows, which share a widened panel, and few, which read the packed one."""
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8}
    for m in (9, 150):
        text = function(
            "f", "mk,nk->mn", {"m": m, "n": 70, "k": 90}, element=elements[0], right=elements[1], sums="f32",
            parameter=True,
        )  # fmt: skip
        kernels = Compiled(text, [ContractionsToKernels()], target=TARGETS[target])
        torch.manual_seed(0)
        a, b = torch.randn(m, 90).to(kinds[elements[0]]), (40 * torch.randn(70, 90)).to(kinds[elements[1]])
        out = torch.full((m, 70), 7.0)
        kernels("f", array(a), packed_by(kernels, array(b)), out.numpy())
        # A few roundings of sums of k products of about 40.
        torch.testing.assert_close(out.double(), a.double() @ b.double().t(), rtol=0, atol=40 * 2e-6 * 90)


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's own memory; NumPy has no bfloat16, and only the bits matter."""
    return (tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy()


def stored(a: torch.Tensor, b: torch.Tensor, subscripts: str) -> list[torch.Tensor]:
    """[m, k] and [k, n] as `subscripts` stores them."""
    turned = SUBSCRIPTS[subscripts]
    return [(x.t() if turn else x).contiguous() for x, turn in zip((a, b), turned, strict=True)]


def run(kernels: Compiled, name: str, subscripts: str, a: torch.Tensor, b: torch.Tensor, dtype: Any) -> torch.Tensor:
    out = torch.full((a.shape[0], b.shape[1]), 7, dtype=dtype)
    kernels(name, *(array(x) for x in stored(a, b, subscripts)), out.numpy())
    return out


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", FLOATS)
def test_products_of_floats_are_as_exact_as_eager(element: str, target: str) -> None:
    sums, dtype, out_dtype = FLOATS[element]
    kernels = compiled(element, sums, SHAPES, target)
    torch.manual_seed(0)
    for i, ((m, n, k), subscripts) in enumerate(SHAPES):
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        found = run(kernels, f"f{i}", subscripts, a, b, out_dtype).double()
        exact = a.double() @ b.double()
        eager = a.to(out_dtype) @ b.to(out_dtype)
        wrong, of_eager = ((x.double() - exact).abs().max() if x.numel() else 0 for x in (found, eager))
        # Sums in another order: as many roundings, so a small multiple; eager may be exact where there are few.
        unit = torch.finfo(out_dtype).eps * (k**0.5 + 1)
        assert wrong <= 4 * of_eager + unit if element != "f64" else wrong <= 1e-12, (m, n, k)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", INTEGERS)
def test_products_of_integers_are_those_of_eager(element: str, target: str) -> None:
    sums, dtype, out_dtype = INTEGERS[element]
    kernels = compiled(element, sums, SHAPES, target)
    torch.manual_seed(0)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    for i, ((m, n, k), subscripts) in enumerate(SHAPES):
        a, b = (torch.randint(low, high, size, dtype=dtype) for size in ((m, k), (k, n)))
        found = run(kernels, f"f{i}", subscripts, a, b, out_dtype)
        assert torch.equal(found, a.to(out_dtype) @ b.to(out_dtype)), (m, n, k)


# One row, few rows, a block; B as columns and as rows: each kernel is among them.
SPECIAL_SHAPES = list(itertools.product([(1, 40, 19), (1, 300, 19), (3, 33, 70), (13, 40, 19)], list(SUBSCRIPTS)[:2]))


@pytest.mark.parametrize("element", FLOATS)
def test_special_values_spread_as_in_eager(element: str) -> None:
    sums, dtype, out_dtype = FLOATS[element]
    kernels = compiled(element, sums, SPECIAL_SHAPES, "avx512")
    torch.manual_seed(0)
    values = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0)
    for (i, ((m, n, k), subscripts)), value in itertools.product(enumerate(SPECIAL_SHAPES), values):
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        a[m - 1, k // 2], b[k - 1, n - 1], b[0, n // 2] = value, value, -value
        found = run(kernels, f"f{i}", subscripts, a, b, out_dtype)
        wanted = a.to(out_dtype) @ b.to(out_dtype)
        torch.testing.assert_close(found, wanted, equal_nan=True, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("element", FLOATS)
def test_denormals_and_extremes_are_kept(element: str) -> None:
    sums, dtype, out_dtype = FLOATS[element]
    kernels = compiled(element, sums, SPECIAL_SHAPES, "avx512")
    info = torch.finfo(dtype)
    small, large = info.smallest_normal / 4, info.max
    for i, ((m, n, k), subscripts) in enumerate(SPECIAL_SHAPES):
        for factor, other in ((small, 1.0), (large, 1.0), (large, 2.0**-20)):
            a, b = torch.zeros(m, k, dtype=dtype), torch.zeros(k, n, dtype=dtype)
            a[:, k // 2], b[k // 2] = factor, other
            found = run(kernels, f"f{i}", subscripts, a, b, out_dtype)
            exact = torch.tensor(factor, dtype=dtype).double() * torch.tensor(other, dtype=dtype).double()
            assert torch.equal(found, torch.full_like(found, float(exact))), (factor, other)


def test_results_narrower_than_the_sums_are_rounded_once() -> None:
    text = function("f", "mk,kn->mn", {"m": 5, "n": 21, "k": 200}, element="bf16")
    kernels = Compiled(text, [ContractionsToKernels()])
    assert "linalg" not in kernels.text, kernels.remarks
    torch.manual_seed(0)
    a, b = torch.randn(5, 200).bfloat16(), torch.randn(200, 21).bfloat16()
    out = torch.zeros(5, 21, dtype=torch.bfloat16)
    kernels("f", array(a), array(b), array(out))
    exact = a.double() @ b.double()
    # Half a unit in the last of 8 bits, and what the sums in f32 add to that; sums in bf16 would be off by ten units.
    assert ((out.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-6 * 200**0.5).all()


# Blocks, packed and not; one row of few and of many columns; few rows.
BYTE_SHAPES = list(itertools.product([(13, 40, 19), (1, 300, 19), (3, 33, 70), (33, 129, 300)], SUBSCRIPTS))


@pytest.mark.parametrize("unsigned", [(True, False), (False, True), (True, True)])
def test_bytes_without_a_sign_are_widened_with_zeros(unsigned: tuple[bool, bool]) -> None:
    texts = [
        function(f"f{i}", dims, dict(zip("mnk", shape, strict=True)), element="i8", sums="i32", unsigned=unsigned)
        for i, (shape, dims) in enumerate(BYTE_SHAPES)
    ]
    kernels = Compiled("\n".join(texts), [ContractionsToKernels()])
    assert "linalg.generic" not in kernels.text, kernels.remarks
    for i, ((m, n, k), dims) in enumerate(BYTE_SHAPES):
        types = [torch.uint8 if positive else torch.int8 for positive in unsigned]
        a, b = (
            torch.randint(torch.iinfo(t).min, torch.iinfo(t).max, size, dtype=t)
            for t, size in zip(types, ((m, k), (k, n)), strict=True)
        )
        assert torch.equal(run(kernels, f"f{i}", dims, a, b, torch.int32), a.int() @ b.int()), (m, n, k)


def test_named_products_of_bytes_without_a_sign_are_kernels() -> None:
    text = """
    func.func @f(%a: memref<4x4xi8>, %c: memref<4x4xi32>) attributes {llvm.emit_c_interface} {
      linalg.matmul {cast = #linalg.type_fn<cast_unsigned>} ins(%a, %a : memref<4x4xi8>, memref<4x4xi8>)
        outs(%c : memref<4x4xi32>)
      return
    }"""
    kernels = Compiled(text, [ContractionsToKernels()])
    assert "linalg" not in kernels.text, kernels.remarks
    a, out = torch.arange(120, 136, dtype=torch.uint8).reshape(4, 4), torch.zeros(4, 4, dtype=torch.int32)
    kernels("f", a.numpy(), out.numpy())
    assert torch.equal(out, a.int() @ a.int())
