"""Calls of CUDA's library of functions in kernels, as instructions."""

from __future__ import annotations

from buddy.compiler.passes.libdevice_to_intrinsics import LibdeviceToIntrinsics
from tests.support.mlir_jit import Compiled

MODULE = """
gpu.module @kernels {
  llvm.func @__nv_fabsf(f32) -> f32
  llvm.func @__nv_fma(f64, f64, f64) -> f64
  llvm.func @__nv_rsqrtf(f32) -> f32
  llvm.func @__nv_powf(f32, f32) -> f32
  llvm.func @mine(f32) -> f32
  llvm.func @kernel(%a: f32, %b: f64) -> f32 {
    %0 = llvm.call @__nv_fabsf(%a) : (f32) -> f32 loc("graph":1:0)
    %1 = llvm.call @__nv_fma(%b, %b, %b) : (f64, f64, f64) -> f64
    %2 = llvm.call @__nv_rsqrtf(%0) : (f32) -> f32
    %3 = llvm.call @__nv_powf(%2, %a) : (f32, f32) -> f32 loc("graph":2:0)
    %4 = llvm.call @mine(%3) : (f32) -> f32
    llvm.return %4 : f32
  }
}
"""


def test_what_has_an_instruction_becomes_it_and_the_rest_is_told() -> None:
    """By number they are tried as parts of kernels, in `tests/codegen/gpu`."""
    compiled = Compiled(MODULE, [LibdeviceToIntrinsics()], nodes=["abs.0", "pow.0"])
    text = compiled.text
    for op in ("llvm.intr.fabs", "llvm.intr.fma", "llvm.intr.sqrt", "llvm.fdiv"):
        assert op in text
    assert text.count("__nv_") == 2, "one declaration and one call are left"
    assert "llvm.call @__nv_powf" in text
    assert "llvm.call @mine" in text
    assert compiled.remarks == [
        "__nv_fabsf became an instruction",
        "__nv_fma became an instruction",
        "__nv_rsqrtf became an instruction",
        "__nv_powf has no instruction, and is called from libdevice",
    ]
