"""`copy-carried-tensors`: loops may compute each carried tensor anywhere, and still bufferize."""

from __future__ import annotations

import numpy as np

from buddy.compiler.passes.copies_to_loops import CopiesToLoops
from buddy.compiler.passes.copy_carried_tensors import CopyCarriedTensors
from buddy.compiler.passes.results_to_out_params import ResultsToOutParams
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import BUFFERIZE, Compiled, Upstream

STEPS = [CopyCarriedTensors(), Upstream(BUFFERIZE), ResultsToOutParams(), CopiesToLoops()]
# `a` becomes `b`, and `b` becomes `a + b`: each is computed from the other.
SUMS = """
    %next = linalg.add ins(%a, %b : tensor<3xf32>, tensor<3xf32>) outs(%e : tensor<3xf32>) -> tensor<3xf32>
"""
FOR = f"""
func.func @f(%x: tensor<3xf32> {{bufferization.writable = false}}, %y: tensor<3xf32> {{bufferization.writable = false}})
    -> (tensor<3xf32>, tensor<3xf32>) attributes {{llvm.emit_c_interface}} {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %steps = arith.constant 6 : index
  %e = tensor.empty() : tensor<3xf32>
  %r:2 = scf.for %i = %zero to %steps step %one iter_args(%a = %x, %b = %y) -> (tensor<3xf32>, tensor<3xf32>) {{
    {SUMS}
    scf.yield %b, %next : tensor<3xf32>, tensor<3xf32>
  }}
  return %r#0, %r#1 : tensor<3xf32>, tensor<3xf32>
}}"""
WHILE = f"""
func.func @f(%x: tensor<3xf32> {{bufferization.writable = false}}, %y: tensor<3xf32> {{bufferization.writable = false}})
    -> (tensor<3xf32>, tensor<3xf32>) attributes {{llvm.emit_c_interface}} {{
  %zero = arith.constant 0 : index
  %limit = arith.constant 60.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %r:2 = scf.while (%a = %x, %b = %y) : (tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {{
    %first = tensor.extract %a[%zero] : tensor<3xf32>
    %goes_on = arith.cmpf olt, %first, %limit : f32
    scf.condition(%goes_on) %a, %b : tensor<3xf32>, tensor<3xf32>
  }} do {{
  ^bb0(%a: tensor<3xf32>, %b: tensor<3xf32>):
    {SUMS}
    scf.yield %b, %next : tensor<3xf32>, tensor<3xf32>
  }}
  return %r#0, %r#1 : tensor<3xf32>, tensor<3xf32>
}}"""
INSERTED = """
func.func @f(%x: tensor<6xf32>, %v: f32) -> tensor<6xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %steps = arith.constant 6 : index
  %r = scf.for %i = %zero to %steps step %one iter_args(%a = %x) -> (tensor<6xf32>) {
    %b = tensor.insert %v into %a[%i] : tensor<6xf32>
    scf.yield %b : tensor<6xf32>
  }
  return %r : tensor<6xf32>
}"""


def check_sums(text: str, steps: int) -> None:
    compiled = Compiled(text, STEPS)
    x, y = np.array([1, 2, -3], np.float32), np.array([1, 0.5, 8], np.float32)
    results = np.full(3, np.nan, np.float32), np.full(3, np.nan, np.float32)
    compiled("f", x, y, *results)
    a, b = x, y
    for _ in range(steps):
        a, b = b, a + b
    np.testing.assert_array_equal(results[0], a)
    np.testing.assert_array_equal(results[1], b)
    np.testing.assert_array_equal(x, np.array([1, 2, -3], np.float32))


def test_tensors_that_are_exchanged_by_a_counted_loop() -> None:
    check_sums(FOR, 6)


def test_tensors_that_are_exchanged_until_a_condition_fails() -> None:
    check_sums(WHILE, 10)


def test_a_tensor_that_is_changed_in_place_is_not_copied() -> None:
    compiled = Compiled(INSERTED, [CopyCarriedTensors()])
    filecheck(
        compiled.text,
        """
        CHECK: [[NEXT:%.*]] = tensor.insert
        CHECK-NOT: materialize_in_destination
        CHECK: scf.yield [[NEXT]]
        """,
    )
    assert compiled.remarks == []


def test_the_remark_counts_what_is_copied() -> None:
    assert Compiled(FOR, [CopyCarriedTensors()]).remarks == ["2 carried tensors copied in each iteration"]
