"""`write-in-place`: which ops write over an operand, which do not, and that numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from buddy.compiler.passes.plan_memory import PlanMemory
from buddy.compiler.passes.vectorize_generics import VectorizeGenerics
from buddy.compiler.passes.write_in_place import WriteInPlace
from tests.support.mlir_jit import Compiled, random_array
from tests.support.mlir_text import Operand, entry_function, generic, memref

KIND, FLAT = "memref<8x16xf32>", "memref<128xf32>"


def value(name: str, indices: str = "i,j") -> Operand:
    return name, KIND, indices


def op_to(target: str, inputs: list[Operand], body: str) -> str:
    return generic("ij", inputs, [value(target)], body)


def double(source: str, target: str) -> str:
    return op_to(target, [value(source)], "%r = arith.addf %in0, %in0 : f32")


def function(body: str) -> str:
    buffers = f"%a = memref.alloc() : {KIND}\n%b = memref.alloc() : {KIND}\n"
    return entry_function(f"%x: {KIND}, %out: {KIND} {{buddy.result}}", buffers + body)


def test_a_chain_works_in_the_result() -> None:
    text = function(f"{double('%x', '%a')}\n{double('%a', '%b')}\n{double('%b', '%out')}")
    compiled = Compiled(text, [WriteInPlace(), VectorizeGenerics()])
    assert "memref.alloc" not in compiled.text
    over, apart = (
        "the result overwrites an operand",
        "written to a separate buffer: no operand may be overwritten",
    )
    assert compiled.remarks[:3] == [apart, over, over]
    assert_f(compiled, lambda x: 8 * x)


def test_a_copy_of_what_nothing_else_reads_is_none() -> None:
    text = function(f"{double('%x', '%a')}\nmemref.copy %a, %out : {KIND} to {KIND}")
    compiled = Compiled(text, [WriteInPlace(), VectorizeGenerics()])
    assert "memref.copy" not in compiled.text
    assert "no copy: nothing else reads its source" in compiled.remarks
    assert_f(compiled, lambda x: 2 * x)


def test_a_buffer_in_another_shape_is_the_same_buffer() -> None:
    text = function(f"""
      %flat = memref.alloc() : {FLAT}
      %wide = memref.expand_shape %flat [[0, 1]] output_shape [8, 16] : {FLAT} into {KIND}
      {double("%x", "%a")}
      {double("%a", "%wide")}
      memref.copy %wide, %out : {KIND} to {KIND}""")
    compiled = Compiled(text, [WriteInPlace(), VectorizeGenerics()])
    assert compiled.text.count("memref.alloc") == 1, "only the one that is not used"
    assert_f(compiled, lambda x: 4 * x)


def reads_transposed() -> str:
    square = memref(16, 16)
    doubled = generic("ij", [("%a", square, "j,i")], [("%out", square, "i,j")], "%r = arith.addf %in0, %in0 : f32")
    return entry_function(
        f"%x: {square}, %out: {square} {{buddy.result}}",
        f"""%a = memref.alloc() : {square}
      linalg.add ins(%x, %x : {square}, {square}) outs(%a : {square})
      {doubled}""",
    )


APART = {
    "it is read again": function(
        double("%x", "%a")
        + double("%a", "%b")
        + op_to("%out", [value("%a"), value("%b")], "%r = arith.subf %in1, %in0 : f32")
    ),
    "it is read twice, in two ways": function(
        double("%x", "%a") + op_to("%out", [value("%a"), value("%a", "i,0")], "%r = arith.addf %in0, %in1 : f32")
    ),
    "the body reads more of it": function(
        double("%x", "%a")
        + "%c0 = arith.constant 0 : index"
        + op_to("%out", [value("%a")], f"%s = memref.load %a[%c0, %c0] : {KIND}\n%r = arith.addf %in0, %s : f32")
    ),
    "the result is written before": function(
        f"""linalg.copy ins(%x : {KIND}) outs(%b : {KIND})
      {double("%x", "%a")}
      linalg.add ins(%a, %b : {KIND}, {KIND}) outs(%out : {KIND})
      {double("%a", "%b")}
      {double("%b", "%out")}"""
    ),
    "it is read in another order": reads_transposed(),
    "it is the caller's": function(double("%x", "%out")),
    "a branch gives it another name": function(
        f"""{double("%x", "%a")}
      %true = arith.constant true
      %other = scf.if %true -> ({KIND}) {{ scf.yield %a : {KIND} }} else {{ scf.yield %x : {KIND} }}
      {double("%a", "%b")}
      {op_to("%out", [value("%b"), value("%other")], "%r = arith.subf %in0, %in1 : f32")}"""
    ),
}
# The last op of these is the last reader of its operand.
LAST_READERS = ("it is read again", "a branch gives it another name")
EXPECTED = {
    "it is read again": lambda x: 2 * x,
    "it is read twice, in two ways": lambda x: 2 * x + 2 * x[:, :1],
    "the body reads more of it": lambda x: 2 * x + 2 * x[0, 0],
    "the result is written before": lambda x: 8 * x,
    "it is read in another order": lambda x: 4 * x.T,
    "it is the caller's": lambda x: 2 * x,
    "a branch gives it another name": lambda x: 2 * x,
}


@pytest.mark.parametrize("why", APART)
def test_an_operand_stays_by_itself_where(why: str) -> None:
    compiled = Compiled(APART[why], [WriteInPlace(), PlanMemory()])
    in_place = compiled.remarks.count("the result overwrites an operand")
    assert in_place == (why in LAST_READERS)
    side = 16 if "order" in why else 8
    x = random_array(side, 16)
    out = np.zeros_like(x)
    compiled("f", x, out)
    np.testing.assert_allclose(out, EXPECTED[why](x), rtol=1e-6)


def assert_f(compiled: Compiled, expected: object) -> None:
    x = random_array(8, 16)
    out = np.full_like(x, np.nan)
    compiled("f", x, out)
    np.testing.assert_allclose(out, expected(x), rtol=1e-6)  # type: ignore[operator]


def layers(order: str) -> str:
    """Two calls of @layer, which doubles its operand by way of a buffer of its own; `order` is its body's."""
    kinds = f"({KIND}, {KIND}) -> ()"
    body = {
        "reads first": f"{double('%x', '%t')}\n{double('%t', '%y')}",
        "element by element": double("%x", "%y"),
        "writes first": f"linalg.fill ins(%f : f32) outs(%y : {KIND})\n{double('%x', '%y')}",
        "in one loop": f"""scf.for %i = %c0 to %c8 step %c1 {{ scf.for %j = %c0 to %c16 step %c1 {{
            %e = memref.load %x[%c0, %j] : {KIND}
            memref.store %e, %y[%i, %j] : {KIND} }} }}""",
        "in a function of its own": f"func.call @inner(%x, %y) : {kinds}",
    }[order]
    return f"""
    func.func private @inner(%x: {KIND}, %y: {KIND} {{buddy.result}}) {{
      {double("%x", "%y")}
      return
    }}
    func.func private @layer(%x: {KIND}, %y: {KIND} {{buddy.result}}) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      %c16 = arith.constant 16 : index
      %t = memref.alloc() : {KIND}
      %f = arith.constant 1.0 : f32
      {body}
      return
    }}
    {function(f"{double('%x', '%a')} func.call @layer(%a, %b) : {kinds} func.call @layer(%b, %out) : {kinds}")}"""


@pytest.mark.parametrize(
    ("order", "calls", "expected"),
    [
        ("reads first", 2, lambda x: 2 * 16 * x),
        ("element by element", 2, lambda x: 2 * 4 * x),
        ("in a function of its own", 2, lambda x: 2 * 4 * x),
        ("writes first", 0, lambda x: 2 * 4 * x),
        ("in one loop", 0, lambda x: 2 * np.tile(x[:1], (8, 1))),
    ],
)
def test_a_call_writes_over_what_its_function_has_read_before(order: str, calls: int, expected: object) -> None:
    compiled = Compiled(layers(order), [WriteInPlace(), PlanMemory()])
    assert sum(text.startswith("the result of ") for text in compiled.remarks) == calls
    assert_f(compiled, expected)
