"""`bools-to-bytes`: every way to read and write bools, as IR and as numbers, and that vectors then take them."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.bools_to_bytes import BoolsToBytes
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import SIZES, Compiled
from tests.support.mlir_text import entry_function, generic, memref


def logic(n: int) -> str:
    """y = (x < 0 and m) as bools; z = x where that holds, else 1; w = a transposed copy of m; v = all true."""
    bools, floats = memref(n, element="i1"), memref(n)
    below = """%zero = arith.constant 0.0 : f32
          %0 = arith.cmpf olt, %in0, %zero : f32
          %r = arith.andi %0, %in1 : i1"""
    chosen = "%one = arith.constant 1.0 : f32\n%r = arith.select %in1, %in0, %one : f32"
    return entry_function(
        f"%x: {floats}, %m: {bools}, %y: {bools}, %z: {floats}, %w: {bools}, %v: {bools}",
        f"""%true = arith.constant true
      {generic("i", [("%x", floats, "i"), ("%m", bools, "i")], [("%y", bools, "i")], below)}
      {generic("i", [("%x", floats, "i"), ("%y", bools, "i")], [("%z", floats, "i")], chosen)}
      linalg.copy ins(%m : {bools}) outs(%w : {bools})
      linalg.fill ins(%true : i1) outs(%v : {bools})""",
    )


@pytest.mark.parametrize("n", SIZES)
def test_bools_in_vectors(n: int) -> None:
    compiled = Compiled(logic(n), [BoolsToBytes(), VectorizeGenerics()])
    assert "linalg." not in compiled.text, compiled.remarks
    random = np.random.default_rng(n)
    x, m = random.standard_normal(n).astype(np.float32), random.random(n) < 0.5
    y, w, v = (np.zeros(n, np.uint8) for _ in range(3))
    z = np.zeros(n, np.float32)
    compiled("f", x, m.view(np.uint8), y, z, w, v)
    np.testing.assert_array_equal(y, (x < 0) & m)
    np.testing.assert_array_equal(z, np.where((x < 0) & m, x, np.float32(1)))
    np.testing.assert_array_equal(w, m)
    np.testing.assert_array_equal(v, 1)


def test_any_and_all_are_folds_of_bytes() -> None:
    bools, rows = memref(5, 70, element="i1"), memref(5, element="i1")
    operands = [("%m", bools, "i,j")], [("%y", rows, "i")]
    text = entry_function(
        f"%m: {bools}, %y: {rows}",
        f"""%false = arith.constant false
      linalg.fill ins(%false : i1) outs(%y : {rows})
      {generic("ij", *operands, "%r = arith.ori %in0, %out0 : i1", reductions="j")}""",
    )
    compiled = Compiled(text, [BoolsToBytes(), VectorizeGenerics()])
    assert "linalg." not in compiled.text, compiled.remarks
    m = np.zeros((5, 70), np.uint8)
    m[1, 69] = m[3, 0] = m[4, 33] = 1
    y = np.full(5, 7, np.uint8)
    compiled("f", m, y)
    np.testing.assert_array_equal(y, [0, 1, 0, 1, 1])


def test_loads_stores_views_constants_and_calls() -> None:
    text = """
    memref.global "private" constant @bits : memref<3xi1> = dense<[true, false, true]>
    func.func private @g(memref<3xi1>)
    func.func @f(%x: memref<1x3xi1>, %i: index) {
      %bits = memref.get_global @bits : memref<3xi1>
      %v = memref.load %bits[%i] : memref<3xi1>
      %flat = memref.collapse_shape %x [[0, 1]] : memref<1x3xi1> into memref<3xi1>
      memref.store %v, %flat[%i] : memref<3xi1>
      func.call @g(%flat) : (memref<3xi1>) -> ()
      return
    }"""
    filecheck(
        Compiled(text, [BoolsToBytes()]).text,
        """
        CHECK: memref.global "private" constant @bits : memref<3xi8> = dense<[1, 0, 1]>
        CHECK: func.func private @g(memref<3xi8>)
        CHECK: func.func @f(%[[X:.*]]: memref<1x3xi8>, %[[I:.*]]: index)
        CHECK: %[[BITS:.*]] = memref.get_global @bits : memref<3xi8>
        CHECK-NEXT: %[[BYTE:.*]] = memref.load %[[BITS]][%[[I]]] : memref<3xi8>
        CHECK-NEXT: %[[V:.*]] = arith.trunci %[[BYTE]] : i8 to i1
        CHECK-NEXT: %[[FLAT:.*]] = memref.collapse_shape %[[X]]
        CHECK-NEXT: %[[OUT:.*]] = arith.extui %[[V]] : i1 to i8
        CHECK-NEXT: memref.store %[[OUT]], %[[FLAT]][%[[I]]] : memref<3xi8>
        CHECK-NEXT: call @g(%[[FLAT]]) : (memref<3xi8>) -> ()
        """,
    )


def test_what_has_no_bools_stays() -> None:
    text = "func.func @f(%x: memref<3xi8>) {\n return\n}"
    compiled = Compiled(text, [BoolsToBytes()])
    assert compiled.remarks == []
    assert compiled.text == Compiled(text).text
