"""`count-cycles`: every op of a body is in one region, calls leave their callee the number of its first counter."""

from __future__ import annotations

import platform

import pytest

from buddy.compiler.codegen.calling_convention import regions_of
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.base import PassError
from buddy.compiler.passes.count_cycles import CountCycles
from buddy.compiler.protocol.artifact import TimedRegion
from tests.support.filecheck_text import filecheck
from tests.support.mlir_jit import Compiled

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the counter's instructions below are those of x86-64"
)

# Nodes: 1 `a`, 2 `b`, 3 `c` and 4 `d` are what the two calls of `pair` come from, 5 is both's first op, 6 their second.
TEXT = """
#x = loc("graph":1:0)
#y = loc("graph":2:0)
#one = loc("graph":5:0)
#two = loc("graph":6:0)
func.func private @pair(%x: memref<8xf32>, %y: memref<8xf32>) {
  %c = arith.constant 1.0 : f32 loc(#one)
  linalg.fill ins(%c : f32) outs(%x : memref<8xf32>) loc(#one)
  memref.copy %x, %y : memref<8xf32> to memref<8xf32> loc(#two)
  return
}
func.func private @single(%x: memref<8xf32>) {
  %c = arith.constant 2.0 : f32 loc(#x)
  linalg.fill ins(%c : f32) outs(%x : memref<8xf32>) loc(#x)
  return
}
func.func @f(%x: memref<8xf32> {buddy.source = 0 : i64}, %y: memref<8xf32>) {
  call @pair(%x, %y) : (memref<8xf32>, memref<8xf32>) -> () loc(#ab)
  %c = arith.constant 3.0 : f32 loc(#x)
  linalg.fill ins(%c : f32) outs(%x : memref<8xf32>) loc(#x)
  linalg.fill ins(%c : f32) outs(%y : memref<8xf32>) loc(#x)
  call @pair(%y, %x) : (memref<8xf32>, memref<8xf32>) -> () loc(#cd)
  call @single(%y) : (memref<8xf32>) -> () loc(#y)
  return
}
#ab = loc("graph":3:0)
#cd = loc("graph":4:0)
"""
NODES = ("a", "b")


def compiled(text: str = TEXT, **options: bool) -> Compiled:
    return Compiled(text, [_Sets(), CountCycles(**options)], nodes=NODES)


class _Sets:
    """Makes the sets of several nodes that the text names: 3 and 4 of the calls, 5 and 6 of the function they share."""

    def run(self, _root: object, context: object) -> None:
        for names in (("mm", "add"), ("mm_1", "add_1"), ("mm", "mm_1"), ("add", "add_1")):
            context.locations.intern(names)  # type: ignore[attr-defined]


def regions(found: Compiled) -> tuple[TimedRegion, ...]:
    with found.context:
        return regions_of(found.module.operation)


def test_a_shared_function_has_regions_for_each_of_its_calls_with_the_nodes_of_that_call() -> None:
    assert regions(compiled()) == (
        TimedRegion(("add", "mm"), "f", "@pair"),
        TimedRegion(("a",), "f", "linalg.fill"),
        TimedRegion(("add_1", "mm_1"), "f", "@pair"),
        TimedRegion(("b",), "f", "@single"),
        TimedRegion(("mm",), "pair", "linalg.fill", 0),
        TimedRegion(("add",), "pair", "memref.copy", 0),
        TimedRegion(("mm_1",), "pair", "linalg.fill", 2),
        TimedRegion(("add_1",), "pair", "memref.copy", 2),
    )


def test_the_entry_counts_from_the_first_number_and_tells_callees_where_theirs_begin() -> None:
    filecheck(
        compiled().text,
        """
        CHECK: func.func private @buddy_counters() -> !llvm.ptr
        CHECK: func.func @f
        CHECK: %[[NUMBERS:.*]] = call @buddy_counters()
        CHECK: %[[FIRST:.*]] = llvm.mlir.constant(1 : i64)
        CHECK: %[[OWN:.*]] = llvm.getelementptr %[[NUMBERS]][%[[FIRST]]]
        CHECK: llvm.call_intrinsic "llvm.x86.sse2.lfence"
        CHECK: %[[START:.*]] = llvm.call_intrinsic "llvm.readcyclecounter"
        CHECK: %[[FOUR:.*]] = llvm.mlir.constant(4 : i64)
        CHECK: %[[THEIRS:.*]] = llvm.add %[[FIRST]], %[[FOUR]]
        CHECK: llvm.store %[[THEIRS]], %[[NUMBERS]]
        CHECK: call @pair
        CHECK: llvm.sub
        CHECK: linalg.fill
        CHECK-NEXT: linalg.fill
        CHECK-NEXT: llvm.call_intrinsic "llvm.x86.sse2.lfence"
        CHECK: %[[SIX:.*]] = llvm.mlir.constant(6 : i64)
        CHECK: %[[THEIRS_NOW:.*]] = llvm.add %[[FIRST]], %[[SIX]]
        CHECK: llvm.store %[[THEIRS_NOW]], %[[NUMBERS]]
        CHECK-NEXT: call @pair
        """,
    )


def test_a_callee_finds_its_first_number_and_adds_what_passed() -> None:
    filecheck(
        compiled().text,
        """
        CHECK: func.func private @pair
        CHECK: %[[NUMBERS:.*]] = call @buddy_counters()
        CHECK: %[[FIRST:.*]] = llvm.load %[[NUMBERS]]
        CHECK: %[[OWN:.*]] = llvm.getelementptr %[[NUMBERS]][%[[FIRST]]]
        CHECK: %[[START:.*]] = llvm.call_intrinsic "llvm.readcyclecounter"
        CHECK: linalg.fill
        CHECK: %[[NOW:.*]] = llvm.call_intrinsic "llvm.readcyclecounter"
        CHECK: %[[PLACE:.*]] = llvm.getelementptr %[[OWN]]
        CHECK: %[[PASSED:.*]] = llvm.sub %[[NOW]], %[[START]]
        CHECK: %[[BEFORE:.*]] = llvm.load %[[PLACE]]
        CHECK: %[[SUM:.*]] = llvm.add %[[BEFORE]], %[[PASSED]]
        CHECK: llvm.store %[[SUM]], %[[PLACE]]
        CHECK: memref.copy
        CHECK: llvm.sub %{{.*}}, %[[NOW]]
        """,
    )


def test_what_is_told_nothing_new_of_is_not_taken_apart() -> None:
    text = compiled().text
    body = text[text.index("@single(%arg0: memref") :]
    assert "buddy_counters" not in body[: body.index("return")]


def test_calls_may_count_as_one_region() -> None:
    found = regions(compiled(inside_calls=False))
    assert [region.label for region in found] == ["@pair", "linalg.fill", "@pair", "@single"]


def test_without_order_the_counter_is_read_at_once() -> None:
    text = compiled(ordered=False).text
    assert "lfence" not in text
    assert text.count("llvm.readcyclecounter") == 5 + 3  # one more than regions, in @f and in @pair


def call(callee: str, node: int) -> str:
    return f'func.call @{callee}(%x, %y) : (memref<8xf32>, memref<8xf32>) -> () loc("graph":{node}:0)'


def copy(source: str, target: str, node: int) -> str:
    return f'memref.copy {source}, {target} : memref<8xf32> to memref<8xf32> loc("graph":{node}:0)'


ENTRY = "func.func @f(%x: memref<8xf32> {buddy.source = 0 : i64}, %y: memref<8xf32>)"
CALLED_IN_A_LOOP = f"""
    func.func private @inner(%x: memref<8xf32>, %y: memref<8xf32>) {{
      {copy("%x", "%y", 1)}
      {copy("%y", "%x", 2)}
      return
    }}
    func.func private @outer(%x: memref<8xf32>, %y: memref<8xf32>) {{
      {call("inner", 1)}
      {copy("%x", "%y", 2)}
      return
    }}
    {ENTRY} {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      scf.for %i = %c0 to %c4 step %c1 {{
        func.call @outer(%x, %y) : (memref<8xf32>, memref<8xf32>) -> ()
      }} loc("graph":1:0)
      {call("inner", 2)}
      return
    }}"""
RECURSIVE = f"""
    func.func private @again(%x: memref<8xf32>, %y: memref<8xf32>) {{
      {copy("%x", "%y", 1)}
      {call("again", 2)}
      return
    }}
    {ENTRY} {{
      {call("again", 1)}
      return
    }}"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(CALLED_IN_A_LOOP, [("f", "scf.for"), ("f", "@inner")], id="called in a loop"),
        pytest.param(RECURSIVE, [("f", "@again")], id="recursive"),
    ],
)
def test_a_function_stays_one_region_if_it_is(text: str, expected: list[tuple[str, str]]) -> None:
    found = Compiled(text, [CountCycles()], nodes=NODES)
    assert [(region.function, region.label) for region in regions(found)] == expected


def test_without_an_entry_it_says_where_it_stands() -> None:
    with pytest.raises(PassError, match="before convert-func-to-llvm"):
        Compiled("func.func private @f()", [CountCycles()])


def test_other_machines_read_their_own_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    from buddy.compiler.support import timing

    monkeypatch.setattr(timing.platform, "machine", lambda: "aarch64")
    text = compiled().text
    assert 'llvm.inline_asm has_side_effects "isb\\0Amrs $0, cntvct_el0"' in text
    assert "readcyclecounter" not in text
    monkeypatch.setattr(timing.platform, "machine", lambda: "riscv64")
    with pytest.raises(PassError, match="no known cycle counter"):
        compiled()


def test_the_module_parses_again_with_its_regions() -> None:
    found = compiled()
    with found.context, ir.Location.unknown():
        again = ir.Module.parse(str(found.module))
        assert regions_of(again.operation) == regions(found)
