"""Tabs of phases, found lines, jumps, and SSA values."""

from __future__ import annotations

import re

import pytest

from buddy.app.panes.navigation import Jumps, Matches
from buddy.app.panes.tabs import Tab, tab_at, tab_labels
from buddy.app.panes.values import defined, definition_pattern, use_pattern, used

PHASES = ("torch", "graph", "toplevel", "fused", "buffers", "kernels", "loops", "llvm", "ir", "asm")
TABS = [Tab(name, number) for number, name in enumerate(PHASES, 1)]


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
    failed = [*TABS[:8], Tab("ir", 9, "!"), TABS[9]]
    assert "9!" in "".join(tab_labels(failed, "torch", 50))


def test_a_click_finds_its_tab() -> None:
    labels = tab_labels(TABS, "fused", 200)
    place = sum(map(len, labels[:5])) + 2
    assert tab_at(TABS, "fused", 200, place) == TABS[5]
    assert tab_at(TABS, "fused", 200, 190) is None


def test_matches_go_round_at_both_ends() -> None:
    matches = Matches()
    matches.take([3, 10, 20], False)
    assert [matches.at_or_after(row) for row in (0, 3, 4, 21)] == [3, 3, 10, 3]
    assert [matches.before(row) for row in (21, 10, 3)] == [20, 3, 20]
    assert matches.told(10) == "match 2 of 3"


def test_what_matches_is_marked_across_syntax() -> None:
    matches = Matches()
    matches.clear("b c")
    assert matches.highlighted([("a b", "x"), (" c d", "y")]) == [("a ", "x"), ("b c", "match"), (" d", "y")]


def test_jumps_go_back_and_forward_within_a_text() -> None:
    jumps = Jumps()
    jumps.leave("t", 5)
    jumps.leave("other", 7)
    jumps.leave("t", 50)
    assert jumps.back("t", 90) == 50
    assert jumps.back("t", 50) == 5
    assert jumps.back("t", 5) is None
    assert jumps.forward("t", 5) == 50


LINE = "  %3:2, %c = scf.for %i = %c0 to %12 iter_args(%a = %c0) -> (f32)"


def test_values_defined_and_used_on_a_line() -> None:
    assert defined(LINE) == ["%3", "%c"]
    assert used(LINE) == ["%i", "%c0", "%12", "%a"]
    assert used("  return %1 : f32") == ["%1"]


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
