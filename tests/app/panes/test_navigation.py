"""Phase tabs, search matches, the jump history, and SSA values."""

from __future__ import annotations

import re

import pytest

from buddy.app.panes.ir_jumps import JumpHistory
from buddy.app.panes.ir_names import all_names, defined_values, definition_pattern, op_name, use_pattern, used_values
from buddy.app.panes.ir_stages import PhaseTab, tab_at, tab_labels
from buddy.app.reports.text.search_hits import read_pattern
from buddy.app.session.stages import StagePosition
from buddy.app.widgets.search import Matches

PHASES = ("torch", "graph", "toplevel", "fused", "buffers", "kernels", "loops", "llvm", "ir", "asm")
TABS = [PhaseTab(name, number) for number, name in enumerate(PHASES, 1)]


def test_where_there_is_room_every_tab_has_its_number_and_name() -> None:
    assert tab_labels(TABS, "fused", 200)[3:5] == ["[4 fused]", " 5 buffers "]
    assert tab_labels(TABS, "fused", 200)[9] == " 0 asm "


@pytest.mark.parametrize("width", [40, 60, 72])
@pytest.mark.parametrize("active", PHASES)
def test_where_there_is_not_far_tabs_keep_only_their_numbers(width: int, active: str) -> None:
    labels = tab_labels(TABS, active, width)
    assert len("".join(labels)) <= width
    assert f"{active}]" in labels[PHASES.index(active)]
    assert len(labels) == len(TABS)


def test_a_mark_stays_when_the_name_goes() -> None:
    failed = [*TABS[:8], PhaseTab("ir", 9, "!"), TABS[9]]
    assert "9!" in "".join(tab_labels(failed, "torch", 50))


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("active", ["torch", "fused", "asm"])
def test_a_click_on_any_column_of_a_tab_finds_it(width: int, active: str) -> None:
    labels = tab_labels(TABS, active, width)
    drawn = [tab for tab, label in zip(TABS, labels, strict=True) for _ in label]
    assert [tab_at(TABS, active, width, x) for x in range(len(drawn))] == drawn
    assert tab_at(TABS, active, width, len(drawn)) is None


def test_matches_go_round_at_both_ends() -> None:
    matches = Matches()
    matches.set_lines([3, 10, 20], False)
    assert [matches.first_from(row) for row in (0, 3, 4, 21)] == [3, 3, 10, 3]
    assert [matches.last_before(row) for row in (21, 10, 3)] == [20, 3, 20]
    assert matches.position_text(10) == "2/3"


def test_what_matches_is_marked_across_syntax() -> None:
    matches = Matches()
    matches.clear(read_pattern("b c"))
    assert matches.highlight([("a b", "x"), (" c d", "y")]) == [("a ", "x"), ("b c", "match"), (" d", "y")]


def test_matches_are_marked_whatever_their_case_unless_the_pattern_has_capitals() -> None:
    matches = Matches()
    matches.clear(read_pattern("add"))
    assert matches.highlight([("ADD %1", "x")]) == [("ADD", "match"), (" %1", "x")]
    matches.clear(read_pattern("Add"))
    assert matches.highlight([("ADD %1", "x")]) == [("ADD %1", "x")]


def test_plain_text_is_not_read_as_an_expression() -> None:
    pattern = read_pattern("\\Vtensor<?x4(")
    assert (pattern.source, pattern.regex) == ("tensor<?x4(", False)
    assert pattern.compile().search("%0 : tensor<?x4(f32)>")


def test_jumps_go_back_and_forward_within_a_stage_and_across_stages() -> None:
    jumps = JumpHistory()
    one, other = ("lower", 0), ("cse", 1)
    jumps.add(StagePosition(one, 5))
    jumps.add(StagePosition(other, 7))
    here = StagePosition(one, 90)
    assert jumps.go_back(here) == StagePosition(other, 7)
    assert jumps.go_back(StagePosition(other, 7)) == StagePosition(one, 5)
    assert jumps.go_back(StagePosition(one, 5)) is None
    assert jumps.go_forward(StagePosition(one, 5)) == StagePosition(other, 7)
    assert jumps.go_forward(StagePosition(other, 7)) == here


LINE = "  %3:2, %c = scf.for %i = %c0 to %12 iter_args(%a = %c0) -> (f32)"


def test_values_defined_and_used_on_a_line() -> None:
    assert defined_values(LINE) == ["%3", "%c"]
    assert used_values(LINE) == ["%i", "%c0", "%12", "%a"]
    assert used_values("  return %1 : f32") == ["%1"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("  %12 = arith.addf %1, %2 : f32", True),
        ("  %12:2 = scf.if %c", True),
        ("  %a, %12 = foo.bar", True),
        ("  func.func @f(%12: f32) {", True),
        ("  ^bb0(%x: f32, %12: f32):", True),
        ("  %13 = arith.addf %12, %2 : f32", False),
        ("  %123 = arith.constant 1 : f32", False),
        ("  linalg.matmul ins(%12, %1 : f32)", False),
    ],
)
def test_a_definition_is_told_from_a_use(line: str, found: bool) -> None:
    assert bool(re.search(definition_pattern("%12"), line)) is found


def test_a_use_is_of_the_whole_name() -> None:
    assert re.search(use_pattern("%1"), "add %1, %2")
    assert not re.search(use_pattern("%1"), "add %12, %2")


def test_names_on_a_line_are_values_symbols_labels_and_aliases_but_nothing_in_strings() -> None:
    line = '    %1 = func.call @f(%0) {a = #map1, s = "%no @no"} : !alias  // #arith.fastmath<none> ^bb2'
    assert all_names(line) == ["%1", "@f", "%0", "#map1", "!alias", "^bb2"]
    assert all_names("  br label %23, !dbg !7") == ["%23", "!7"]
    assert all_names("  6b  jmp  .L2b2") == [".L2b2"]


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("@f", "  func.func private @f(%arg0: f32) {", True),
        ("@f", "define void @f(ptr %0) {", True),
        ("@f", "  func.func @ff() {", False),
        ("@f", "  func.call @f() : () -> ()", False),
        ("@f", '  "func.func"() <{sym_name = "f"}> ({', True),
        ("#map", "#map = affine_map<(d0) -> (d0)>", True),
        ("#map", "#map1 = affine_map<(d0) -> (d0)>", False),
        ("^bb1", "  ^bb1(%0: i64):  // pred: ^bb0", True),
        ("^bb1", "    cf.br ^bb1(%c0 : i64)", False),
        ("%23", "23:                                 ; preds = %9", True),
        (".L2b2", ".L2b2:", True),
    ],
)
def test_definitions_of_other_names(name: str, line: str, found: bool) -> None:
    assert bool(re.search(definition_pattern(name), line)) is found


@pytest.mark.parametrize(
    ("line", "op"),
    [
        ("  %0 = arith.addf %1, %2 : f32", "arith.addf"),
        ('  %3:2 = "scf.if"(%c) ({', "scf.if"),
        ("    return %0 : f32", "func.return"),
        ("  }", ""),
        ("  ^bb0(%in: f32):", ""),
    ],
)
def test_the_op_of_a_line(line: str, op: str) -> None:
    assert op_name(line) == op
