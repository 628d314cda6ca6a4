"""Write effects: memory that functions may write to, also through functions that call each other."""

from __future__ import annotations

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import WriteEffects

# `@even` and `@odd` call each other, and `@even` writes, which a search finds last: MLIR lists the last use first.
# `@reader` and `@other_reader` call each other, and only read.
MODULE = """
func.func private @even(%buffer: memref<4xf32>, %value: f32, %index: index) {
  memref.store %value, %buffer[%index] : memref<4xf32>
  func.call @odd(%buffer, %value, %index) : (memref<4xf32>, f32, index) -> ()
  return
}
func.func private @odd(%buffer: memref<4xf32>, %value: f32, %index: index) {
  func.call @even(%buffer, %value, %index) : (memref<4xf32>, f32, index) -> ()
  return
}
func.func private @reader(%buffer: memref<4xf32>, %index: index) {
  func.call @other_reader(%buffer, %index) : (memref<4xf32>, index) -> ()
  return
}
func.func private @other_reader(%buffer: memref<4xf32>, %index: index) {
  %0 = memref.load %buffer[%index] : memref<4xf32>
  func.call @reader(%buffer, %index) : (memref<4xf32>, index) -> ()
  return
}
func.func @main(%a: memref<4xf32>, %b: memref<4xf32>, %c: memref<4xf32>, %value: f32, %index: index) {
  func.call @even(%a, %value, %index) : (memref<4xf32>, f32, index) -> ()
  func.call @odd(%b, %value, %index) : (memref<4xf32>, f32, index) -> ()
  func.call @reader(%c, %index) : (memref<4xf32>, index) -> ()
  return
}
"""


def test_functions_that_call_each_other_have_the_writes_of_both() -> None:
    with ir.Context():
        module = ir.Module.parse(MODULE).operation
        main = next(op.operation for op in module.regions[0].blocks[0] if "sym_visibility" not in op.attributes)
        effects = WriteEffects(module)
        arguments = list(main.regions[0].blocks[0].arguments)[:3]
        # In this order: the first query reaches `@odd` while it is not yet known that `@even` writes.
        assert [effects.may_write(argument) for argument in arguments] == [True, True, False]
        assert [effects.may_write(argument) for argument in arguments] == [True, True, False]
