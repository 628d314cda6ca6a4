"""`fold-transposes`: transposes in sequence. `test_contractions_to_kernels.py` has those around contractions."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.passes.fold_transposes import FoldTransposes
from buddy.compiler.runtime.buffers import WorkArena
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled

# The gradient of a linear layer's weight, as autograd computes it: the product is transposed, and transposed back.
GRADIENT = """
    func.func @f(%a: tensor<4x8xf32>, %b: tensor<4x16xf32>) -> RESULT {
      %z = arith.constant 0.0 : f32
      %0 = tensor.empty() : tensor<8x4xf32>
      %1 = linalg.transpose ins(%a : tensor<4x8xf32>) outs(%0 : tensor<8x4xf32>) permutation = [1, 0]
      %2 = tensor.empty() : tensor<8x16xf32>
      %3 = linalg.fill ins(%z : f32) outs(%2 : tensor<8x16xf32>) -> tensor<8x16xf32>
      %4 = linalg.matmul ins(%1, %b : tensor<8x4xf32>, tensor<4x16xf32>) outs(%3 : tensor<8x16xf32>) -> tensor<8x16xf32>
      %5 = tensor.empty() : tensor<16x8xf32>
      %6 = linalg.transpose ins(%4 : tensor<8x16xf32>) outs(%5 : tensor<16x8xf32>) permutation = [1, 0]
      %7 = tensor.empty() : tensor<8x16xf32>
      %8 = linalg.transpose ins(%6 : tensor<16x8xf32>) outs(%7 : tensor<8x16xf32>) permutation = [1, 0]
      return RETURNED
    }"""


def test_a_product_that_is_transposed_twice_is_written_once() -> None:
    text = GRADIENT.replace("RESULT", "tensor<8x16xf32>").replace("RETURNED", "%8 : tensor<8x16xf32>")
    compiled = Compiled(text, [FoldTransposes()])
    filecheck(
        compiled.text,
        """
        CHECK-NOT: linalg.transpose
        CHECK: [[R:%.*]] = linalg.contract
        CHECK-SAME: -> tensor<8x16xf32>
        CHECK-NOT: linalg.transpose
        CHECK: return [[R]] : tensor<8x16xf32>
        """,
    )
    assert compiled.remarks == ["removed two transposes that cancel each other", "folded 1 operand transpose"]


def test_a_transpose_that_another_op_reads_stays() -> None:
    text = GRADIENT.replace("RESULT", "(tensor<8x16xf32>, tensor<16x8xf32>)")
    text = text.replace("RETURNED", "%8, %6 : tensor<8x16xf32>, tensor<16x8xf32>")
    compiled = Compiled(text, [FoldTransposes()])
    assert compiled.text.count("linalg.transpose") == 1
    filecheck(
        compiled.text,
        """
        CHECK: [[R:%.*]] = linalg.contract
        CHECK: [[T:%.*]] = linalg.transpose ins([[R]] : tensor<8x16xf32>)
        CHECK: return [[R]], [[T]] : tensor<8x16xf32>, tensor<16x8xf32>
        """,
    )


def test_two_transposes_become_one() -> None:
    compiled = Compiled(
        """
    func.func @f(%a: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {
      %0 = tensor.empty() : tensor<3x2x4xf32>
      %1 = linalg.transpose ins(%a : tensor<2x3x4xf32>) outs(%0 : tensor<3x2x4xf32>) permutation = [1, 0, 2]
      %2 = tensor.empty() : tensor<4x2x3xf32>
      %3 = linalg.transpose ins(%1 : tensor<3x2x4xf32>) outs(%2 : tensor<4x2x3xf32>) permutation = [2, 1, 0]
      return %3 : tensor<4x2x3xf32>
    }""",
        [FoldTransposes()],
    )
    filecheck(compiled.text, "CHECK: linalg.transpose ins(%{{.*}} : tensor<2x3x4xf32>)\nCHECK: permutation = [2, 0, 1]")
    assert compiled.text.count("linalg.transpose") == 1


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_gradient_of_a_weight_needs_no_scratch_memory_of_its_size() -> None:
    arenas: list[int] = []
    reserve = WorkArena.reserve

    def record(arena: WorkArena, size: int) -> None:
        arenas.append(size)
        reserve(arena, size)

    layer, x = torch.nn.Linear(512, 512), torch.randn(4, 512)
    layer(x).square().sum().backward()
    expected = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WorkArena, "reserve", record)
        compiled = torch.compile(layer, backend="buddy", options={"fallback": "error"})
        compiled(x).square().sum().backward()
    assert max(arenas) < layer.weight.nbytes / 2
    for parameter, gradient in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
