"""`results-to-out-params`: results become trailing arguments, written in place where they can be."""

from __future__ import annotations

import pytest

from buddy.compiler.passes.base import PassError
from buddy.compiler.passes.results_to_out_params import ResultsToOutParams
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled


def after(text: str) -> str:
    return Compiled(text, [ResultsToOutParams()]).text


def allocated(results: str, end: str) -> str:
    """A function that copies its argument to a new buffer %a and ends with `end`."""
    return f"""
    func.func @f(%x: memref<4xf32>) -> {results} {{
      %a = memref.alloc() : memref<4xf32>
      linalg.copy ins(%x : memref<4xf32>) outs(%a : memref<4xf32>)
      {end}
    }}"""


def test_an_allocated_result_is_written_in_place() -> None:
    text = allocated("memref<4xf32>", "return %a : memref<4xf32>")
    filecheck(
        after(text),
        """
        CHECK: func.func @f(%[[X:.*]]: memref<4xf32>, %[[OUT:.*]]: memref<4xf32> {buddy.result}) {
        CHECK-NEXT: linalg.copy ins(%[[X]] : memref<4xf32>) outs(%[[OUT]] : memref<4xf32>)
        CHECK-NEXT: return
        """,
    )


def test_an_allocated_result_is_written_in_place_through_a_reshape() -> None:
    text = allocated(
        "memref<2x2xf32>",
        """%r = memref.expand_shape %a [[0, 1]] output_shape [2, 2] : memref<4xf32> into memref<2x2xf32>
      return %r : memref<2x2xf32>""",
    )
    filecheck(
        after(text),
        """
        CHECK: func.func @f(%[[X:.*]]: memref<4xf32>, %[[OUT:.*]]: memref<2x2xf32> {buddy.result}) {
        CHECK-NEXT: %[[FLAT:.*]] = memref.collapse_shape %[[OUT]]
        CHECK-NEXT: linalg.copy ins(%[[X]] : memref<4xf32>) outs(%[[FLAT]] : memref<4xf32>)
        CHECK-NOT: memref.copy
        """,
    )


def test_an_argument_that_is_returned_is_copied() -> None:
    filecheck(
        after("func.func @f(%x: memref<4xf32>) -> memref<4xf32> {\n return %x : memref<4xf32>\n}"),
        """
        CHECK: func.func @f(%[[X:.*]]: memref<4xf32>, %[[OUT:.*]]: memref<4xf32> {buddy.result}) {
        CHECK-NEXT: memref.copy %[[X]], %[[OUT]]
        CHECK-NEXT: return
        """,
    )


def test_a_buffer_returned_twice_is_written_once_and_copied_once() -> None:
    text = allocated("(memref<4xf32>, memref<4xf32>)", "return %a, %a : memref<4xf32>, memref<4xf32>")
    filecheck(
        after(text),
        """
        CHECK: func.func @f(%[[X:.*]]: memref<4xf32>, %[[FIRST:.*]]: {{.*}}, %[[SECOND:.*]]: {{.*}}) {
        CHECK-NOT: memref.alloc
        CHECK: memref.copy %[[FIRST]], %[[SECOND]]
        """,
    )


def test_a_caller_allocates_what_its_callee_writes() -> None:
    text = """
    func.func private @g(memref<4xf32>) -> memref<4xf32>
    func.func @f(%x: memref<4xf32>, %y: memref<4xf32>) {
      %r = call @g(%x) : (memref<4xf32>) -> memref<4xf32>
      linalg.copy ins(%r : memref<4xf32>) outs(%y : memref<4xf32>)
      return
    }
    """
    filecheck(
        after(text),
        """
        CHECK: func.func private @g(memref<4xf32>, memref<4xf32> {buddy.result})
        CHECK: %[[BUFFER:.*]] = memref.alloc() {alignment = 64 : i64} : memref<4xf32>
        CHECK-NEXT: call @g(%{{.*}}, %[[BUFFER]]) : (memref<4xf32>, memref<4xf32>) -> ()
        CHECK-NEXT: linalg.copy ins(%[[BUFFER]]
        """,
    )


def test_a_result_that_is_no_buffer_is_refused_with_what_to_do() -> None:
    with pytest.raises(PassError, match="one-shot-bufferize"):
        after("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n return %x : tensor<4xf32>\n}")
