"""`epilogues-in-place`: a kernel writes over what its epilogue reads, unless its factors are there too."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.contractions_to_kernels import ContractionsToKernels
from buddy.compiler.passes.epilogues_in_place import EpiloguesInPlace
from buddy.compiler.passes.fuse_epilogues import FuseEpilogues
from buddy.compiler.passes.plan_memory import PlanMemory
from tests.support.mlir_jit import TARGETS, Compiled, random_arrays
from tests.support.mlir_text import entry_function, generic, memref

PASSES = [FuseEpilogues(), EpiloguesInPlace(), ContractionsToKernels(), PlanMemory()]
REMARK = "the result overwrites an operand"


def gated(m: int, n: int, k: int, factor: str = "%x", twice: str = "") -> str:
    """out = (factor w) * gate, where gate = x + x; `factor` may be %gate itself."""
    a, b, c = memref(m, k), memref(k, n), memref(m, n)
    inputs, outputs = [("%t", c, "i,j"), ("%gate", c, "i,j")], [("%out", c, "i,j")]
    return entry_function(
        f"%x: {a}, %w: {b}, %g: {c}, %out: {c} {{buddy.result}}",
        f"""%zero = arith.constant 0.0 : f32
      %gate = memref.alloc() : {c}
      linalg.add ins(%g, %g : {c}, {c}) outs(%gate : {c})
      %t = memref.alloc() : {c}
      linalg.fill ins(%zero : f32) outs(%t : {c})
      linalg.matmul ins({factor}, %w : {a}, {b}) outs(%t : {c})
      {generic("ij", inputs, outputs, "%r = arith.mulf %in0, %in1 : f32")}
      {twice}""",
    )


@pytest.mark.parametrize("target", ["avx512", "small cache"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 129, 7), (3, 17, 65), (4, 300, 31), (33, 63, 127), (65, 129, 300)])
def test_a_gate_is_overwritten(shape: tuple[int, int, int], target: str) -> None:
    m, n, k = shape
    compiled = Compiled(gated(m, n, k), PASSES, target=TARGETS[target])
    assert REMARK in compiled.remarks
    x, w, g = random_arrays((m, k), (k, n), (m, n))
    out = np.full_like(g, np.nan)
    compiled("f", x, w, g, out)
    # Each of k products of unit variance is rounded once, and the factor 2 g is about as large.
    np.testing.assert_allclose(out, (x.astype(np.float64) @ w) * (2 * g), atol=2e-5 * k**0.5)


def test_what_the_product_reads_itself_stays() -> None:
    compiled = Compiled(gated(33, 33, 33, "%gate"), PASSES)
    assert REMARK not in compiled.remarks
    x, w, g = random_arrays(*[(33, 33)] * 3)
    out = np.full_like(g, np.nan)
    compiled("f", x, w, g, out)
    np.testing.assert_allclose(out, (2 * g.astype(np.float64) @ w) * (2 * g), atol=2e-4)


def test_what_is_read_again_stays() -> None:
    kind = "memref<8x16xf32>"
    again = f"linalg.add ins(%gate, %out : {kind}, {kind}) outs(%out : {kind})"
    assert REMARK not in Compiled(gated(8, 16, 4, twice=again), PASSES).remarks
