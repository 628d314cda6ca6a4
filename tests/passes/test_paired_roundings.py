"""Epilogues that round to bfloat16, two vectors at a time: as PyTorch rounds, and only with the instruction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.convolutions_to_kernels import ConvolutionsToKernels
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from buddy.compiler.support.target import Target
from tests.passes.convolution_calls import weights_of
from tests.passes.windows import Array, Window
from tests.support.dot_products import Emulated
from tests.support.mlir_jit import TARGETS
from tests.support.mlir_text import memref

PASSES = [FuseEpilogues(), ConvolutionsToKernels(winograd="never"), ContractionsToKernels()]
# Blocks with an odd number of vectors in a row, rows that are not full, single rows, and positions of all kernels.
PAIRED = {
    "product, three vectors": Window(7, 9, 6, 48, kernel=1),
    "product, vectors not full": Window(5, 5, 33, 72, kernel=1),
    "patches": Window(7, 7, 20, 41, padding=1),
    "in place": Window(9, 11, 3, 16, dilation=2),
    "depthwise": Window(9, 8, 21, 21, groups=21),
}


def with_instruction() -> Target:
    return replace(TARGETS["avx512"], dot_instructions=("vdpbf16ps",))


def with_roundings(window: Window) -> str:
    """`rounded(rounded(rounded(convolution) * scale per channel) + more)`, and the middle of these as f32."""
    shape, channels = window.shapes[2], window.shapes[2][3:]
    sums, more, scale = memref(*shape), memref(*shape, element="bf16"), memref(*channels)
    dims = ["n", "h", "w", "g", "o"][: len(shape)]
    every, last = (f"affine_map<({','.join(dims)})->({','.join(d)})>" for d in (dims, dims[3:]))
    kinds = ",".join(['"parallel"'] * len(dims))
    epilogue = f"""
      linalg.generic {{indexing_maps = [{every}, {last}, {every}, {every}, {every}], iterator_types = [{kinds}]}}
          ins(%c, %scale, %more : {sums}, {scale}, {more}) outs(%out, %middle : {more}, {sums}) {{
        ^bb0(%x: f32, %y: f32, %w: bf16, %t: bf16, %d: f32):
          %x16 = arith.truncf %x : f32 to bf16
          %xr = arith.extf %x16 : bf16 to f32
          %p = arith.mulf %xr, %y : f32
          %p16 = arith.truncf %p : f32 to bf16
          %pr = arith.extf %p16 : bf16 to f32
          %m = arith.extf %w : bf16 to f32
          %u = arith.addf %pr, %m : f32
          %v = arith.truncf %u : f32 to bf16
          linalg.yield %v, %pr : bf16, f32
      }}
      return"""
    arguments = f"%scale: {scale}, %more: {more}, %out: {more} {{buddy.result}}, %middle: {sums} {{buddy.result}})"
    text = window.function("f0").replace(f"%c: {sums})", arguments)
    text = text.replace("%z = arith", f"%c = memref.alloc() : {sums}\n      %z = arith")
    return epilogue.join(text.rsplit("\n      return", 1))


def bits(values: torch.Tensor) -> Array:
    array: Array = values.contiguous().view(torch.int16).numpy()
    return array


@pytest.mark.parametrize("case", PAIRED)
def test_each_number_is_rounded_as_pytorch_rounds_it(case: str) -> None:
    """Sums of small integers are exact, so that only the epilogue rounds; an infinity and a NaN pass through it."""
    window = replace(PAIRED[case], factor="bf16")
    module = Emulated(with_roundings(window), PASSES, target=with_instruction())
    assert "epilogue of linalg.generic" in module.remarks[-1], module.remarks
    assert "cvtne2ps2bf16" in module.text
    generator = torch.Generator().manual_seed(0)
    image, weights = (torch.randint(-9, 10, x.shape, generator=generator).to(torch.bfloat16) for x in window.operands())
    a, b, sums = window.arrays(image, weights)
    scale = torch.rand(sums.shape[3:], generator=generator) + 0.5
    more = torch.randn(sums.shape, generator=generator).to(torch.bfloat16) * 50
    more.view(-1)[3], more.view(-1)[-1] = torch.inf, torch.nan
    out, middle = bits(torch.zeros_like(more)), sums.copy()
    module("f0", a, *weights_of(module, "f0", b), scale.numpy(), bits(more), out, middle)
    exact = torch.from_numpy(window.expected(image, weights)).float()
    scaled = (exact.bfloat16().float() * scale).bfloat16()
    np.testing.assert_array_equal(middle, scaled.float().numpy())
    result, expected = torch.from_numpy(out).view(torch.bfloat16), (scaled.float() + more.float()).bfloat16()
    assert torch.equal(result.isnan(), expected.isnan())
    np.testing.assert_array_equal(bits(result.nan_to_num(nan=0)), bits(expected.nan_to_num(nan=0)))


@pytest.mark.parametrize("case", ["product, three vectors", "depthwise"])
def test_pairs_need_the_instruction(case: str) -> None:
    window = replace(PAIRED[case], factor="bf16")
    module = Emulated(with_roundings(window), PASSES, target=TARGETS["avx512"])
    assert "epilogue of linalg.generic" in module.remarks[-1], module.remarks
    assert "cvtne2ps2bf16" not in module.text
