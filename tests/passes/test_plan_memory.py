"""`plan-memory`: one arena per function, in which buffers share memory if they are not live at the same time."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.base import PassError
from buddy.compiler.passes.plan_memory import PlanMemory
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled, random_array

# Three buffers of 4 KiB in a chain: the first is dead when the third is born.
CHAIN = """
func.func @f(%x: memref<1024xf32>, %out: memref<1024xf32>) attributes {llvm.emit_c_interface} {
  %a = memref.alloc() : memref<1024xf32>
  linalg.add ins(%x, %x : memref<1024xf32>, memref<1024xf32>) outs(%a : memref<1024xf32>)
  %b = memref.alloc() : memref<1024xf32>
  linalg.mul ins(%a, %x : memref<1024xf32>, memref<1024xf32>) outs(%b : memref<1024xf32>)
  %c = memref.alloc() : memref<1024xf32>
  linalg.add ins(%b, %x : memref<1024xf32>, memref<1024xf32>) outs(%c : memref<1024xf32>)
  linalg.mul ins(%c, %b : memref<1024xf32>, memref<1024xf32>) outs(%out : memref<1024xf32>)
  return
}
"""


def test_buffers_that_do_not_live_together_share_room() -> None:
    filecheck(
        Compiled(CHAIN, [PlanMemory()]).text,
        """
        CHECK: %[[ARENA:.*]] = memref.alloc() {alignment = 64 : i64} : memref<8192xi8>
        CHECK: memref.view %[[ARENA]][%c0
        CHECK: memref.view %[[ARENA]][%c4096
        CHECK: memref.view %[[ARENA]][%c0
        CHECK: memref.dealloc %[[ARENA]]
        CHECK-NEXT: return
        CHECK-NOT: memref.alloc
        """,
    )


def test_it_says_how_much_it_saved() -> None:
    assert Compiled(CHAIN, [PlanMemory()]).remarks == ["3 buffers, 12288 bytes, in 8192"]


def test_without_an_arena_each_buffer_is_freed_after_its_last_use() -> None:
    filecheck(
        Compiled(CHAIN, [PlanMemory(arena=False)]).text,
        """
        CHECK: %[[A:.*]] = memref.alloc
        CHECK: %[[B:.*]] = memref.alloc
        CHECK: linalg.mul ins(%[[A]]
        CHECK-NEXT: memref.dealloc %[[A]]
        CHECK: %[[C:.*]] = memref.alloc
        CHECK: linalg.mul ins(%[[C]], %[[B]]
        CHECK: memref.dealloc
        CHECK-NEXT: memref.dealloc
        CHECK-NEXT: return
        """,
    )


@pytest.mark.parametrize("arena", [True, False])
def test_numbers_stay(arena: bool) -> None:
    x = random_array(1024)
    out = np.zeros_like(x)
    Compiled(CHAIN, [PlanMemory(arena=arena)])("f", x, out)
    b = (x + x) * x
    np.testing.assert_allclose(out, (b + x) * b, rtol=1e-6)


def test_a_buffer_lives_as_long_as_its_views_are_used() -> None:
    text = """
    func.func @f(%x: memref<64xf32>, %out: memref<64xf32>) {
      %a = memref.alloc() : memref<64xf32>
      %view = memref.expand_shape %a [[0, 1]] output_shape [8, 8] : memref<64xf32> into memref<8x8xf32>
      linalg.copy ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
      %b = memref.alloc() : memref<64xf32>
      linalg.copy ins(%x : memref<64xf32>) outs(%b : memref<64xf32>)
      %back = memref.collapse_shape %view [[0, 1]] : memref<8x8xf32> into memref<64xf32>
      linalg.add ins(%back, %b : memref<64xf32>, memref<64xf32>) outs(%out : memref<64xf32>)
      return
    }
    """
    assert Compiled(text, [PlanMemory()]).remarks == ["2 buffers, 512 bytes, in 512"]


def test_a_call_that_gives_a_buffer_back_is_lent_memory_too() -> None:
    made = CHAIN.replace("@f(%x: memref<1024xf32>, %out: memref<1024xf32>) attributes {llvm.emit_c_interface}",
                         "private @g(%x: memref<1024xf32>) -> memref<1024xf32>")  # fmt: skip
    made = made.replace("outs(%out :", "outs(%d :").replace("return", "return %d : memref<1024xf32>")
    made = made.replace("%c = memref", "%d = memref.alloc() : memref<1024xf32>\n  %c = memref")
    caller = """
    func.func @f(%x: memref<1024xf32>, %out: memref<1024xf32>) attributes {llvm.emit_c_interface} {
      %made = func.call @g(%x) : (memref<1024xf32>) -> memref<1024xf32>
      linalg.copy ins(%made : memref<1024xf32>) outs(%out : memref<1024xf32>)
      return
    }"""
    x, out = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
    compiled = Compiled(made + caller, [PlanMemory()])
    compiled("f", x, out)
    np.testing.assert_array_equal(out, (2 * x * x + x) * (2 * x * x))
    assert "call @g(%arg0, %" in compiled.text


def test_a_function_without_buffers_is_left_alone() -> None:
    text = "func.func @f(%x: memref<4xf32>) {\n return\n}"
    compiled = Compiled(text, [PlanMemory()])
    assert compiled.remarks == []
    assert "memref.alloc" not in compiled.text


def test_a_buffer_that_is_freed_already_is_left_alone() -> None:
    text = """
    func.func @f() {
      %a = memref.alloc() : memref<64xf32>
      memref.dealloc %a : memref<64xf32>
      return
    }
    """
    assert Compiled(text, [PlanMemory()]).text.count("memref.dealloc") == 1


CARRIED = """
func.func @f(%x: memref<SIZExf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %d = memref.dim %x, %c0 : memref<SIZExf32>
  %first = memref.alloc(DYNAMIC) : memref<SIZExf32>
  memref.copy %x, %first : memref<SIZExf32> to memref<SIZExf32>
  %last = scf.for %i = %c0 to %n step %c1 iter_args(%held = %first) -> (memref<SIZExf32>) {
    %next = memref.alloc(DYNAMIC) : memref<SIZExf32>
    linalg.add ins(%held, %x : memref<SIZExf32>, memref<SIZExf32>) outs(%next : memref<SIZExf32>)
    scf.yield %next : memref<SIZExf32>
  }
  memref.copy %last, %x : memref<SIZExf32> to memref<SIZExf32>
  return
}
"""


@pytest.mark.parametrize(("size", "dynamic"), [("?", "%d"), ("64", "")])
@pytest.mark.parametrize("arena", [True, False])
def test_buffers_that_a_loop_carries_on_are_neither_freed_nor_given_room(size: str, dynamic: str, arena: bool) -> None:
    text = CARRIED.replace("SIZE", size).replace("DYNAMIC", dynamic)
    compiled = Compiled(text, [PlanMemory(arena=arena)])
    assert compiled.text.count("memref.alloc") == 2
    assert "memref.dealloc" not in compiled.text


def test_functions_that_call_themselves_are_refused_where_they_need_memory() -> None:
    """MLIR's `async-parallel-for` makes such."""
    again = """
    func.func private @again(%n: index, %x: memref<8xf32>) {{
      {buffer}
      func.call @other(%n, %x) : (index, memref<8xf32>) -> ()
      return
    }}
    func.func private @other(%n: index, %x: memref<8xf32>) {{
      func.call @again(%n, %x) : (index, memref<8xf32>) -> ()
      return
    }}"""
    assert Compiled(again.format(buffer=""), [PlanMemory()]).remarks == []
    buffer = "%a = memref.alloc() : memref<8xf32>\nlinalg.copy ins(%x : memref<8xf32>) outs(%a : memref<8xf32>)"
    with pytest.raises(PassError, match="@again is recursive"):
        Compiled(again.format(buffer=buffer), [PlanMemory()])


# The entry of a backward graph: `%saved` is read by the first op, and the results are written by the others.
BACKWARD = """
func.func @f(%saved: memref<65536xf32> {{buddy.source = 0 : i64, buddy.saved}},
             %x: memref<32768xf32> {{buddy.source = 1 : i64}},
             %first: memref<32768xf32> {{buddy.result}}, %second: memref<32768xf32> {{buddy.result}}) {{
  %a = memref.subview %saved[0] [32768] [1] : memref<65536xf32> to memref<32768xf32, strided<[1]>>
  linalg.copy ins(%a : memref<32768xf32, strided<[1]>>) outs(%first : memref<32768xf32>)
  linalg.add ins(%x, %x : memref<32768xf32>, memref<32768xf32>) outs(%second : memref<32768xf32>)
  {last}
  return
}}
"""


def test_a_result_may_be_in_a_saved_tensor_that_is_no_longer_read() -> None:
    compiled = Compiled(BACKWARD.format(last=""), [PlanMemory()])
    filecheck(
        compiled.text,
        """
        CHECK: func.func @f(
        CHECK-SAME: %arg2: memref<32768xf32> {buddy.result}
        CHECK-SAME: %arg3: memref<32768xf32> {buddy.memory = array<i64: 0, 0>, buddy.result}
        """,
    )
    assert compiled.remarks == ["1 result, 131072 bytes, in the memory of saved tensors"]


def test_a_result_that_is_written_before_the_last_read_has_its_own_memory() -> None:
    last = "linalg.copy ins(%a : memref<32768xf32, strided<[1]>>) outs(%first : memref<32768xf32>)"
    assert "buddy.memory" not in Compiled(BACKWARD.format(last=last), [PlanMemory()]).text


def test_inputs_that_are_not_saved_keep_their_memory() -> None:
    text = BACKWARD.format(last="").replace(", buddy.saved", "")
    assert "buddy.memory" not in Compiled(text, [PlanMemory()]).text


def test_scratch_memory_lies_in_the_part_of_a_result_that_is_not_a_saved_tensor() -> None:
    """The result needs 256 KiB, of which the saved tensor has 128; the buffer of 128 KiB lies in the other half."""
    text = """
    func.func @f(%saved: memref<32768xf32> {buddy.source = 0 : i64, buddy.saved},
                 %out: memref<65536xf32> {buddy.result}, %sum: memref<f32> {buddy.result}) {
      %a = memref.alloc() : memref<32768xf32>
      linalg.add ins(%saved, %saved : memref<32768xf32>, memref<32768xf32>) outs(%a : memref<32768xf32>)
      linalg.reduce ins(%a : memref<32768xf32>) outs(%sum : memref<f32>) dimensions = [0]
        (%x: f32, %y: f32) { %z = arith.addf %x, %y : f32  linalg.yield %z : f32 }
      %c = arith.constant 1.0 : f32
      linalg.fill ins(%c : f32) outs(%out : memref<65536xf32>)
      return
    }"""
    filecheck(
        Compiled(text, [PlanMemory()]).text,
        """
        CHECK:      func.func @f(
        CHECK-SAME: buddy.memory = array<i64: 0, 0>, buddy.result
        CHECK:      %[[AT:.*]] = arith.constant 131072 : index
        CHECK-NEXT: memref.view %arg1[%[[AT]]]
        """,
    )
