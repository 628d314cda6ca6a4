"""Diffs of texts: applying one gives the other; structural ones see no renaming, order of attributes or location."""

from __future__ import annotations

import random
import re
import time
from itertools import pairwise

import pytest

from buddy.compiler.protocol.text import diff
from buddy.compiler.protocol.text.diff import Difference, Hunk, difference, hunks
from buddy.compiler.protocol.text.line_keys import defined_names, line_keys, with_sorted_attributes

FUNCTION = """\
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> (d1, d0)>
module {
  func.func @f(%arg0: tensor<4x8xf32>, %arg1: tensor<8x4xf32>) -> tensor<4x8xf32> {
    %c0 = arith.constant 0 : index
    %0 = tensor.empty() : tensor<4x8xf32>
    %1:2 = scf.for %i = %c0 to %c0 step %c0 iter_args(%a = %0, %b = %arg0) -> (tensor<4x8xf32>) {
      scf.yield %a, %b : tensor<4x8xf32>
    }
    %2 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "%s"]} ins(%1#0, %0) {
    ^bb0(%in: f32, %in_0: f32, %out: f32):
      %5 = arith.addf %in, %in_0 : f32
      linalg.yield %5 : f32
    } -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
  func.func @g(%arg0: f32, %arg1: f32) -> f32 {
    %0 = arith.subf %arg0, %arg1 {fast = 1 : i32, other = "a, b"} : f32
    cf.br ^bb2
  ^bb2:  // pred: ^bb0
    return %0 : f32
  }
}
"""


def applied(before: list[str], after: list[str], found: list[Hunk]) -> list[str]:
    """`before` with the hunks carried out on it."""
    result, place = [], 0
    for hunk in found:
        result += before[place : hunk.before] + after[hunk.after : hunk.after + hunk.added]
        place = hunk.before + hunk.removed
    return result + before[place:]


def edited(lines: list[str], random_: random.Random, edits: int) -> list[str]:
    lines = list(lines)
    for _ in range(edits):
        place = random_.randrange(len(lines) + 1)
        act = random_.randrange(4)
        if act == 0:
            lines.insert(place, f"new {random_.randrange(5)}")
        elif act == 1:
            del lines[place : place + random_.randrange(6)]
        elif act == 2:
            lines[place:place] = lines[: random_.randrange(8)]
        elif lines:
            lines[place % len(lines)] = random_.choice(lines)
    return lines


@pytest.mark.parametrize("seed", range(60))
def test_a_diff_applied_to_the_one_text_gives_the_other(seed: int) -> None:
    random_ = random.Random(seed)
    before = [f"line {random_.randrange(random_.choice((3, 30, 1000)))}" for _ in range(random_.randrange(200))]
    after = edited(before, random_, random_.randrange(20))
    found = hunks(before, after)
    assert applied(before, after, found) == after
    ends = [(hunk.before + hunk.removed, hunk.after + hunk.added) for hunk in found]
    starts = [(hunk.before, hunk.after) for hunk in found[1:]]
    assert all(end < start for end, start in zip(ends, starts, strict=False)), "hunks are apart, and in order"
    assert all(hunk.removed or hunk.added for hunk in found)


@pytest.mark.parametrize("seed", range(30))
def test_without_anchors_the_edit_is_a_shortest_one(seed: int) -> None:
    random_ = random.Random(seed)
    before = [random_.randrange(4) for _ in range(40)] * 2
    after = [random_.randrange(4) for _ in range(40)] * 2
    pairs = diff._match_by_edits(before, after)
    assert all(x < u and y < v for (x, y), (u, v) in pairwise(pairs))
    assert all(before[x] == after[y] for x, y in pairs)
    assert len(pairs) == longest_common(before, after)


def longest_common(one: list[int], other: list[int]) -> int:
    row = [0] * (len(other) + 1)
    for a in one:
        above = list(row)
        for j, b in enumerate(other):
            row[j + 1] = above[j] + 1 if a == b else max(row[j], above[j + 1])
    return row[-1]


def test_equal_texts_have_no_hunks_and_empty_ones_all() -> None:
    assert difference("a\nb\n", "a\nb\n") == Difference([], 2, 2)
    assert difference("", "a\nb") == Difference([Hunk(0, 0, 0, 2)], 0, 2)
    assert difference("a\n", "") == Difference([Hunk(0, 1, 0, 0)], 1, 0)


# ---- structure ------------------------------------------------------------------------------------------------------


def structural(before: str, after: str, language: str = "mlir") -> list[Hunk]:
    return difference(before, after, "structural", language).hunks


def renamed(text: str, seed: int) -> str:
    """`text` with other names for all values, labels and aliases, one to one within each function."""
    random_ = random.Random(seed)
    functions = re.split(r"(?=  func\.func)", text)
    return "".join(_renamed_function(part, random_) for part in functions).replace("#map", "#other")


def _renamed_function(text: str, random_: random.Random) -> str:
    names = sorted(set(re.findall(r'(?<!")%\w+', text)))
    fresh = random_.sample(range(1000), len(names))
    table = {name: f"%v{number}" for name, number in zip(names, fresh, strict=True)}
    return re.sub(r'(?<!")%\w+', lambda match: table[match[0]], text).replace("^bb", "^block")


def test_lines_do_not_move_past_the_end_of_a_text() -> None:
    before = "%0 = f(%0)\n%5 = g(%0)\n%0 = f(%0)"
    after = "%9 = g(%1)\n%1 = f(%0)\n%1 = f(%0)"
    assert structural(before, after) == [Hunk(0, 1, 0, 0), Hunk(2, 0, 1, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_renamed_values_labels_and_aliases_are_no_structural_change(seed: int) -> None:
    other = renamed(FUNCTION, seed)
    assert difference(FUNCTION, other).hunks
    assert structural(FUNCTION, other) == []
    assert structural(other, FUNCTION) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("arith.addf %in, %in_0", "arith.addf %in_0, %in"),
        ("scf.yield %a, %b", "scf.yield %a, %a"),
        ("[#map, #map1, #map]", "[#map, #map, #map1]"),
        ("arith.subf %arg0", "arith.mulf %arg0"),
        ('"a, b"', '"b, a"'),
        ('"%s"', '"%t"'),
        ("constant 0", "constant 1"),
        ("fast = 1 : i32", "fast = 2 : i32"),
    ],
)
def test_what_means_something_else_is_a_structural_change(old: str, new: str) -> None:
    changed = FUNCTION.replace(old, new)
    place = FUNCTION[: FUNCTION.index(old)].count("\n")
    for text in (changed, renamed(changed, 3)):
        assert structural(FUNCTION, text) == [Hunk(place, 1, place, 1)]


def test_the_order_of_attributes_locations_and_comments_are_no_structural_change() -> None:
    other = FUNCTION.replace('{fast = 1 : i32, other = "a, b"}', '{other = "a, b", fast = 1 : i32}')
    other = other.replace("return %2 : tensor<4x8xf32>", 'return %2 : tensor<4x8xf32> loc(fused["a(b", "c"])')
    other = other.replace("// pred: ^bb0", "// 2 preds: ^bb0, ^bb1")
    assert len(difference(FUNCTION, other).hunks) == 3
    assert structural(FUNCTION, other) == []


def test_an_op_that_came_does_not_change_the_lines_after_it() -> None:
    lines = renamed(FUNCTION, 5).splitlines(keepends=True)
    place = next(k for k, line in enumerate(lines) if "tensor.empty" in line)
    lines.insert(place, "    %new = arith.constant 7 : index\n")
    assert structural(FUNCTION, "".join(lines)) == [Hunk(place, 0, place, 1)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_of_equal_ops_the_one_without_uses_is_the_change(place: int, count: int) -> None:
    """The lines that use the values say which of the equal ops are the old ones."""
    head, *allocations, end = [
        "func.func @f(%n: index) {",
        *(f"  %{k} = memref.alloc(%n) : memref<?xf32>" for k in range(3)),
        "}",
    ]
    uses = [f'  "use"(%{k}, %{k}) : (memref<?xf32>, memref<?xf32>) -> ()' for k in (2, 0, 1)]
    before = "\n".join([head, *allocations, *uses, end, ""])
    new = [f"  %new{k} = memref.alloc(%n) : memref<?xf32>" for k in range(count)]
    after = "\n".join([head, *allocations[: place - 1], *new, *allocations[place - 1 :], *uses, end, ""])
    # The printer numbers values by their order.
    numbers: dict[str, str] = {}
    after = re.sub(r"%(?:new)?\d", lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), after)
    assert structural(before, after) == [Hunk(place, 0, place, count)]
    assert structural(after, before) == [Hunk(place, count, place, 0)]


def test_an_operand_that_became_another_value_is_the_only_change() -> None:
    before = "%0 = a\n%1 = b\n%2 = use %0\n%3 = use %2\n"
    after = "%5 = a\n%6 = b\n%7 = use %6\n%8 = use %7\n"
    assert structural(before, after) == [Hunk(2, 1, 2, 1)]


def test_a_name_that_is_given_again_is_a_new_value() -> None:
    before = "scf.for %i = %l {\n use %i\n}\nscf.for %i = %l {\n use %i\n}\n"
    after = "scf.for %i = %l {\n use %i\n}\nscf.for %j = %l {\n use %j\n}\n"
    assert structural(before, after) == []
    assert structural(before, after.replace("use %j", "use %i")) == [Hunk(4, 1, 4, 1)]


def test_names_of_values_that_are_gone_may_be_taken_by_others() -> None:
    before = "%0 = a\n%1 = gone\n%2 = b %0\n%3 = c %2\n"
    after = "%0 = a\n%1 = b %0\n%2 = c %1\n"
    assert structural(before, after) == [Hunk(1, 1, 1, 0)]


ALIASES = """\
#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1) -> (d0)>
#map2 = affine_map<(d0, d1) -> (d1, d0)>
#layout = #foo.layout<#map1, "#map2">
!tile = !foo.tile<f32, #layout>
module {
  linalg.generic {indexing_maps = [#map1, #map1]} ins(%0 : !tile)
  linalg.generic {indexing_maps = [#map, #map2], layout = #layout} ins(%1 : !tile)
}
"""
# The same program after a pass that moved the first use of an alias, and so renumbered all of them.
RENUMBERED = """\
#map = affine_map<(d0, d1) -> (d1, d0)>
#map1 = affine_map<(d0) -> (d0)>
#map2 = affine_map<(d0, d1) -> (d0)>
#layout1 = #foo.layout<#map2, "#map2">
!t = !foo.tile<f32, #layout1>
module {
  linalg.generic {indexing_maps = [#map2, #map2]} ins(%3 : !t)
  linalg.generic {indexing_maps = [#map1, #map], layout = #layout1} ins(%4 : !t)
}
"""


def test_an_alias_stands_for_its_definition() -> None:
    assert structural(ALIASES, RENUMBERED) == []
    assert structural(RENUMBERED, ALIASES) == []
    # The line has equal text, and another map.
    other = RENUMBERED.replace("[#map2, #map2]", "[#map1, #map1]")
    assert structural(ALIASES, other) == [Hunk(6, 1, 6, 1)]
    # A definition that changed changes the aliases that contain it, and all their uses.
    nested = RENUMBERED.replace("(d0, d1) -> (d0)>", "(d0, d1) -> (d1)>")
    assert structural(ALIASES, nested) == [Hunk(1, 1, 1, 0), Hunk(3, 2, 2, 3), Hunk(6, 2, 6, 2)]
    assert structural(ALIASES, RENUMBERED.replace('"#map2"', '"#map1"')) == [Hunk(3, 2, 3, 2), Hunk(6, 2, 6, 2)]


def test_each_alias_is_listed_with_its_counterpart() -> None:
    other = RENUMBERED.replace("(d0) -> (d0)", "(d0) -> (d0 + 1)")
    assert dict(difference(ALIASES, other, "structural").aliases) == {
        "#map": "", "#map1": "#map2", "#map2": "#map", "#layout": "#layout1", "!tile": "!t",
    }  # fmt: skip


def test_a_definition_that_came_or_went_is_the_only_change() -> None:
    new = "#map9 = affine_map<(d0) -> (0)>\n"
    assert structural(ALIASES, new + RENUMBERED) == [Hunk(0, 0, 0, 1)]
    assert structural(new + RENUMBERED, ALIASES) == [Hunk(0, 1, 0, 0)]


def test_attribute_groups_of_llvm_ir_stand_for_their_definitions() -> None:
    one = "declare void @f() #0\ndeclare void @g() #1\nattributes #0 = { cold }\nattributes #1 = { nounwind }\n"
    other = "declare void @f() #1\ndeclare void @g() #0\nattributes #0 = { nounwind }\nattributes #1 = { cold }\n"
    assert structural(one, other, "llvm") == []
    assert structural(one, other.replace("@g() #0", "@g() #1"), "llvm") == [Hunk(1, 1, 1, 1)]


def test_llvm_ir_and_assembly_have_names_of_their_own() -> None:
    one = "define void @f() {\n%1 = add i32 %0, 1, !dbg !12\nbr label %3\n3:  ; preds = %1\n}\n!12 = !D(line: 3)\n"
    other = "define void @f() {\n%4 = add i32 %9, 1, !dbg !7\nbr label %b\nb:  ; preds = %4\n}\n!7 = !D(line: 9)\n"
    assert structural(one, other, "llvm") == []
    assert structural(one, other.replace("add", "sub"), "llvm") == [Hunk(1, 1, 1, 1)]
    assert structural(".L1:\n  1f  jmp .L1\n", ".L7:\n  20  jmp .L7\n", "asm") == []
    assert structural("  a  mov eax, ebx\n", "  a  mov ebx, eax\n", "asm") == [Hunk(0, 1, 0, 1)]


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("llvm", "%1 = load { ptr, i64 }, ptr %0", "%1 = load { i64, ptr }, ptr %0"),
        ("cpp", "f({x, y});", "f({y, x});"),
        ("python", "call({a, b})", "call({b, a})"),
    ],
)
def test_words_between_braces_have_an_order_in_other_languages(language: str, one: str, other: str) -> None:
    first, second = line_keys([one, other], language)
    assert first.key != second.key


def test_a_function_in_generic_form_is_a_scope() -> None:
    (function,) = line_keys(['"func.func"() <{sym_name = "f"}> ({'], "mlir")
    assert function.starts_scope


def test_attributes_are_sorted_inside_out_and_other_braces_left_alone() -> None:
    line = 'op {b = {y, x = "p, q"}, a = [1, 2]} : {1, 0} {'
    assert with_sorted_attributes(line) == 'op {a = [1, 2], b = {x = "p, q", y}} : {1, 0} {'


def test_what_a_line_binds() -> None:
    assert defined_names("  %1:2, %c = scf.for %i = %0 to %n iter_args(%a = %x) -> (f32) {") == {"%1", "%c", "%i", "%a"}
    assert defined_names("  scf.parallel (%i, %j) = (%0, %0) to (%n, %m) step (%1, %1) {") == {"%i", "%j"}
    assert defined_names("  ^bb0(%in: f32, %out: f32):") == {"^bb0", "%in", "%out"}
    assert defined_names("  func.func @f(%x: f32) {") == {"%x"}
    assert defined_names("  memref.store %a, %b[%i, %j] : memref<4x4xf32>") == set()
    assert [shape.key for shape in line_keys(["%1 = a", "%22 = a"], "mlir")] == ["% = a"] * 2


@pytest.mark.slow
def test_two_texts_of_fifty_thousand_lines_are_compared_soon() -> None:
    random_ = random.Random(1)
    body = [f"    %{k} = arith.addf %{max(k - 3, 0)}, %{k // 2} : vector<{k % 17}xf32>\n" for k in range(50_000)]
    after = [re.sub(r"%(\d+)", lambda match: f"%{int(match[1]) + 7}", line) for line in body]
    for place in sorted(random_.sample(range(50_000), 500), reverse=True):
        after.insert(place, "    memref.dealloc %m : memref<4xf32>\n")
    start = time.process_time()
    found = difference("".join(body), "".join(after), "structural").hunks
    assert sum(hunk.added for hunk in found) >= 500
    assert time.process_time() - start < 15, "1.5 s; ten times that is another algorithm"
