"""`expand-bfloat16`: what is rounded by integers, that it is rounded right, and where nothing has to be done."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from buddy.compiler.codegen.machines import target_of
from buddy.compiler.passes.expand_bfloat16 import ExpandBfloat16
from buddy.compiler.support.target import Target, from_features
from tests.programs import Line, assert_same, default_recipe
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled

FUNC = "attributes {llvm.emit_c_interface}"
WITHOUT = Target("avx2", 32, 16)
# As vectors, and one by one.
ROUNDING = f"""
func.func @f(%x: memref<4096xf32>, %y: memref<4096xbf16>) {FUNC} {{
  affine.for %i = 0 to 4096 step 16 {{
    %v = vector.load %x[%i] : memref<4096xf32>, vector<16xf32>
    %r = arith.truncf %v : vector<16xf32> to vector<16xbf16>
    vector.store %r, %y[%i] : memref<4096xbf16>, vector<16xbf16>
  }}
  return
}}
func.func @g(%x: memref<4096xf32>, %y: memref<4096xbf16>) {FUNC} {{
  affine.for %i = 0 to 4096 {{
    %v = memref.load %x[%i] : memref<4096xf32>
    %r = arith.truncf %v : f32 to bf16
    memref.store %r, %y[%i] : memref<4096xbf16>
  }}
  return
}}"""
ARITHMETIC = """
func.func @f(%x: vector<8xbf16>, %y: vector<8xbf16>, %n: i32, %d: f64) -> (vector<8xbf16>, bf16, bf16, vector<8xbf16>) {
  %sum = arith.addf %x, %y fastmath<contract> : vector<8xbf16>
  %root = math.sqrt %sum : vector<8xbf16>
  %number = arith.sitofp %n : i32 to bf16
  %double = arith.truncf %d : f64 to bf16
  %less = arith.cmpf olt, %x, %y : vector<8xbf16>
  %least = arith.select %less, %x, %y : vector<8xi1>, vector<8xbf16>
  return %root, %number, %double, %least : vector<8xbf16>, bf16, bf16, vector<8xbf16>
}"""


@pytest.mark.parametrize("function", ["f", "g"])
def test_floats_are_rounded_as_torch_does(function: str) -> None:
    compiled = Compiled(ROUNDING, [ExpandBfloat16()], target=WITHOUT)
    assert "truncf" not in compiled.text
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32)
    bits[:1024] &= 0xFFFF8000  # halves of the last place
    bits[:4] = 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001  # the largest, infinities, and a NaN in the last bit
    x, y = bits.view(np.float32), np.zeros(4096, np.uint16)
    compiled(function, x, y)
    expected = torch.from_numpy(x).to(torch.bfloat16)
    found = torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.isnan(), torch.from_numpy(np.isnan(x)))


def test_arithmetic_goes_through_f32_and_what_is_left_are_bits() -> None:
    text = Compiled(ARITHMETIC, [ExpandBfloat16()], target=WITHOUT).text
    filecheck(
        text,
        """
        CHECK: arith.shli %{{.*}} : vector<8xi32>
        CHECK: arith.addf %{{.*}} fastmath<contract> : vector<8xf32>
        CHECK: math.sqrt %{{.*}} : vector<8xf32>
        CHECK: arith.sitofp %{{.*}} : i32 to f32
        CHECK: arith.truncf %{{.*}} : f64 to f32
        CHECK: arith.cmpf olt, %{{.*}} : vector<8xf32>
        CHECK: arith.select %{{.*}} : vector<8xi1>, vector<8xi16>
        """,
    )
    computing = [line for line in text.splitlines() if "bf16" in line and "=" in line]
    assert all("arith.bitcast" in line for line in computing), computing


def test_a_processor_that_rounds_is_left_to_it() -> None:
    rounds = Target("avx512", 64, 32, rounds_to_bfloat16=True)
    assert Compiled(ROUNDING, [ExpandBfloat16()], target=rounds).text == Compiled(ROUNDING).text


def test_which_machines_round() -> None:
    assert from_features({"avx2", "fma", "avx512_bf16"}, "x86_64").rounds_to_bfloat16
    assert not from_features({"avx2", "fma"}, "x86_64").rounds_to_bfloat16
    found = {
        target: target_of(target).rounds_to_bfloat16
        for target in ("x86-64-v3", "x86-64-v4", "x86-64:cooperlake", "aarch64", "aarch64::+bf16", "riscv64")
    }
    assert [target for target, rounds in found.items() if rounds] == ["x86-64:cooperlake", "aarch64::+bf16"]


def test_a_program_calls_no_function_to_round() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 56, generator=generator).bfloat16() for _ in range(2))

    def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.relu(x + y) * 2, torch.softmax(x, -1), x @ y.T, x.double().bfloat16(), torch.exp(y) / x]

    line = Line(program, x, y)
    recipe = default_recipe()
    artifact = line.compile(recipe).artifact
    assert not any(b"__trunc" in image for image in artifact.objects)
    assert_same(line.run(recipe), program(x, y))


CHOICES = f"""
func.func @f(%x: memref<4096xbf16>, %y: memref<4096xbf16>, %z: memref<4096xbf16>) {FUNC} {{
  %zero = arith.constant dense<0.0> : vector<16xf32>
  affine.for %i = 0 to 4096 step 16 {{
    %v = vector.load %x[%i] : memref<4096xbf16>, vector<16xbf16>
    %w = vector.load %y[%i] : memref<4096xbf16>, vector<16xbf16>
    %m = arith.minimumf %v, %w : vector<16xbf16>
    %n = arith.negf %m : vector<16xbf16>
    %u = arith.extf %n : vector<16xbf16> to vector<16xf32>
    %p = arith.maximumf %u, %zero : vector<16xf32>
    %r = arith.truncf %p : vector<16xf32> to vector<16xbf16>
    vector.store %r, %z[%i] : memref<4096xbf16>, vector<16xbf16>
  }}
  return
}}"""


def test_numbers_of_bfloat16_that_are_only_chosen_are_not_rounded() -> None:
    compiled = Compiled(CHOICES, [ExpandBfloat16()], target=WITHOUT)
    assert "arith.addi" not in compiled.text
    assert "arith.addi" in Compiled(CHOICES.replace("0.0>", "0.1>"), [ExpandBfloat16()], target=WITHOUT).text
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2, 4096), dtype=np.uint32).astype(np.uint16)
    z = np.zeros(4096, np.uint16)
    compiled("f", *bits, z)
    x, y, found = (torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in (*bits, z))
    expected = torch.maximum(-torch.minimum(x, y), torch.zeros((), dtype=torch.bfloat16))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


EXTREMES = f"""
func.func @f(%x: memref<65536xbf16>, %y: memref<65536xbf16>, %most: memref<65536xbf16>, %least: memref<65536xbf16>)
    {FUNC} {{
  affine.for %i = 0 to 65536 step 32 {{
    %v = vector.load %x[%i] : memref<65536xbf16>, vector<32xbf16>
    %w = vector.load %y[%i] : memref<65536xbf16>, vector<32xbf16>
    %m = arith.maximumf %v, %w : vector<32xbf16>
    %n = arith.minimumf %v, %w : vector<32xbf16>
    vector.store %m, %most[%i] : memref<65536xbf16>, vector<32xbf16>
    vector.store %n, %least[%i] : memref<65536xbf16>, vector<32xbf16>
  }}
  return
}}"""


@pytest.mark.parametrize("target", [WITHOUT, Target("avx512", 64, 32, rounds_to_bfloat16=True)])
def test_extremes_of_all_numbers_are_chosen_by_integers(target: Target) -> None:
    """All bits, next to zeros, infinities, NaN of both signs, and to random numbers."""
    module = Compiled(EXTREMES, [ExpandBfloat16()], target=target)
    assert "arith.maximumf" not in module.text
    assert "arith.minimumf" not in module.text
    x = np.arange(1 << 16, dtype=np.uint16)
    draw = np.random.default_rng(0)
    special = [np.full_like(x, bits) for bits in (0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF)]
    for y in [*special, draw.permutation(x), draw.permutation(x)]:
        most, least = np.zeros_like(x), np.zeros_like(x)
        module("f", x, y, most, least)
        left, right, larger, smaller = (
            torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in (x, y, most, least)
        )
        torch.testing.assert_close(larger, torch.maximum(left, right), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(smaller, torch.minimum(left, right), rtol=0, atol=0, equal_nan=True)
        are_zeros = (left == 0) & (right == 0)
        assert torch.equal(larger[are_zeros].signbit(), (left.signbit() & right.signbit())[are_zeros])
        assert torch.equal(smaller[are_zeros].signbit(), (left.signbit() | right.signbit())[are_zeros])
